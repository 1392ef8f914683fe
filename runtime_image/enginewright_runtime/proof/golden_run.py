"""The part of `golden` that runs models: what its child processes execute.

It reads and runs as the server does, so that what passes here passes there.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from enginewright.contract.manifest import VaryingOutput
from enginewright.contract.reasons import Reason
from enginewright.contract.task import Recipe
from numpy.typing import NDArray
from onnx import helper

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.logs import in_words
from enginewright_runtime.core.ort_messages import is_out_of_memory, plain
from enginewright_runtime.graph import graphs
from enginewright_runtime.graph.opsets import allow_unreleased
from enginewright_runtime.proof.parity import (
    ComparedWith,
    Comparison,
    Tolerances,
    Verdict,
    scales_of,
)
from enginewright_runtime.proof.parity.observing import is_random, observe
from enginewright_runtime.session import loading
from enginewright_runtime.session.arrays import Arrays, read_arrays, write_arrays
from enginewright_runtime.session.datatypes import BF16
from enginewright_runtime.session.loading import find
from enginewright_runtime.session.optimization import below
from enginewright_runtime.session.runner import Runner
from enginewright_runtime.session.samples import in_memory, type_name
from enginewright_runtime.session.signature import Signature, read_signature

INPUTS: Final = "inputs.npz"
OUTPUTS: Final = "outputs.npz"
EXPECTED: Final = "expected.npz"
_LARGEST: Final = 256 << 20  # bytes of outputs that one sample may store
_QUICK_DEFINITION: Final = 0.5  # seconds: the reference implementation is run again if not slower
_CHEAP_LOAD: Final = 2.0  # seconds: a model that loads so soon is loaded again, to see what varies


def run_reference(*, model: str, folder: str, recipe: dict[str, Any]) -> dict[str, Any]:
    """Run inputs.npz on the CPU provider, write outputs.npz, compare with expected.npz.

    Samples that the model refuses, or whose outputs are too large to store, are taken out of
    inputs.npz.

    Returns:
        `refused`: ONNX Runtime's words by sample; `level` of graph optimisations; `varying`:
        VaryingOutput of each output that differs from run to run; `warnings`: a list; what `_told`
        tells of the comparison with the expected outputs.

    Raises:
        SessionError: the model does not load.
    """
    allow_unreleased()

    def judge(level: str | None) -> dict[str, Any]:
        return _run_reference(model, folder, recipe, level)

    return _at_the_right_level("cpu", judge)


def _run_reference(
    model: str, folder: str, recipe: dict[str, Any], level: str | None
) -> dict[str, Any]:
    began = time.monotonic()
    runner, signature, level = _load("cpu", model, level)
    load_seconds = time.monotonic() - began
    inputs = read_arrays(Path(folder) / INPUTS)
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
    write_arrays(Path(folder) / OUTPUTS, outputs)
    write_arrays(Path(folder) / INPUTS, {name: inputs[name] for name in outputs})
    warnings += _not_finite(signature, outputs) + _empty(outputs)
    found = observe(
        partial(run_sample, runner, signature),
        inputs,
        outputs,
        types_of(signature),
        random=is_random(graphs.parse(Path(model))),
        fresh=partial(_run_fresh, model, level) if load_seconds < _CHEAP_LOAD else None,
    )
    warnings += map(_words_of_varying, found)
    judged = []
    if (expected := Path(folder) / EXPECTED).exists():
        tolerances = Tolerances.of(Recipe.model_validate(recipe))
        comparison, wanted = _judge(expected, signature, tolerances, "expected", found)
        for name in outputs.keys() & wanted.keys():
            again = partial(run_sample, runner, signature, inputs[name])
            comparison.add(name, wanted[name], outputs[name], again)
        judged.append(comparison)
    return {
        "refused": refused,
        "level": level,
        "varying": [each.model_dump(mode="json") for each in found],
        **_told(judged, warnings),
    }


def _run_fresh(model: str, level: str, feeds: Arrays) -> Arrays:
    runner, signature, _ = _load("cpu", model, level)
    return run_sample(runner, signature, feeds)


def _words_of_varying(output: VaryingOutput) -> str:
    how = "in distribution" if output.spreads else "in type and shape alone"
    return f"output {output.name!r} has other values in every run of the source: compared {how}"


def run_definition(*, model: str, folder: str) -> dict[str, Any]:
    """Run inputs.npz by ONNX's reference implementation, which is slow and knows every opset.

    Returns:
        `refused`: its words by sample, at most one; {}: outputs.npz is written. `varying`: as
        `run_reference` tells; [] also where the model is too slow for further runs.
    """
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - slow, and seldom needed

    proto = onnx.load(model)
    kinds = {
        value.name: helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        for value in (*proto.graph.input, *proto.graph.output)
        if value.type.tensor_type.elem_type
    }
    names = [value.name for value in proto.graph.output]
    outputs: dict[str, Arrays] = {}
    inputs = read_arrays(Path(folder) / INPUTS)

    def run(feeds: Arrays) -> Arrays:
        ready = {each: _defined(array, kinds[each]) for each, array in feeds.items()}
        results = ReferenceEvaluator(proto).run(names, ready)
        return {
            output: _stored(np.asarray(array), kinds.get(output))
            for output, array in zip(names, results, strict=True)
            if not isinstance(array, list)  # a sequence, which is not served
        }

    began = time.monotonic()
    for name, feeds in inputs.items():
        try:
            outputs[name] = run(feeds)
        except Exception as error:  # noqa: BLE001 - an operator in Python may raise anything
            return {"refused": {name: plain(str(error))}, "varying": []}
    seconds = time.monotonic() - began
    write_arrays(Path(folder) / OUTPUTS, outputs)
    types = {each.name: each.dtype for each in graphs.outputs_of(proto)}
    found: Sequence[VaryingOutput] = ()
    if seconds < _QUICK_DEFINITION:
        found = observe(run, inputs, outputs, types, random=is_random(proto))
    return {"refused": {}, "varying": [each.model_dump(mode="json") for each in found]}


def _defined(array: NDArray[Any], kind: np.dtype[Any]) -> NDArray[Any]:
    """Return an input as the reference implementation takes it: bfloat16 as ml_dtypes has it."""
    if kind.kind == "V" and array.dtype.itemsize == kind.itemsize:
        return array.view(kind)
    return array.astype(object) if array.dtype.kind == "U" else array


def _stored(array: NDArray[Any], kind: np.dtype[Any] | None) -> NDArray[Any]:
    """Return an output in its declared type, which Python arithmetic may have left, as its bits."""
    if kind is not None and array.dtype.kind not in "OSU" and kind.kind != "O":
        array = array.astype(kind)
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array


def run_judged(
    *,
    model: str,
    backend: str,
    inputs: str,
    outputs: str,
    expected: str | None,
    recipe: dict[str, Any],
    compared_with: ComparedWith,
    precision: str | None,
    rounding: bool = False,
    varying: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Run golden inputs on `backend` and compare with the golden outputs and the expected ones.

    Args:
        model: whose outputs are judged.
        backend: that runs it.
        inputs: an .npz file of arrays SAMPLE/INPUT.
        outputs: likewise, what is wanted.
        expected: likewise, of the exporting framework, not of every sample; None: not known.
        recipe: with the user's tolerances.
        compared_with: what `outputs` comes from.
        precision: of the model; None: the source's own.
        rounding: whether FP32 outputs may differ from `outputs` by no more than that.
        varying: VaryingOutput of outputs that differ from run to run of the source.

    Returns:
        `refused`: ONNX Runtime's words by sample; `samples`: how many were run; `level` of graph
        optimisations; what `_told` tells.

    Raises:
        StageFailure: as `loading.create`; OutOfMemory.
        SessionError: the model does not load.
    """
    tolerances = Tolerances.of(Recipe.model_validate(recipe), precision)
    exact = replace(tolerances, rounding=rounding)
    known = [VaryingOutput.model_validate(each) for each in varying]

    def judge(level: str | None) -> dict[str, Any]:
        runner, signature, level = _load(backend, model, level)
        judged = [_judge(Path(outputs), signature, exact, compared_with, known)]
        if expected is not None:
            judged.append(_judge(Path(expected), signature, tolerances, "expected", known))
        count = 0
        for name, feeds in read_arrays(Path(inputs)).items():
            try:
                found = run_sample(runner, signature, feeds)
            except Exception as error:  # noqa: BLE001 - of ONNX Runtime, which has no class of its own
                _refuse_for_memory(error, name, backend)
                return {"refused": {name: plain(str(error))}}
            again = partial(run_sample, runner, signature, feeds)
            for comparison, wanted in judged:
                comparison.add(name, wanted.get(name, {}), found, again)
            count += 1
        told = _told([each for each, _ in judged], [])
        return {"refused": {}, "samples": count, "level": level, **told}

    # below ALL a quantised model would only simulate what it was made for
    return judge(None) if precision is not None else _at_the_right_level(backend, judge)


