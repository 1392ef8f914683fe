"""Compares the distributions of outputs that differ between runs, as with dropout or sampling. Pure.

Whether an output varies is determined with the source on ONNX Runtime's CPU provider. The lowest
and highest values of some statistics over R runs are stored. A run of the served model is accepted
if all its statistics are in these ranges, widened by their own width and by the tolerance of the
precision. Otherwise the model is run again, and it is rejected only if the same statistic is beyond
the same end in all of m runs. For equal distributions the probability of that is at most 1 / C(R +
m, m) for each end of each statistic, for any distribution: it is the probability that the m
largest of R + m exchangeable numbers are those of the served model. With R = 32, m = 8, two ends of
15 statistics and the test for repetition: 31 / C(40, 8) = 4.1e-7.

Not detected: another distribution whose statistics are all in the widened ranges; if the source
itself repeats values (a single Bernoulli number), a constant that is one of them; and for a single
number, values that are beyond its range only in some runs.
"""

import hashlib
import math
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from enginewright_contract.manifest import Spread
from numpy.typing import NDArray

from enginewright_runtime.proof.parity.fills import Fill, find_fill
from enginewright_runtime.proof.parity.tolerances import Tolerance
from enginewright_runtime.proof.parity.values import Array, dtype_of, kind_of, pieces, wide

REFERENCE_RUNS: Final = 32
FEWEST_RUNS: Final = 8  # of the reference: with fewer a check would need too many runs
_FALSE_ALARMS: Final = 1e-6  # highest probability per check
_MOST_VALUES: Final = 1 << 18  # elements of an output, evenly spaced, in its statistics
_QUANTILES: Final = {"q05": 0.05, "q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95}
_INFINITIES: Final = {
    "positive-infinity": "share of +infinity",
    "negative-infinity": "share of -infinity",
}
_SHARES: Final = {
    "nan": "share of NaN",
    **_INFINITIES,
    "zero": "share of zeros",
}
_VALUES: Final = {
    "mean": "mean",
    "deviation": "standard deviation",
    "min": "least value",
    "max": "largest value",
    "magnitude": "largest magnitude",
    **{name: f"{share:.0%} quantile" for name, share in _QUANTILES.items()},
}
_COSINE: Final = "cosine"
_NAMES: Final = _SHARES | _VALUES | {_COSINE: "cosine similarity with the golden run"}
_TESTS: Final = 2 * len(_NAMES) + 1  # ends of the ranges, and repetition

_Floats = NDArray[np.float64]
_End = tuple[str, int]  # a statistic, and the end of its range beyond which a run lies


def confirmations(runs: int) -> int:
    """Return in how many runs an output must be outside the ranges of `runs` reference runs."""
    count = 1
    while _TESTS / math.comb(runs + count, count) >= _FALSE_ALARMS:
        count += 1
    return count


def statistics(array: Array, golden: Array, dtype: str | None, fill: Fill) -> dict[str, float]:
    """Return the statistics of one run, with the cosine to `golden` if the shapes agree; `fill` counts as infinity."""
    kind = kind_of(array, dtype)
    if kind in {"string", "other"} or not array.size:
        return {}
    named = dtype_of(array, dtype)
    figures = _shares(array, named, fill)
    values = fill.hide(wide(_some(array), named))
    finite = values[np.isfinite(values)]
    if finite.size:
        low, high = float(finite.min()), float(finite.max())
        scale = max(abs(low), abs(high)) or 1.0  # so that squares do not overflow
        figures |= {
            "mean": scale * float((finite / scale).mean()),
            "deviation": scale * float((finite / scale).std()),
            "min": low,
            "max": high,
            "magnitude": max(abs(low), abs(high)),
        }
        quantiles = np.quantile(finite, list(_QUANTILES.values()))
        figures |= dict(zip(_QUANTILES, map(float, quantiles), strict=True))
    if array.shape == golden.shape:
        cosine = _cosine(fill.hide(wide(_some(golden), named)), values)
        figures |= {} if cosine is None else {_COSINE: cosine}
    return {name: value for name, value in figures.items() if math.isfinite(value)}


@dataclass
class SpreadBuilder:
    """Collects runs of the reference, one at a time."""

    sample: str
    golden: Array  # the stored run, which is not one of those that are counted
    dtype: str | None
    _digests: list[bytes] = field(default_factory=list)
    _shapes: list[tuple[int, ...]] = field(default_factory=list)
    _runs: list[dict[str, float]] = field(default_factory=list)

    def add(self, array: Array) -> None:
        """Add one run."""
        self._shapes.append(array.shape)
        self._digests.append(_digest(array))
        fill = find_fill(self.golden, self.dtype)
        self._runs.append(statistics(array, self.golden, self.dtype, fill))

    def spread(self) -> Spread | None:
        """Return the spread, unless there were too few runs, or their ranks differ."""
        shapes = {self.golden.shape, *self._shapes}
        ranks = {len(shape) for shape in shapes}
        if len(self._runs) < FEWEST_RUNS or len(ranks) > 1:
            return None
        common = set.intersection(*(set(run) for run in self._runs))
        return Spread(
            sample=self.sample,
            runs=len(self._runs),
            shape=tuple(
                sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True)
            ),
            distinct=len(set(self._digests)) == len(self._digests),
            ranges={
                name: (
                    min(run[name] for run in self._runs),
                    max(run[name] for run in self._runs),
                )
                for name in _NAMES
                if name in common
            },
        )


