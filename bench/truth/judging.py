"""Judges the lies about one model, and the artefacts that may serve instead of it, in a process of its own.

Run as a program with the name of a case, a folder, a number of slices, and "constants" if others are to be
tried too, it writes `judged.json` there.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from enginewright_contract.manifest import TensorSpec
from enginewright_runtime.proof.parity.axes import select_axes
from enginewright_runtime.proof.parity.comparison import scales_of
from enginewright_runtime.proof.parity.part_sums import WHOLE, measure_errors, pool_rms
from enginewright_runtime.proof.parity.parts import Parts
from enginewright_runtime.proof.parity.parts_builder import PartsBuilder
from enginewright_runtime.proof.parity.parts_judge import PartsJudge
from enginewright_runtime.proof.parity.tolerances import DEFAULTS, Tolerances
from numpy.typing import NDArray

from bench.truth import cases, lies, peer
from bench.truth.cases import Case, Feeds, Outputs
from bench.truth.comparators import PRECISIONS, Ours, judge_by_rules
from bench.truth.results import CaseResult, Constants, JudgedLie, JudgedVariant, Spreads
from bench.truth.tasks import HONEST
from bench.truth.variants import EMULATED, Variant, make_variants

Array = NDArray[Any]
Samples = Mapping[str, list[Array]]  # float outputs, by sample

# constants of the rule on parts that are tried beside those of the product
SHARES: Final = (0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
RATIOS: Final = (2.0, 3.0, 4.0, 6.0)
_RATIO: Final = 3.0  # the product's
CONSTANTS: Final = "constants"  # the argument
_QUANTILES: Final = (0.5, 0.9, 0.99, 1.0)
_LARGEST: Final = 1e30  # of a rounding error that is not known
_TYPES: Final = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(double)": "float64"}


def judge_case(case: Case, folder: Path, most: int, *, constants: bool) -> CaseResult:
    """Make the artefacts, decide which are honest, and have all comparators judge them and the lies."""
    began = time.monotonic()
    session = cases.load(case.model)
    everything = cases.run_all(session, case)
    result, source = case.decode(everything), everything[: len(case.feeds)]
    variants = list(make_variants(case, folder))
    rows = [_weigh(case, result, variant) for variant in variants]
    made = time.monotonic()
    right = _select_floats(source)
    parts = _build_parts(session, case.feeds, source, variants)
    told = [
        lie
        for output, arrays in right.items()
        for lie in lies.plan(output, arrays, _find_moving(parts["FP32"], output), most)
    ]
    ours = Ours(parts)
    judged = [_judge_lie(lie, right[lie.output], ours) for lie in told]
    honest = {
        index: _select_floats(variant.outputs[: len(source)])
        for index, (row, variant) in enumerate(zip(rows, variants, strict=True))
        if row.honest
    }
    for index, have in honest.items():
        _judge_variant(rows[index], right, have, ours, constants=constants)
    mine = time.monotonic()
    for name, verdicts in peer.judge(folder, right, told, honest).items():
        for item, rung in zip(judged, verdicts.lies, strict=True):
            item.rungs[name] = rung
        for index, rung in verdicts.variants.items():
            rows[index].rungs[name] = rung
    return CaseResult(
        case.name,
        case.kind,
        case.file,
        len(case.feeds),
        judged,
        rows,
        {precision: _count_parts(parts[precision], precision) for precision in PRECISIONS},
        {"making": made - began, "judging": mine - made, "peers": time.monotonic() - mine},
    )


def _weigh(case: Case, result: Sequence[Any], variant: Variant) -> JudgedVariant:
    """Return whether an artefact's results are the source's, before anything compares its tensors."""
    if variant.refused:
        return JudgedVariant(variant.name, variant.precision, refused=variant.refused)
    try:
        share = float(case.compare(result, case.decode(variant.outputs)))
    except (ValueError, IndexError, OverflowError) as error:
        refused = f"its outputs mean nothing: {error}"
        return JudgedVariant(variant.name, variant.precision, refused=refused)
    return JudgedVariant(variant.name, variant.precision, share=share, honest=share >= HONEST)


def _select_floats(samples: Sequence[Outputs]) -> dict[str, list[Array]]:
    return {
        name: [outputs[name] for outputs in samples]
        for name, array in samples[0].items()
        if array.dtype.kind == "f"
    }


def _build_parts(
    session: ort.InferenceSession,
    feeds: Sequence[Feeds],
    source: Sequence[Outputs],
    variants: Sequence[Variant],
) -> dict[str, Parts]:
    inputs, outputs = (
        [
            TensorSpec(name=item.name, dtype=_TYPES.get(item.type, item.type), shape=item.shape)
            for item in items
        ]
        for items in (session.get_inputs(), session.get_outputs())
    )
    expected = {str(index): item for index, item in enumerate(source)}
    axes = select_axes(inputs, outputs, feeds[0], expected)
    emulated = {item.precision: item.outputs for item in variants if item.name == EMULATED}
    parts = {}
    for precision in PRECISIONS:
        dtypes = {item.name: item.dtype for item in outputs}
        builder = PartsBuilder(axes, dtypes, Tolerances(precision), scales_of(expected, dtypes))
        for right, have, of_sample in zip_longest(
            source, emulated[precision][: len(source)], feeds
        ):
            builder.add(right, have, of_sample)
        parts[precision] = builder.build()
    return parts


def _find_moving(parts: Parts, output: str) -> list[tuple[int, list[int]]]:
    return [
        (item.axis, [int(index) for index in moving])
        for item in parts.get(output, ())
        if item.axis != WHOLE and len(moving := np.flatnonzero(item.spread > 0))
    ]


def _judge_lie(lie: lies.Lie, right: list[Array], ours: Ours) -> JudgedLie:
    wrong = lies.tell(lie, right)
    assert wrong is not None  # noqa: S101 - as planned
    verdicts: dict[str, tuple[str, str, str]] = {
        precision: ours.judge(lie.output, right, wrong, precision, (lie.axis, lie.index))
        for precision in PRECISIONS
    }
    rounding = {
        precision: float(item.error[lie.index] / item.spread[lie.index])
        for precision, parts in ours.parts.items()
        for item in parts.get(lie.output, ())
        if item.axis == lie.axis
    }
    return JudgedLie(lie, verdicts, judge_by_rules(right, wrong), rounding)


def _judge_variant(
    row: JudgedVariant, right: Samples, have: Samples, ours: Ours, *, constants: bool
) -> None:
    """Add what the comparators say to a row."""
    row.verdicts = {
        output: ours.judge(output, arrays, have[output], row.precision)
        for output, arrays in right.items()
    }
    rules = [judge_by_rules(arrays, have[output]) for output, arrays in right.items()]
    row.rungs = {name: max(item[name] for item in rules) for name in rules[0]}
    parts = ours.parts[row.precision]
    same = {
        output: arrays
        for output, arrays in right.items()
        if [item.shape for item in arrays] == [item.shape for item in have[output]]
    }
    row.parts = sum(len(item.spread) for output in same for item in parts.get(output, ()))
    row.spreads = [
        item
        for output, arrays in same.items()
        for item in _measure_spreads(parts, output, arrays, have[output])
    ]
    own = DEFAULTS[row.precision].part or 0.0
    row.unknown = _try_constants(parts, same, have, row.precision, (_RATIO,), (own,))[0].unknown
    if constants:
        row.constants = _try_constants(parts, same, have, row.precision, RATIOS, SHARES)


def _measure_spreads(
    parts: Parts, output: str, right: list[Array], have: list[Array]
) -> list[Spreads]:
    measured = []
    for item in parts.get(output, ()):
        moving = item.spread > 0
        if not moving.any():
            continue
        errors = pool_rms(
            [
                measure_errors(one, other, item.axis, one.dtype.name)
                for one, other in zip(right, have, strict=True)
            ]
        )
        shares = (
            np.minimum(values[moving], _LARGEST) / item.spread[moving]
            for values in (errors, item.error)
        )
        own, rounding = (
            [float(value) for value in np.quantile(share, _QUANTILES)] for share in shares
        )
        measured.append(Spreads(output, item.axis, int(moving.sum()), len(moving), own, rounding))
    return measured


def _try_constants(
    parts: Parts,
    right: Samples,
    have: Samples,
    precision: str,
    ratios: Sequence[float],
    shares: Sequence[float],
) -> list[Constants]:
    """Return what these constants say: another ratio is the product's on a scaled error of rounding."""
    tried = []
    for ratio in ratios:
        judge = PartsJudge(
            {
                output: tuple(replace(item, error=item.error * ratio / _RATIO) for item in items)
                for output, items in parts.items()
            }
        )
        for output, arrays in right.items():
            for number, (one, other) in enumerate(zip(arrays, have[output], strict=True)):
                judge.add(str(number), output, one, other, one.dtype.name)
        for share in shares:
            allowed = replace(DEFAULTS[precision], part=share)
            fails = any(judge.find_fault(output, allowed) is not None for output in right)
            unjudged = [item for output in right for item in judge.find_unjudged(output, allowed)]
            tried.append(
                Constants(share, ratio, fails=fails, unknown=sum(item.count for item in unjudged))
            )
    return tried


def _count_parts(parts: Parts, precision: str) -> dict[str, int]:
    """Count the parts: all, those that move, and of those the ones whose rounding is too coarse for a judgement."""
    counts = {"all": 0, "moving": 0, "coarse": 0}
    share = DEFAULTS[precision].part or 0.0
    for items in parts.values():
        for item in items:
            moving = item.spread > 0
            counts["all"] += len(moving)
            counts["moving"] += int(moving.sum())
            counts["coarse"] += int((moving & (_RATIO * item.error > share * item.spread)).sum())
    return counts


def main() -> None:
    """Judge one case."""
    name, folder, most = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    constants = sys.argv[4:] == [CONSTANTS]
    folder.mkdir(parents=True, exist_ok=True)
    result = judge_case(cases.build(name, folder), folder, most, constants=constants)
    (folder / "judged.json").write_text(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
