"""Runs a model once, at the smallest of its shapes, to see what it gives: `validate`'s child does.

What the model says of the inputs is `golden`'s business, which tries harder: here a model that does
not run, or takes long, has simply not been seen.
"""

import threading
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from enginewright.contract.manifest import TensorSpec
from enginewright.contract.task import ShapeProfile

from enginewright_runtime.proof.golden_inputs import Filling, Sample, generate

_LARGEST: Final = 64 << 20  # bytes of inputs
_SECONDS: Final = 5.0  # of all attempts
_FLOATS: Final = "fc"


def observe(
    session: ort.InferenceSession,
    inputs: Sequence[TensorSpec],
    profiles: Sequence[ShapeProfile],
) -> dict[str, Any] | None:
    """Run the session on generated inputs of the profiles' least sizes.

    Args:
        session: on the reference.
        inputs: of the model.
        profiles: of every input.

    Returns:
        `inputs` and `outputs`: shapes by name; `numeric` and `nan`: names of outputs. None: the
        model did not run, or one of its inputs has no profile.
    """
    return _observe(session, inputs, profiles)[0]


def takes_batches(
    session: ort.InferenceSession,
    inputs: Sequence[TensorSpec],
    profiles: Sequence[ShapeProfile],
    batched: Sequence[str],
) -> bool:
    """Tell whether a session that runs at the least sizes also runs with one more in a batch.

    Args:
        session: on the reference.
        inputs: of the model.
        profiles: of every input.
        batched: names of inputs whose first dimension is the batch.

    Returns:
        False: it failed, within its time.
    """
    larger = [
        each.model_copy(update={"min": (each.min[0] + 1, *each.min[1:])})
        if each.input in batched
        else each
        for each in profiles
    ]
    seen, tried = _observe(session, inputs, larger)
    return seen is not None or not tried


def _observe(
    session: ort.InferenceSession, inputs: Sequence[TensorSpec], profiles: Sequence[ShapeProfile]
) -> tuple[dict[str, Any] | None, bool]:
    """Return what one run gave, and whether it ended by itself."""
    smallest = [
        profile.model_copy(update={"opt": profile.min, "max": profile.min}) for profile in profiles
    ]
    names = {profile.input for profile in profiles}
    # NumPy has no bfloat16, and ONNX Runtime takes none from it
    kinds = {spec.dtype for spec in inputs} | {arg.type for arg in session.get_outputs()}
    if names != {spec.name for spec in inputs} or kinds & {"bfloat16", "tensor(bfloat16)"}:
        return None, False
    if _bytes(inputs, smallest) > _LARGEST:
        return None, False
    options = ort.RunOptions()
    options.log_severity_level = 4  # that shapes differ is a finding
    clock = threading.Timer(_SECONDS, setattr, (options, "terminate", True))
    clock.daemon = True
    clock.start()
    try:
        for filling in Filling:
            sample = generate(inputs, smallest, filling)[0]
            if (seen := _run(session, sample, options)) is not None or options.terminate:
                return seen, seen is not None
    finally:
        clock.cancel()
    return None, True


def _bytes(inputs: Sequence[TensorSpec], profiles: Sequence[ShapeProfile]) -> int:
    kinds = {spec.name: spec.dtype for spec in inputs}
    total = 0
    for profile in profiles:
        kind = kinds[profile.input]
        count = 1
        for size in profile.min:
            count *= size
        # strings come as Python objects
        total += count * (64 if kind == "string" else np.dtype(kind).itemsize)
    return total


def _run(
    session: ort.InferenceSession, sample: Sample, options: ort.RunOptions
) -> dict[str, Any] | None:
    feeds = {
        name: array.astype(object) if array.dtype.kind == "U" else array
        for name, array in sample.inputs.items()
    }
    names = [arg.name for arg in session.get_outputs()]
    try:
        arrays = session.run(names, feeds, options)
    except Exception:  # noqa: BLE001 - of ONNX Runtime, which has no class of its own
        return None
    found = {
        name: array for name, array in zip(names, arrays, strict=True) if hasattr(array, "shape")
    }
    numeric = [name for name, array in found.items() if array.dtype.kind in _FLOATS]
    return {
        "inputs": {name: list(array.shape) for name, array in sample.inputs.items()},
        "outputs": {name: list(array.shape) for name, array in found.items()},
        "numeric": numeric,
        "nan": [name for name in numeric if bool(np.isnan(found[name]).any())],
    }
