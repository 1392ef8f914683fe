"""Comparators of outputs: ours, and rules that other tools apply to arrays. Each judges one output over all samples.

Ours says that it agrees, fails, or is unknown. A peer has a tolerance that its user chooses, and so a ladder:
tolerances from its default to ones that allow nearly anything. Its verdict is the first rung at which it
agrees, so that one run tells its power at every tolerance, and at the one that suits it best.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from enginewright_runtime.proof.parity.measuring import (
    Figures,
    fault,
    fault_over_samples,
    form_fault,
    largest_of,
    measure,
)
from enginewright_runtime.proof.parity.parts import AxisParts, Parts
from enginewright_runtime.proof.parity.parts_judge import PartsJudge
from enginewright_runtime.proof.parity.tolerances import DEFAULTS, Tolerance
from numpy.typing import NDArray

from bench.truth.ladder import RUNGS, find_rung
from bench.truth.lies import WHOLE

Array = NDArray[Any]
Arrays = Sequence[Array]  # one output, by sample
Verdict = Literal["agrees", "fails", "unknown"]
PRECISIONS: Final = ("FP32", "FP16", "BF16", "INT8", "FP8")

OURS: Final = "Enginewright"
WHOLES: Final = "Enginewright, whole outputs alone"
PARTS: Final = "Enginewright, parts alone"
POLYGRAPHY: Final = "Polygraphy"
ALLCLOSE: Final = "assert_allclose"
OLIVE: Final = "Olive's rule"
TOP1: Final = "top1"  # the figure of the top class
PEERS: Final = (POLYGRAPHY, ALLCLOSE, OLIVE)


class Verdicts(NamedTuple):
    """What we say of an output as a whole, and of its parts: the worst of them counts."""

    whole: Verdict
    parts: Verdict
    figure: str  # by which the whole fails


@dataclass(frozen=True)
class Ours:
    """The product's rule."""

    parts: Mapping[str, Parts]  # by precision

    def judge(
        self,
        output: str,
        want: Arrays,
        have: Arrays,
        precision: str,
        focus: tuple[int, int] | None = None,
    ) -> Verdicts:
        """Return whether an artefact of this precision may have these outputs.

        It is unknown if a part is not judged, or, with a `focus` (axis and index), if that part is not.
        """
        parts, allowed = self.parts[precision], DEFAULTS[precision]
        figure = _find_figure(want, have, PartsJudge(parts).fit(output, want[0].ndim, allowed))
        whole: Verdict = "fails" if figure else "agrees"
        if any(one.shape != other.shape for one, other in zip(want, have, strict=True)):
            return Verdicts(whole, whole, figure)
        judge = _judge_parts(parts, output, want, have)
        if judge.find_fault(output, allowed):
            return Verdicts(whole, "fails", figure)
        if focus is not None and focus[0] != WHOLE:
            axis, index = focus
            judge = _judge_parts(
                {output: (_select(parts, output, axis, index),)},
                output,
                *([np.take(array, [index], axis) for array in arrays] for arrays in (want, have)),
            )
        unjudged = judge.find_unjudged(output, allowed)
        return Verdicts(whole, "unknown" if unjudged else "agrees", figure)


def _find_figure(want: Arrays, have: Arrays, allowed: Tolerance) -> str:
    """Return the figure by which the whole fails, that of the top class only if there is no other."""
    largest = max((largest_of(array, None) for array in want), default=0.0)
    figures: list[Figures] = []
    for one, other in zip(want, have, strict=True):
        if wrong := form_fault(one, other, None):
            return wrong.figure
        figures.append(measure(one, other, allowed, None, largest))
    faults = [*(fault(item, allowed) for item in figures), fault_over_samples(figures, allowed)]
    failing = [item.figure for item in faults if item is not None]
    return next((figure for figure in failing if figure != TOP1), failing[0] if failing else "")


def _judge_parts(parts: Parts, output: str, want: Arrays, have: Arrays) -> PartsJudge:
    judge = PartsJudge(parts)
    for number, (one, other) in enumerate(zip(want, have, strict=True)):
        judge.add(str(number), output, one, other, one.dtype.name)
    return judge


def _select(parts: Parts, output: str, axis: int, index: int) -> AxisParts:
    """Return what is expected of a single part of an output without faults: it agrees, or is not judged."""
    whole = next(item for item in parts[output] if item.axis == axis)
    part = slice(index, index + 1)
    return AxisParts(
        axis=axis,
        magnitude=whole.magnitude[part],
        spread=whole.spread[part],
        error=np.full(1, np.inf),
        count=whole.count[part],
        names=whole.names[part],
        bound=whole.bound[part],
    )


def judge_by_rules(want: Arrays, have: Arrays) -> dict[str, int]:
    """Return the rungs of the peers whose rules are formulas: NumPy's and Olive's.

    NumPy: rtol 1e-3 and atol 1e-5 on the first rung. Olive's OnnxDiscrepancyCheck bounds the largest absolute
    error by `max_mae`, which has no default; here 0.01, the finer of the two sizes that it counts. The pass
    itself compares language models with their PyTorch source only.
    """
    return {
        ALLCLOSE: _find_rung(
            want, have, lambda one, error: np.max(error / (1e-5 + 1e-3 * np.abs(one)), initial=0)
        ),
        OLIVE: _find_rung(want, have, lambda _, error: np.max(error, initial=0) / 0.01),
    }


def _find_rung(want: Arrays, have: Arrays, measure: Callable[[Array, Array], float]) -> int:
    factor = 0.0
    for one, other in zip(want, have, strict=True):
        if one.shape != other.shape or not np.array_equal(np.isfinite(one), np.isfinite(other)):
            return RUNGS
        finite = np.isfinite(one)
        right, wrong = (array[finite].astype(np.float64) for array in (one, other))
        factor = max(factor, float(measure(right, np.abs(wrong - right))))
    return find_rung(factor)
