"""Runs the emulation of a precision on the golden samples, and stores what is expected of the outputs' parts.

A failure here never fails a stage: where the error of rounding is not known it is infinite, so that no part
fails for it.
"""

import logging
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import onnxruntime as ort
from enginewright_contract.reasons import Reason

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.core.limits import memory_of_child
from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.core.time_limit import TimeLimit
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.storage import save
from enginewright_runtime.proof.golden_run import INPUTS, OUTPUTS, run_sample
from enginewright_runtime.proof.parity.axes import select_axes
from enginewright_runtime.proof.parity.comparison import scales_of
from enginewright_runtime.proof.parity.fills import find_fill
from enginewright_runtime.proof.parity.parts import PARTS, write_parts
from enginewright_runtime.proof.parity.parts_builder import PartsBuilder
from enginewright_runtime.proof.parity.tolerances import Tolerances
from enginewright_runtime.proof.parity.values import Array, dtype_of, pieces
from enginewright_runtime.proof.rounding.emulation import emulate_rounding
from enginewright_runtime.proof.rounding.formulas import INT8_LARGEST
from enginewright_runtime.session.arrays import Arrays, read_arrays
from enginewright_runtime.session.optimization import LOWEST
from enginewright_runtime.session.reference import allow_unreleased, load_reference
from enginewright_runtime.session.runner import Runner
from enginewright_runtime.session.signature import read_signature

_log: Final = logging.getLogger(__name__)
_RUN_SECONDS: Final = 300.0  # of `TimeLimit`, from which on no further sample is emulated
_SECONDS: Final = 900.0  # for all samples; an emulated run takes several times a usual one's time

Run = Callable[[Arrays], Arrays]


def try_measuring(model: Path, folder: Path, precision: str, varying: frozenset[str]) -> str | None:
    """Run `measure_parts` in a child process; if it ends without a result, write infinite errors and return why."""
    doing = f"emulating the rounding of {precision}"
    limits = Limits(_SECONDS, memory_of_child())
    _log.info("%s", doing)
    try:
        return Call(measure_parts, doing, limits).run(model, folder, precision, varying)
    except StageFailure as failure:
        if failure.reason is Reason.STORAGE_FULL:
            raise  # unrelated to the model, and may be transient
        Call(write_unmeasured, doing, limits).run(model, folder, varying)
        return failure.cause


def measure_parts(model: Path, folder: Path, precision: str, varying: frozenset[str]) -> str | None:
    """Write parts.npz for inputs.npz and outputs.npz; return why an error of rounding is not known, if so.

    `model` is the source as ONNX Runtime's CPU provider runs it, in a writable folder: of one in BF16
    the widened copy. `varying` are the outputs that differ between runs, which have no parts. Called in
    a child process.
    """
    try:
        run = _load(model, precision)
    except Exception as error:  # noqa: BLE001 - of ONNX's inliner and ONNX Runtime, which have no common class
        write_unmeasured(model, folder, varying)
        return plain(str(error))
    return _write(model, folder, Tolerances(precision), varying, run)


def write_unmeasured(model: Path, folder: Path, varying: frozenset[str]) -> None:
    """Write parts.npz with infinite errors. Called in a child process, as outputs may be large."""
    _write(model, folder, Tolerances(), varying, None)


def write_emulated(
    model: Path,
    precision: str,
    out: Path,
    largest_weight: float = INT8_LARGEST,
    rest: str | None = None,
) -> str | None:
    """Write the emulation of a model as `out`, beside its weights; return why there is none. Called in a child process."""
    try:
        proto = graphs.parse(model)
        save(emulate_rounding(proto, precision, model.parent, largest_weight, rest), out)
    except StageFailure as failure:
        return failure.cause
    except Exception as error:  # noqa: BLE001 - of ONNX's inliner, which has no class for them
        return plain(str(error))
    return None


def _load(model: Path, precision: str) -> Run:
    allow_unreleased()
    options = ort.SessionOptions()
    options.enable_cpu_mem_arena = False  # which never releases the memory of a run
    with tempfile.NamedTemporaryFile(
        prefix=".emulated-", suffix=".onnx", dir=model.parent
    ) as beside:
        # so the protobuf, which may hold all weights, is gone when the session reads them
        save(emulate_rounding(graphs.parse(model), precision, model.parent), Path(beside.name))
        # without optimizations, which keep folded copies of all weights
        session = load_reference(Path(beside.name), LOWEST, options, extensions_of=model)
    signature = read_signature(session.get_inputs(), session.get_outputs(), ())
    return partial(run_sample, Runner(session, signature), signature)


def _write(
    model: Path,
    folder: Path,
    tolerances: Tolerances,
    varying: frozenset[str],
    run: Run | None,
) -> str | None:
    proto = graphs.parse(model)
    specs = [spec for spec in graphs.outputs_of(proto) if spec.name not in varying]
    dtypes = {spec.name: spec.dtype for spec in specs}
    expected = read_arrays(folder / OUTPUTS)
    inputs = read_arrays(folder / INPUTS)
    axes = select_axes(graphs.inputs_of(proto), specs, next(iter(inputs.values()), {}), expected)
    builder = PartsBuilder(axes, dtypes, tolerances, scales_of(expected, dtypes))
    causes: list[str] = []
    limit = TimeLimit(_RUN_SECONDS)
    for sample, arrays in expected.items():
        emulated: Arrays | None = None
        if run is not None and limit.over():
            causes.append(f"sample {sample!r} was not emulated within {_RUN_SECONDS:.0f} s")
        elif run is not None:
            try:
                emulated = run(inputs[sample])
            except Exception as error:  # noqa: BLE001 - ONNX Runtime's exceptions have no common class
                causes.append(f"sample {sample!r} is refused: {plain(str(error))}")
            else:
                causes += [
                    f"output {name!r} of sample {sample!r} {why}"
                    for name, why in _find_strange(axes, arrays, emulated, dtypes).items()
                ]
        builder.add(arrays, emulated)
    write_parts(folder / PARTS, builder.build())
    return causes[0] if causes else None


def _find_strange(
    names: Iterable[str],
    expected: Arrays,
    emulated: Arrays,
    dtypes: Mapping[str, str],
) -> dict[str, str]:
    """Return the outputs with differences that are not rounding, and what they have: of those the error is infinite."""
    strange: dict[str, str] = {}
    for name in names:
        want, have = expected[name], emulated[name]
        if want.shape != have.shape:
            strange[name] = f"has shape {list(have.shape)} instead of {list(want.shape)}"
        elif _loses_values(want, have, dtypes[name]):
            strange[name] = "has NaN or infinity where the source has not"
    return strange


def _loses_values(want: Array, have: Array, dtype: str) -> bool:
    fill = find_fill(want, dtype)
    pairs = zip(
        pieces(want, dtype_of(want, dtype)), pieces(have, dtype_of(have, dtype)), strict=True
    )
    both = (fill.hide_both(*pair) for pair in pairs)
    return any(bool(np.any(np.isfinite(one) & ~np.isfinite(other))) for one, other in both)
