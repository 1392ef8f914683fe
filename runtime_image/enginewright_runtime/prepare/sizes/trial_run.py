"""Runs a model once, at its smallest shapes, to observe its outputs, in a child of `validate`.

A model that fails or is slow is not observed: `golden`, which tries more inputs, reports errors.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from enginewright_contract.manifest import TensorSpec
from enginewright_contract.task import ShapeProfile
from numpy.typing import NDArray

from enginewright_runtime.core.time_limit import TimeLimit
from enginewright_runtime.proof.golden_inputs import (
    IntegerRange,
    Sample,
    generate,
    sum_bytes,
)
from enginewright_runtime.rules.behaviour import ObservedRun

_LARGEST: Final = 64 << 20  # bytes of inputs
_SECONDS: Final = 5.0  # of `TimeLimit`, for all attempts
_CHECK_SECONDS: Final = 0.05  # between two checks of the time limit
_FLOATS: Final = "fc"
_FATAL_ONLY: Final = 4


def observe(
    session: ort.InferenceSession,
    inputs: Sequence[TensorSpec],
    profiles: Sequence[ShapeProfile],
) -> ObservedRun | None:
    """Run a session on generated inputs of the profiles' min sizes; None if it did not run."""
    return _observe(session, inputs, profiles)[0]


@dataclass(frozen=True)
class BatchTrial:
    """A run with batches larger than the smallest by one, of a model that runs with the smallest."""

    run: ObservedRun | None = None
    refused: bool = False  # tried, and it did not run


def try_batch(
    session: ort.InferenceSession,
    inputs: Sequence[TensorSpec],
    profiles: Sequence[ShapeProfile],
    batched: Sequence[str],
) -> BatchTrial:
    """Run a session that runs at the min sizes also with batches larger by one, of the inputs `batched`."""
    larger = [
        profile.model_copy(update={"min": (profile.min[0] + 1, *profile.min[1:])})
        if profile.input in batched
        else profile
        for profile in profiles
    ]
    observed, tried = _observe(session, inputs, larger)
    return BatchTrial(observed, refused=observed is None and tried)


def _observe(
    session: ort.InferenceSession, inputs: Sequence[TensorSpec], profiles: Sequence[ShapeProfile]
) -> tuple[ObservedRun | None, bool]:
    smallest = [
        profile.model_copy(update={"opt": profile.min, "max": profile.min}) for profile in profiles
    ]
    names = {profile.input for profile in profiles}
    # NumPy lacks bfloat16, so ONNX Runtime cannot be fed with it
    dtypes = {spec.name: spec.dtype for spec in inputs}
    kinds = {*dtypes.values(), *(arg.type for arg in session.get_outputs())}
    if names != dtypes.keys() or kinds & {"bfloat16", "tensor(bfloat16)"}:
        return None, False
    if sum_bytes(inputs, {profile.input: profile.min for profile in smallest}) > _LARGEST:
        return None, False
    with end_after(_SECONDS) as options:
        for integer_range in IntegerRange:
            sample = generate(inputs, smallest, integer_range)[0]
            if (observed := _run(session, sample, options)) is not None or options.terminate:
                return observed, observed is not None
    return None, True


@contextmanager
def end_after(seconds: float) -> Iterator[ort.RunOptions]:
    """Yield options with which ONNX Runtime ends a run beyond its `TimeLimit`, and logs nothing."""
    options = ort.RunOptions()
    options.log_severity_level = _FATAL_ONLY  # failures become findings
    limit = TimeLimit(seconds)
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_CHECK_SECONDS):
            if limit.over():
                options.terminate = True
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield options
    finally:
        over.set()
        watcher.join()


def feeds_of(sample: Sample) -> dict[str, NDArray[Any]]:
    """Return a sample as a session accepts it: strings as objects."""
    return {
        name: array.astype(object) if array.dtype.kind == "U" else array
        for name, array in sample.inputs.items()
    }


def _run(
    session: ort.InferenceSession, sample: Sample, options: ort.RunOptions
) -> ObservedRun | None:
    names = [arg.name for arg in session.get_outputs()]
    try:
        arrays = session.run(names, feeds_of(sample), options)
    except Exception:  # noqa: BLE001 - ONNX Runtime's errors share no other base class
        return None
    outputs = {
        name: array for name, array in zip(names, arrays, strict=True) if hasattr(array, "shape")
    }
    numeric = tuple(name for name, array in outputs.items() if array.dtype.kind in _FLOATS)
    return ObservedRun(
        inputs={name: array.shape for name, array in sample.inputs.items()},
        outputs={name: array.shape for name, array in outputs.items()},
        numeric=numeric,
        nan=tuple(name for name in numeric if bool(np.isnan(outputs[name]).any())),
    )
