"""The part of `golden` that runs models: what its child processes execute.

It reads and runs as the server does, so that what passes here passes there.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
from enginewright.contract.reasons import Reason
from numpy.typing import NDArray

from enginewright_runtime import backends
from enginewright_runtime.backends.words import is_out_of_memory, plain
from enginewright_runtime.failure import StageFailure
from enginewright_runtime.logs import in_words
from enginewright_runtime.server.datatypes import BF16
from enginewright_runtime.parity import Tolerances
from enginewright_runtime.parity import difference as parity_difference
from enginewright_runtime.server.golden import Sample, read_samples, type_name
from enginewright_runtime.server.runner import Runner
from enginewright_runtime.server.signature import Signature, read_signature

INPUTS: Final = "inputs.npz"
OUTPUTS: Final = "outputs.npz"
EXPECTED: Final = "expected.npz"
_LARGEST: Final = 256 << 20  # bytes of outputs that one sample may store

Arrays = dict[str, NDArray[Any]]


def run_reference(
    model: str, folder: str, rtol: float | None, atol: float | None
) -> dict[str, Any]:
    """Run inputs.npz on the CPU provider, write outputs.npz, compare with expected.npz.

    Samples that the model refuses, or whose outputs are too large to store, are taken out of
    inputs.npz.

    Returns:
        `refused`: ONNX Runtime's words by sample; `differs`: words, or None; `warnings`: a list.
    """
    runner, signature = _load("cpu", model)
    inputs = read_arrays(Path(folder) / INPUTS)
    expected = read_arrays(Path(folder) / EXPECTED)
    outputs: dict[str, Arrays] = {}
    refused: dict[str, str] = {}
    warnings: list[str] = []
    for name, feeds in inputs.items():
        try:
            outputs[name] = run_sample(runner, signature, feeds)
        except Exception as error:  # noqa: BLE001 - of ONNX Runtime, which has no class of its own
            _refuse_for_memory(error, name, "cpu")
            refused[name] = plain(str(error))
            continue
        size = sum(array.nbytes for array in outputs[name].values())
        if size > _LARGEST and len(outputs) > 1:
            del outputs[name]
            warnings.append(f"outputs of the {name} shapes ({in_words(size)}) are not kept")
    _write(Path(folder) / OUTPUTS, outputs)
    _write(Path(folder) / INPUTS, {name: inputs[name] for name in outputs})
    warnings += _not_finite(signature, outputs)
    differs = _first_difference(signature, outputs, expected, rtol, atol)
    return {"refused": refused, "differs": differs, "warnings": warnings}


def run_backend(
    model: str, folder: str, backend: str, rtol: float | None, atol: float | None
) -> dict[str, Any]:
    """Run inputs.npz on `backend` and compare with outputs.npz; returns as `run_reference`."""
    runner, signature = _load(backend, model)
    warnings: list[str] = []
    for sample in read_samples(Path(folder) / INPUTS, Path(folder) / OUTPUTS, signature):
        try:
            found = run_sample(runner, signature, sample.feeds)
        except Exception as error:  # noqa: BLE001 - of ONNX Runtime, which has no class of its own
            _refuse_for_memory(error, sample.name, backend)
            return {"refused": {sample.name: plain(str(error))}}
        differs = _difference(signature, sample, found, rtol, atol)
        if differs is None:
            continue
        output, words = differs
        again = run_sample(runner, signature, sample.feeds)[output]
        if difference(found[output], again, signature.outputs[output].datatype) is None:
            return {"refused": {}, "differs": words, "warnings": []}
        warnings.append(f"output {output!r} gives other values on every run: not compared")
    return {"refused": {}, "differs": None, "warnings": warnings}


def _refuse_for_memory(error: Exception, sample: str, backend: str) -> None:
    if is_out_of_memory(str(error)):
        raise StageFailure(
            Reason.OUT_OF_MEMORY, f"golden sample {sample!r} does not fit on backend {backend}"
        ) from error


def _load(backend: str, model: str) -> tuple[Runner, Signature]:
    session = backends.create(backend, Path(model)).session
    signature = read_signature(session.get_inputs(), session.get_outputs(), ())
    return Runner(session, signature), signature


def run_sample(runner: Runner, signature: Signature, feeds: Arrays) -> Arrays:
    """Return all outputs for one sample's inputs."""
    names = list(signature.outputs)
    ready = {
        name: array.astype(object) if signature.inputs[name].datatype.is_string else array
        for name, array in feeds.items()
    }
    return dict(zip(names, runner.run(names, ready), strict=True))


def _first_difference(
    signature: Signature,
    outputs: dict[str, Arrays],
    expected: dict[str, Arrays],
    rtol: float | None,
    atol: float | None,
) -> str | None:
    for name, arrays in expected.items():
        if name not in outputs:
            continue
        known = {key: value for key, value in arrays.items() if key in signature.outputs}
        sample = Sample(name, {}, known)
        if differs := _difference(signature, sample, outputs[name], rtol, atol):
            return differs[1]
    return None


def _difference(
    signature: Signature, sample: Sample, found: Arrays, rtol: float | None, atol: float | None
) -> tuple[str, str] | None:
    for output, expected in sample.expected.items():
        datatype = signature.outputs[output].datatype
        want = expected.astype(object) if datatype.is_string else expected
        if words := difference(want, found[output], datatype, rtol=rtol, atol=atol):
            return output, f"output {output!r} of golden sample {sample.name!r} {words}"
    return None


def _not_finite(signature: Signature, outputs: dict[str, Arrays]) -> list[str]:
    found = []
    for name, arrays in outputs.items():
        for output, array in arrays.items():
            if signature.outputs[output].datatype is BF16 or array.dtype.kind != "f":
                continue
            if bad := int(np.count_nonzero(~np.isfinite(array))):
                found.append(
                    f"output {output!r} of golden sample {name!r} has {bad} of {array.size} values"
                    " NaN or infinite"
                )
    return found


def read_arrays(path: Path) -> dict[str, Arrays]:
    """Read a file of arrays SAMPLE/TENSOR; return them by sample."""
    groups: dict[str, Arrays] = {}
    with np.load(path, allow_pickle=False) as file:
        for key in file.files:
            sample, _, name = key.partition("/")
            groups.setdefault(sample, {})[name] = file[key]
    return groups


def _write(path: Path, groups: dict[str, Arrays]) -> None:
    arrays: dict[str, Any] = {
        f"{sample}/{name}": array.astype(np.str_) if array.dtype == object else array
        for sample, members in groups.items()
        for name, array in members.items()
    }
    np.savez(path, **arrays)


def difference(want: NDArray[Any], have: NDArray[Any], datatype: Any, rtol: float | None = None, atol: float | None = None) -> str | None:
    kind = type_name(datatype)
    return parity_difference(want, have, Tolerances(rtol=rtol, atol=atol).of_output("", kind), kind)