def _judge(
    path: Path,
    signature: Signature,
    tolerances: Tolerances,
    compared_with: ComparedWith,
    varying: Iterable[VaryingOutput],
) -> tuple[Comparison, dict[str, Arrays]]:
    """Return a comparison, and what is wanted, by sample: those outputs that the session gives."""
    kinds = types_of(signature)
    wanted = {
        sample: {
            name: in_memory(array, signature.outputs[name].datatype)
            for name, array in arrays.items()
            if name in signature.outputs
        }
        for sample, arrays in read_arrays(path).items()
    }
    scales = scales_of(wanted, kinds)
    return Comparison(compared_with, tolerances, kinds, scales, varying), wanted


def _told(comparisons: list[Comparison], warnings: list[str]) -> dict[str, Any]:
    """Return comparisons as JSON.

    `parity`: OutputParity of every output; `failed`: the worst output and sample of the first
    comparison that failed, what it was compared with, and words, or None; `max_abs_error`: of the
    first comparison, or None without numbers; `warnings`: a list.
    """
    verdicts = [comparison.verdict() for comparison in comparisons]
    return {
        "parity": [each.model_dump(mode="json") for told in verdicts for each in told.outputs],
        "failed": next((_failed(told) for told in verdicts if not told.agrees), None),
        "max_abs_error": verdicts[0].max_abs_error if verdicts else None,
        "warnings": warnings,
    }