class Repetition:
    """Counts consecutive runs with identical values."""

    def __init__(self) -> None:
        self._last: bytes | None = None
        self.streak = 0

    def take(self, array: Array) -> None:
        """Add one run."""
        digest = _digest(array)
        self.streak = self.streak + 1 if digest == self._last else 1
        self._last = digest


class DistributionTest:
    """Judges runs of the served model on one golden sample, for one varying output."""

    def __init__(
        self,
        spread: Spread,
        golden: Array,
        allowed: Tolerance,
        dtype: str | None,
        repetition: Repetition | None = None,
    ) -> None:
        """Without the `repetition` that trials of a sample share, a trial must show that runs differ."""
        self._spread = spread
        self._golden = golden
        self._dtype = dtype
        fill = find_fill(golden, dtype)
        # earlier versions counted fills as values
        self._fill = fill if _has_infinity(spread) else Fill()
        self._bounds = _bounds(spread, golden, allowed, dtype, self._fill)
        self._eager = repetition is None
        self._repetition = repetition or Repetition()
        self._beyond: set[_End] | None = None
        self._needed = confirmations(spread.runs)
        self.runs = 0
        self.wrong: str | None = None  # a description that follows the output's name

    def take(self, array: Array) -> bool:
        """Judge one run of the right type and shape; return whether another one is needed."""
        self.runs += 1
        self._repetition.take(array)
        figures = statistics(array, self._golden, self._dtype, self._fill)
        beyond = {
            end
            for name, bounds in self._bounds.items()
            if (end := _beyond(name, figures.get(name), bounds))
        }
        self._beyond = beyond if self._beyond is None else self._beyond & beyond
        if self._beyond:
            if self.runs < self._needed:
                return True
            self.wrong = self._outside(min(self._beyond), figures)
            return False
        return self._repeats()

    def _repeats(self) -> bool:
        if not self._spread.distinct:
            return False
        streak = self._repetition.streak
        if streak > self._needed:
            self.wrong = (
                f"has the same values in {streak} runs, but the source's differ in every run"
            )
            return False
        return self._eager and streak == self.runs

    def _outside(self, end: _End, figures: dict[str, float]) -> str:
        name = end[0]
        low, high = self._spread.ranges[name]
        last = f"{figures[name]:.4g}" if name in figures else "not a number"
        return (
            f"has another distribution than the source's: in each of {self.runs} runs its"
            f" {_NAMES[name]} is {'above' if end[1] > 0 else 'below'} the allowed range, in the"
            f" last one {last}; over {self._spread.runs} runs of the source it"
            f" is {low:.4g} to {high:.4g}"
        )


def _bounds(
    spread: Spread, golden: Array, allowed: Tolerance, dtype: str | None, fill: Fill
) -> dict[str, tuple[float, float]]:
    values = statistics(golden, golden, dtype, fill)
    largest = values.get("magnitude", 0.0)
    bounds = {}
    for name, (low, high) in spread.ranges.items():
        slack = high - low
        if name in _VALUES:
            slack += allowed.rtol * max(abs(low), abs(high))
            slack += max(allowed.atol, allowed.scale * largest)
        elif name == "zero":  # small values round to zero in a lower precision
            slack += allowed.outliers
        elif name == _COSINE:
            slack += 1 - (allowed.cosine or 1.0)
        if name in _NAMES:  # a later version may have stored others
            bounds[name] = (low - slack, high + slack)
    return bounds


def _beyond(name: str, value: float | None, bounds: tuple[float, float]) -> _End | None:
    # every run of the source has a finite value
    if value is None or value < bounds[0]:
        return name, -1
    return (name, 1) if value > bounds[1] else None


def _has_infinity(spread: Spread) -> bool:
    return any(spread.ranges.get(name, (0.0, 0.0))[1] > 0 for name in _INFINITIES)


def _shares(array: Array, dtype: str, fill: Fill) -> dict[str, float]:
    counts = dict.fromkeys(_SHARES, 0)
    for numbers in pieces(array, dtype):
        piece = fill.hide(numbers)
        counts["zero"] += int(np.count_nonzero(piece == 0))
        if not np.isfinite(piece).all():
            counts["nan"] += int(np.count_nonzero(np.isnan(piece)))
            counts["positive-infinity"] += int(np.count_nonzero(np.isposinf(piece)))
            counts["negative-infinity"] += int(np.count_nonzero(np.isneginf(piece)))
    return {name: count / array.size for name, count in counts.items()}


def _some(array: Array) -> Array:
    flat = array.reshape(-1)
    return flat[:: -(-flat.size // _MOST_VALUES)]


def _cosine(one: _Floats, other: _Floats) -> float | None:
    both = np.isfinite(one) & np.isfinite(other)
    first, second = one[both], other[both]
    if first.size <= 1:
        return None
    first, second = (array / (np.abs(array).max() or 1.0) for array in (first, second))
    length = math.sqrt(float(first @ first) * float(second @ second))
    return float(first @ second) / length if length else 0.0


def _digest(array: NDArray[Any]) -> bytes:
    if array.dtype.kind == "O":
        return hashlib.blake2b(repr(array.tolist()).encode()).digest()
    return hashlib.blake2b(np.ascontiguousarray(array).view(np.uint8).data).digest()
