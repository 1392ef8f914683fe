"""How much slower one revision is, with its uncertainty.

Measurements come as medians of ten consecutive ones, which single stalls do not move: where 5% are
outliers, five of ten are in 1 of 15,000 windows. The logarithms of the medians are compared:

- **Pairs in time.** The observation is divided into slices with windows of both revisions. Within a
  slice their means are subtracted, so that load that slows both cancels.
- **Winsorized mean** of the differences: a slice counts at most three robust standard deviations from
  the median (Huber, Robust Statistics, 1981, on scale by the median absolute deviation).
- **Autocorrelation.** Neighbouring slices are alike, so the variance of the mean is multiplied by
  (1 + r) / (1 - r), with r the lag-1 autocorrelation (Bayley and Hammersley, Supplement to the Journal of
  the Royal Statistical Society 8, 1946). As r of few slices says little, it is drawn to 0.15, which
  medians of ten have where single measurements have 0.7.
- **Moderated t.** A handful of slices can agree by chance, so a small variance is drawn to a usual
  one, which counts as six slices (Smyth, Statistical Applications in Genetics and Molecular Biology 3, 2004).
- **Two modes.** Where a series has two modes, such as clocks of the device, few slices of one revision
  can all be in one and those of the other in the other. So what a rank test could show at most bounds
  the p-value (Mann and Whitney, Annals of Mathematical Statistics 18, 1947), unless the ratio is beyond
  what modes explain.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import comb, exp, log, sqrt
from statistics import fmean, median
from typing import Final, TypeAlias

from enginewright.analysis.student import upper_tail

Windows: TypeAlias = Sequence[tuple[float, float]]  # Unix time, logarithm of seconds; oldest first

_USUAL_VARIANCE: Final = 2 * 0.2**2  # of a difference of two logarithms
_USUAL_SLICES: Final = 6
_USUAL_CORRELATION: Final = 0.15
_CORRELATION_SLICES: Final = 10
_MAX_CORRELATION: Final = 0.9
_CLIP: Final = 3.0  # robust standard deviations
_GROSS: Final = 10.0  # ratio that modes of one series do not have
_RANKED: Final = 600  # slices; of more, the p-value is 0.0 and the binomial would stall all threads
_MAD_TO_SD: Final = 1.4826  # of a normal distribution


@dataclass(frozen=True)
class Shift:
    """An estimated logarithm of the ratio canary / stable."""

    mean: float
    slices: int
    variance: float  # of `mean`, from the slices alone
    moderated: float  # of `mean`, drawn to the usual one if that is larger

    @property
    def ratio(self) -> float:
        """Return canary / stable."""
        return exp(self.mean)

    def chance_above(self, ratio: float) -> float:
        """Return the p-value of a true ratio of at most `ratio`."""
        t = (self.mean - log(ratio)) / sqrt(self.moderated)
        slices = min(self.slices, _RANKED)
        by_ranks = 0.0 if self.ratio >= _GROSS * ratio else 1 / comb(2 * slices, slices)
        return max(by_ranks, upper_tail(t, self.slices - 1 + _USUAL_SLICES))

    def chance_below(self, ratio: float) -> float:
        """Return the p-value of a true ratio of at least `ratio`, from the slices alone."""
        if self.slices < 2:
            return 1.0
        difference = log(ratio) - self.mean
        if not self.variance:
            return 0.0 if difference > 0 else 1.0
        return upper_tail(difference / sqrt(self.variance), self.slices - 1)


def shift(stable: Windows, canary: Windows) -> Shift | None:
    """Return how much slower `canary` is, if there is a slice with both."""
    differences = _winsorize(_differences(stable, canary))
    count = len(differences)
    if not count:
        return None
    mean = fmean(differences)
    squares = sum((difference - mean) ** 2 for difference in differences)
    factor = _variance_factor(differences, mean, squares) / count
    variance = squares / max(1, count - 1)
    moderated = (squares + _USUAL_SLICES * _USUAL_VARIANCE) / (count - 1 + _USUAL_SLICES)
    return Shift(mean, count, factor * variance, factor * max(variance, moderated))


def _differences(stable: Windows, canary: Windows) -> list[float]:
    differences: list[float] = []
    arms: tuple[list[float], list[float]] = ([], [])
    tagged = sorted(
        (time, arm, value) for arm, row in enumerate((stable, canary)) for time, value in row
    )
    for _, arm, value in tagged:
        arms[arm].append(value)
        if arms[0] and arms[1]:
            differences.append(fmean(arms[1]) - fmean(arms[0]))
            arms = ([], [])
    return differences


def _winsorize(values: list[float]) -> list[float]:
    if not values:
        return []
    middle = median(values)
    deviation = _MAD_TO_SD * median(abs(value - middle) for value in values)
    reach = _CLIP * max(deviation, sqrt(_USUAL_VARIANCE))
    return [min(max(value, middle - reach), middle + reach) for value in values]


def _variance_factor(values: Sequence[float], mean: float, squares: float) -> float:
    products = sum((one - mean) * (next_ - mean) for one, next_ in pairwise(values))
    correlation = products / squares if squares else 0.0
    drawn = correlation * len(values) + _USUAL_CORRELATION * _CORRELATION_SLICES
    r = min(max(drawn / (len(values) + _CORRELATION_SLICES), 0.0), _MAX_CORRELATION)
    return (1 + r) / (1 - r)