def _failed(verdict: Verdict) -> dict[str, str] | None:
    worst = verdict.worst
    if worst is None:
        return None
    return {
        "output": worst.output,
        "sample": worst.sample,
        "words": str(verdict.words),
        "against": verdict.compared_with,
    }


def _refuse_for_memory(error: Exception, sample: str, backend: str) -> None:
    if is_out_of_memory(str(error)):
        raise StageFailure(
            Reason.OUT_OF_MEMORY, f"golden sample {sample!r} does not fit on backend {backend}"
        ) from error


def _load(backend: str, model: str, level: str | None = None) -> tuple[Runner, Signature, str]:
    """Return what runs the model, and at which level of graph optimisations."""
    loaded = loading.create(backend, Path(model), level=level)
    session = loaded.session
    signature = read_signature(session.get_inputs(), session.get_outputs(), ())
    return Runner(session, signature), signature, loaded.level


def _at_the_right_level(
    backend: str, judge: Callable[[str | None], dict[str, Any]]
) -> dict[str, Any]:
    """Judge at the highest level of graph optimisations that loads; if that fails, at lower ones.

    Args:
        backend: that runs the model; of most there is one level only.
        judge: runs and compares at a level, None for the highest that loads; tells `level`, and
            `failed` as `_told` does.

    Returns:
        What was told at the first level at which the outputs are right, else at the first of all.
    """
    first = judge(None)
    if first.get("failed") is None or not find(backend).optimized:
        return first
    for level in below(first["level"]):
        lowered = judge(level)
        if not lowered["refused"] and lowered["failed"] is None:
            words = first["failed"]["words"]
            told = f"graph optimisations are lowered to {level}: at {first['level']}, {words}"
            # what was refused at first is no longer among the samples
            warnings = [*lowered["warnings"], told]
            return lowered | {"refused": first["refused"], "warnings": warnings}
    return first


def types_of(signature: Signature) -> dict[str, str]:
    """Return the types of the outputs, as `parity` takes them."""
    return {name: type_name(tensor.datatype) for name, tensor in signature.outputs.items()}


def run_sample(runner: Runner, signature: Signature, feeds: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return all outputs for one sample's inputs."""
    names = list(signature.outputs)
    ready = {
        name: array.astype(object) if signature.inputs[name].datatype.is_string else array
        for name, array in feeds.items()
    }
    return dict(zip(names, runner.run(names, ready), strict=True))


def _empty(outputs: dict[str, Arrays]) -> list[str]:
    """Warn of outputs without any value in all samples, such as the boxes that a detector finds in noise."""
    names = list(next(iter(outputs.values()), ()))
    return [
        f"output {name!r} has no elements in any golden sample: only its type and shape can be"
        " compared; give inputs with spec.parity.samples for which it has some"
        for name in names
        if all(arrays[name].size == 0 for arrays in outputs.values())
    ]


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
