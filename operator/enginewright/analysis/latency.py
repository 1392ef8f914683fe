"""Whether the new revision takes longer in the model: like compared with like, at any number of looks.

Each size class of requests and each golden sample is compared with itself only, so a different mix of
requests cannot look like a regression (Simpson's paradox). Each series has its own test, and all together have
one more, weighted by certainty, as many small amounts of evidence add up. The error probability is divided by
the number of tests (Bonferroni).

A revision fails when its estimated ratio is above the limit *and* a true ratio of 1 is implausible.
At `min_samples`, the first condition decides nearly always; with fewer, or a low limit, the second.

The operator looks at every poll, and repeated looks at a test of 1% fail far more than 1% (Armitage,
McPherson and Rowe, Journal of the Royal Statistical Society A 132, 1969). So data count only up to the
last of the looks at `min_samples` * 2^j measurements, which a comparison without memory finds again
from the counts, and the error probability is spent on them (Lan and DeMets, Biometrika 70, 1983): half of
it at j = 0, and four times less with each look away from it. So early looks find gross regressions only, and
later ones, where the first windows are no longer kept, have next to no error probability left.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, floor, log2
from statistics import median
from typing import Final

from enginewright_contract.measurements import WINDOW, Measurements
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding

from enginewright.analysis.result import AnalysisLimits, AnalysisResult, Figure, State
from enginewright.analysis.series import (
    Arm,
    Key,
    Pair,
    only_other_inputs,
    other_inputs,
    pairs,
    pool,
    requests_of,
)
from enginewright.analysis.shift import Shift, shift

FALSE_FAILURES: Final = 0.01  # probability over all looks, without a change
_SPENT: Final = 0.5  # share of it at `min_samples`
_LESS: Final = 4.0  # times, with each look away from it
_BOUND: Final = 0.05  # error probability of a bound under the limit, which passes early
_NOISE: Final = 5e-4  # seconds: busy processors alone cause such differences
_SHOWN: Final = 5  # names in a note
LEAST: Final = 20  # measurements of each revision


@dataclass(frozen=True)
class _Test:
    name: str
    pair: Pair  # as measured until now
    shift: Shift | None  # at the last look
    state: State


def compare_latency(
    stable: Sequence[Measurements], canary: Sequence[Measurements], limits: AnalysisLimits
) -> AnalysisResult:
    """Compare time in the model."""
    series = pairs(stable, canary)
    notes = _note_left_out(other_inputs(stable, canary))
    requests = requests_of(stable, canary)
    total = Pair(
        pool(pair.stable for pair in series.values()),
        pool(pair.canary for pair in series.values()),
    )
    tests = list(_tests(series, total, limits))
    figures = tuple(_figure(test, limits) for test in tests)
    if findings := tuple(_finding(test, limits) for test in tests if test.state == "failed"):
        return AnalysisResult("failed", findings=findings, figures=figures, notes=notes)
    passed = tests and all(test.state == "passed" for test in tests)
    if total.count >= limits.min_samples or passed:
        basis = _basis(series, requests)
        return AnalysisResult("passed", figures=figures, notes=notes, basis=basis)
    idle = requests < WINDOW
    if not series and notes and idle and only_other_inputs(stable, canary):
        basis = f"{_lacks_requests(requests)}, and {'; '.join(notes)}"
        return AnalysisResult("passed", notes=notes, basis=basis)
    waits_for = _waits_for(series, total, limits)
    if not series and notes:
        waits_for = f"{waits_for} ({'; '.join(notes)})"
    return AnalysisResult("inconclusive", waits_for=waits_for, figures=figures, notes=notes)


def _tests(series: Mapping[Key, Pair], total: Pair, limits: AnalysisLimits) -> Iterator[_Test]:
    number = len(series) + (len(series) > 1)
    if len(series) > 1:
        look = _look(total.count, limits)
        shifts = [_shift(item, _until(total, look)) for item in series.values()]
        slower = _combine([item for item in shifts if item]) if look else None
        yield _Test("all latencies", total, slower, _state(slower, total, look, number, limits))
    for (source, name), pair in series.items():
        what = f"requests of {name} elements" if source == "requests" else f"golden sample {name!r}"
        look = _look(pair.count, limits)
        slower = _shift(pair, _until(pair, look)) if look else None
        yield _Test(f"latency of {what}", pair, slower, _state(slower, pair, look, number, limits))


def _look(count: int, limits: AnalysisLimits) -> int:
    """Return the count of the last look, or 0 before the first."""
    if count < LEAST:
        return 0
    base = max(limits.min_samples, LEAST)
    return max(LEAST, floor(base * 2.0 ** floor(log2(count / base))))


def _until(pair: Pair, look: int) -> float:
    return max(pair.stable.find_time(look), pair.canary.find_time(look))


def _shift(pair: Pair, until: float) -> Shift | None:
    return shift(pair.stable.until(until), pair.canary.until(until))


def _combine(shifts: Sequence[Shift]) -> Shift | None:
    """Return the mean, weighted by the inverse of the variance."""
    if not shifts:
        return None
    weights = [1 / item.moderated for item in shifts]
    total = sum(weights)
    shares = [weight / total for weight in weights]
    return Shift(
        mean=sum(share * item.mean for share, item in zip(shares, shifts, strict=True)),
        slices=sum(item.slices - 1 for item in shifts) + 1,
        variance=sum(share**2 * item.variance for share, item in zip(shares, shifts, strict=True)),
        moderated=1 / total,
    )


def _state(shift: Shift | None, pair: Pair, look: int, tests: int, limits: AnalysisLimits) -> State:
    if shift is None:
        return "inconclusive"
    away = abs(floor(log2(look / max(limits.min_samples, LEAST)) + 1e-9))
    level = FALSE_FAILURES * _SPENT / _LESS**away / tests
    slower = shift.ratio > limits.max_latency_ratio and shift.chance_above(1.0) < level
    if slower and (shift.ratio - 1) * (_seconds(pair.stable) or 0.0) > _NOISE:
        return "failed"
    enough = look >= limits.min_samples
    passed = enough or shift.chance_below(limits.max_latency_ratio) < _BOUND
    return "passed" if passed else "inconclusive"


def _figure(test: _Test, limits: AnalysisLimits) -> Figure:
    return Figure(
        name=test.name,
        unit="seconds",
        stable=_seconds(test.pair.stable),
        canary=_seconds(test.pair.canary),
        ratio=test.shift.ratio if test.shift else None,
        limit=limits.max_latency_ratio,
        stable_samples=test.pair.stable.count,
        canary_samples=test.pair.canary.count,
        state=test.state,
    )


def _seconds(arm: Arm) -> float | None:
    return exp(median(value for _, value in arm.windows)) if arm.windows else None


def _finding(test: _Test, limits: AnalysisLimits) -> Finding:
    ratio = test.shift.ratio if test.shift else float("nan")
    return Finding(
        reason=Reason.SLOWER_THAN_STABLE,
        cause=f"{test.name}: {ratio:.2f} times that of the serving revision,"
        f" limit {limits.max_latency_ratio:g}",
    )


def _note_left_out(names: Sequence[str]) -> tuple[str, ...]:
    """Return a note why golden samples are not compared, if some are left out."""
    if not names:
        return ()
    shown = ", ".join(map(repr, names[:_SHOWN])) + (" and more" if len(names) > _SHOWN else "")
    return (
        f"the inputs of golden samples {shown} have changed, so their latencies are not compared",
    )


def _basis(series: Mapping[Key, Pair], requests: int) -> str:
    counts = {
        what: sum(pair.count for (source, _), pair in series.items() if source == origin)
        for origin, what in (("requests", "requests"), ("golden", "golden inferences"))
    }
    parts = [] if counts["requests"] else [_lacks_requests(requests)]
    if compared := " and ".join(f"{count} {what}" for what, count in counts.items() if count):
        parts.append(f"latency compared by {compared} of each revision")
    return "; ".join(parts)


def _lacks_requests(count: int) -> str:
    """Return why no requests were compared, of `count` that came."""
    if not count:
        return "no requests came"
    if count < WINDOW:
        return f"fewer than {WINDOW} requests came"
    return "no requests that both revisions can be compared by"


def _waits_for(series: Mapping[Key, Pair], total: Pair, limits: AnalysisLimits) -> str:
    if not series:
        return "latency: measurements of the same size or golden sample on both revisions"
    lacks = [
        f"{arm.count} of {limits.min_samples} measurements of the {whose} revision"
        for arm, whose in ((total.stable, "serving"), (total.canary, "new"))
        if arm.count < limits.min_samples
    ]
    return f"latency: {' and '.join(lacks)}"
