"""How far the figures of a whole output fall with the rounding of a precision, and the tolerance that follows. Pure.

The table of tolerances is for usual models. In some, such as detectors in INT8, correct rounding alone costs
more: there, a figure is allowed what the emulation of the precision has, with a margin. It says no more
than that an artefact is no worse than rounding: whether the samples judge it at all, its parts say.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from enginewright_runtime.proof.parity.measuring import Figures
from enginewright_runtime.proof.parity.tolerances import Tolerance

_RATIO: Final = 3.0  # of two errors by rounding, as of parts


@dataclass(frozen=True, slots=True)
class RoundingFigures:
    """Figures of an output with the rounding of a precision, the worst of all samples but for top-1."""

    outside: float = 0.0  # share of the elements outside the tolerance
    largest_error: float = 0.0  # relative to the largest value
    cosine: float = 1.0
    top1: float = 1.0  # share of the rows of all samples with the same top class

    @classmethod
    def of(cls, figures: Sequence[Figures]) -> Self:
        """Return the worst of the samples' figures."""
        numeric = [item for item in figures if item.numeric and item.elements]
        rows = sum(item.rows for item in numeric)
        return cls(
            max((item.outside_share for item in numeric), default=0.0),
            max((item.max_abs_error / (item.largest or 1.0) for item in numeric), default=0.0),
            min((item.cosine for item in numeric if item.cosine is not None), default=1.0),
            sum(item.rows_agreeing for item in numeric) / rows if rows else 1.0,
        )

    def widen(self, allowed: Tolerance) -> Tolerance:
        """Return the tolerance with what rounding costs, where that is more; the user's own is kept."""
        if allowed.part is None:
            return allowed
        return replace(
            allowed,
            # of values that err three times as much, up to nine times as many are beyond a bound (Chebyshev)
            outliers=max(allowed.outliers, min(1.0, _RATIO**2 * self.outside)),
            outlier_size=max(allowed.outlier_size, _RATIO * self.largest_error),
            # 1 - cosine grows with the square of the error
            cosine=None
            if allowed.cosine is None
            else min(allowed.cosine, 1 - _RATIO**2 * (1 - self.cosine)),
            top1=None if allowed.top1 is None else min(allowed.top1, 1 - _RATIO * (1 - self.top1)),
        )
