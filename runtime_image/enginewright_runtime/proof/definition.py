"""Runs models with ONNX's reference implementation, which is slow but supports every opset."""

import logging
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from enginewright_contract.reasons import Reason
from numpy.typing import NDArray
from onnx import helper

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.core.limits import memory_of_child
from enginewright_runtime.core.logs import format_bytes
from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.core.time_limit import TimeLimit
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.storage import size_bytes
from enginewright_runtime.proof.golden_inputs import Sample
from enginewright_runtime.proof.golden_run import INPUTS, OUTPUTS, GoldenRun
from enginewright_runtime.proof.parity.observing import is_random, observe
from enginewright_runtime.session.arrays import Arrays, read_arrays, write_arrays

_log: Final = logging.getLogger(__name__)
_SECONDS: Final = 60.0  # its operators are plain Python
_LARGEST: Final = 512 << 20  # bytes of the model
_FAST: Final = 0.5  # seconds of `TimeLimit` up to which varying outputs are looked for in more runs


def try_definition(model: Path, sample: Sample, folder: Path) -> GoldenRun:
    """Run one sample in a child process, with files as of `run_definition`; `refused` says why not."""
    if size_bytes(graphs.parse(model)) > _LARGEST:
        return GoldenRun(refused={sample.name: f"it is larger than {format_bytes(_LARGEST)}"})
    write_arrays(folder / INPUTS, {sample.name: sample.inputs})
    doing = "running the source by ONNX's reference implementation"
    _log.info("%s", doing)
    try:
        call = Call(run_definition, doing, Limits(_SECONDS, memory_of_child() // 2))
        return call.run(model, folder)
    except StageFailure as failure:
        if failure.reason is Reason.STORAGE_FULL:
            raise  # unrelated to the model, and may be transient
        return GoldenRun(refused={sample.name: failure.cause})


def run_definition(model: Path, folder: Path) -> GoldenRun:
    """Run inputs.npz and write outputs.npz, unless a sample fails. Called in a child process.

    Varying outputs are looked for only if the model is fast enough for further runs.
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
    inputs = read_arrays(folder / INPUTS)

    def run(feeds: Arrays) -> Arrays:
        ready = {key: _convert_input(array, kinds[key]) for key, array in feeds.items()}
        results = ReferenceEvaluator(proto).run(names, ready)
        return {
            output: _convert_output(np.asarray(array), kinds.get(output))
            for output, array in zip(names, results, strict=True)
            if not isinstance(array, list)  # sequences are not served
        }

    run_limit = TimeLimit(_FAST)
    for name, feeds in inputs.items():
        try:
            outputs[name] = run(feeds)
        except Exception as error:  # noqa: BLE001 - an operator in Python may raise anything
            return GoldenRun(refused={name: plain(str(error))})
    runs_fast = not run_limit.over()
    write_arrays(folder / OUTPUTS, outputs)
    types = {spec.name: spec.dtype for spec in graphs.outputs_of(proto)}
    varying = observe(run, inputs, outputs, types, random=is_random(proto)) if runs_fast else ()
    return GoldenRun(samples=len(outputs), varying=varying)


def _convert_input(array: NDArray[Any], kind: np.dtype[Any]) -> NDArray[Any]:
    """Return an input as the reference implementation expects it: bfloat16 as of ml_dtypes."""
    if kind.kind == "V" and array.dtype.itemsize == kind.itemsize:
        return array.view(kind)
    return array.astype(object) if array.dtype.kind == "U" else array


def _convert_output(array: NDArray[Any], kind: np.dtype[Any] | None) -> NDArray[Any]:
    """Return an output in its declared type, which Python arithmetic may have changed, as bits."""
    if kind is not None and array.dtype.kind not in "OSU" and kind.kind != "O":
        array = array.astype(kind)
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array
