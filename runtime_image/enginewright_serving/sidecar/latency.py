"""Compares time in the model with the pod's own baseline, for golden inferences and requests. Pure.

Each sample and each size of request is compared only with itself, by medians. Waiting is excluded, so that a
full queue is not mistaken for a slow model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from enginewright_contract.execution import ComputeBucket
from enginewright_contract.reasons import Reason
from enginewright_runtime.core.logs import format_count
from typing_extensions import override

from enginewright_serving.sidecar.checks import CheckResult
from enginewright_serving.sidecar.golden import ProbeResult
from enginewright_serving.sidecar.trend import Trend

_Key = TypeVar("_Key")
_RATIO: Final = 2.2  # of the baseline: finds a slowdown by 3 even if the baseline is 20% too high
FLOOR: Final = 0.001  # seconds: smaller differences of time in the model are noise
_ANSWER_FLOOR: Final = 0.010  # likewise, of end-to-end time
_PROBE_AGE: Final = 300.0  # seconds; older golden inferences are ignored
_LIVE_LEAST: Final = 3  # requests of one size for a measurement
_LIVE_AGE: Final = 90.0  # seconds; older measurements are ignored
# of the best warm-up run; warm-up runs follow each other without pause
_WARMUP_RATIO: Final = 3.0


@dataclass(frozen=True, slots=True)
class Slowness:
    """A latency compared with what is usual; times in seconds."""

    now: float
    usual: float
    limit: float  # of `ratio`
    floor: float  # of the difference: less is noise

    @property
    def ratio(self) -> float:
        """The current latency divided by the usual one."""
        return self.now / self.usual

    @property
    def exceeds(self) -> bool:
        """Whether it is too slow."""
        return self.ratio > self.limit and self.now - self.usual > self.floor

    @property
    def rank(self) -> tuple[bool, float]:
        """Sort key; the worst is the largest."""
        return self.exceeds, self.ratio / self.limit


class _Latency(Generic[_Key]):
    def __init__(self) -> None:
        self._trends: dict[_Key, Trend] = {}

    def restart(self) -> None:
        """Discard the measurements but keep the baselines, which hold for a new server process too."""
        for trend in self._trends.values():
            trend.restart()

    @property
    def lowered(self) -> int:
        """How often a baseline proved too high and was lowered."""
        return sum(trend.lowered for trend in self._trends.values())

    def _current(self, key: _Key, now: float, age: float) -> float | None:
        trend = self._trends.get(key)
        return trend.current(now, age) if trend else None


class ProbeLatency(_Latency[tuple[str, float]]):
    """Latency of golden inferences by sample and floor: in the model, and end to end while the pod is idle.

    The first is reported by the server and not affected by queueing; the second is measured here, and
    covers a server that reports wrongly or not at all.
    """

    def __init__(self) -> None:
        super().__init__()
        self._reports_compute = False  # whether the server reports time in the model

    def add(self, result: ProbeResult, now: float, *, idle: bool) -> None:
        """Record a golden inference that succeeded or timed out; `idle`: without other requests."""
        if result.compute is not None:
            self._reports_compute = True
            self._add(result.sample, FLOOR, result.compute, now)
        if idle or not self._reports_compute:
            floor = _ANSWER_FLOOR if self._reports_compute else FLOOR
            self._add(result.sample, floor, result.seconds, now)

    def _add(self, sample: str, floor: float, seconds: float, now: float) -> None:
        key = sample, floor
        if key not in self._trends:
            self._trends[key] = Trend(first_runs=1)
        self._trends[key].add(seconds, now)

    @property
    def baseline(self) -> float | None:
        """Seconds of the fastest sample that has a baseline."""
        baselines = (trend.baseline for trend in self._trends.values())
        return min((value for value in baselines if value), default=None)

    def current(self, sample: str, now: float) -> float | None:
        """Return the current seconds in the model of `sample`, or None with too few measurements."""
        return self._current((sample, FLOOR), now, _PROBE_AGE)

    def worst(self, now: float) -> Slowness | None:
        """Return the comparison furthest above its baseline, if there is one."""
        return self._worst(lambda trend: trend.current(now, _PROBE_AGE))

    def is_undecided(self, now: float) -> bool:
        """Return whether more measurements are needed soon: no baseline yet, or the last was slow."""
        if self.baseline is None:
            return True
        worst = self._worst(lambda trend: trend.last(now, _PROBE_AGE))
        return worst is not None and worst.exceeds

    def _worst(self, seconds: Callable[[Trend], float | None]) -> Slowness | None:
        comparisons = [
            Slowness(now, trend.baseline, _RATIO, floor)
            for (_, floor), trend in self._trends.items()
            if trend.baseline and (now := seconds(trend)) is not None
        ]
        return max(comparisons, key=lambda comparison: comparison.rank, default=None)

    def outcome(self, now: float) -> CheckResult:
        """Return the check's result for the recent golden inferences."""
        if self.baseline is None:
            return CheckResult.as_unknown("the baseline is being measured")
        worst = self.worst(now)
        if worst is None:
            return CheckResult.as_unknown("too few golden inferences recently")
        usual = f"{worst.limit:g} times the pod's own baseline of {milliseconds(worst.usual)}"
        if worst.exceeds:
            return CheckResult.as_failed(
                Reason.SLOWER_THAN_BASELINE, f"golden inferences take more than {usual}"
            )
        return CheckResult.as_ok(f"golden inferences take no more than {usual}")


class LiveLatency(_Latency[int]):
    """Time in the model of requests by size, compared with the pod's baseline and its best warm-up run."""

    def __init__(self) -> None:
        super().__init__()
        self._warmup: dict[int, float] = {}
        self._before: dict[int, ComputeBucket] = {}

    @override
    def restart(self) -> None:
        self._before.clear()
        self._warmup.clear()
        super().restart()

    def add(self, buckets: Sequence[ComputeBucket], now: float) -> None:
        """Record the server's totals at `now`."""
        current = {bucket.elements: bucket for bucket in buckets}
        if _has_fallen(self._before, current):
            self.restart()  # the server's counters were reset
        is_first = not self._before
        for elements, bucket in current.items():
            if bucket.warmup_seconds:
                self._warmup[elements] = bucket.warmup_seconds
            before = self._before.get(elements)
            if before is None:
                # requests that were counted before the first poll may be old
                before = bucket if is_first else ComputeBucket(elements=elements)
                self._before[elements] = before
            count = bucket.count - before.count
            if count >= _LIVE_LEAST:
                trend = self._trends.setdefault(elements, Trend())
                trend.add((bucket.seconds - before.seconds) / count, now)
                self._before[elements] = bucket

    def current(self, elements: int, now: float) -> float | None:
        """Return the current seconds of requests of a size, or None with too few recent ones."""
        return self._current(elements, now, _LIVE_AGE)

    def worst(self, now: float) -> Slowness | None:
        """Return the comparison furthest above its limit, if there is one."""
        worst = self._compare(now)
        return worst[1] if worst else None

    def outcome(self, now: float) -> CheckResult:
        """Return the check's result for the recent requests."""
        worst = self._compare(now)
        if worst is None:
            return CheckResult.as_unknown("too few requests of one size recently")
        size, slowness, usual = worst
        if slowness.exceeds:
            return CheckResult.as_failed(
                Reason.SLOWER_THAN_BASELINE,
                f"requests of up to {format_count(size, 'element')} spend more than {slowness.limit:g} times"
                f" {usual} of {milliseconds(slowness.usual)} in the model",
            )
        return CheckResult.as_ok("requests spend about as much time in the model as usual")

    def _compare(self, now: float) -> tuple[int, Slowness, str] | None:
        """Return the comparison furthest above its limit: size, comparison, what it is compared with."""
        rows: list[tuple[int, Slowness, str]] = []
        for size, trend in self._trends.items():
            current = self.current(size, now)
            for usual, limit, name in (
                (self._warmup.get(size), _WARMUP_RATIO, "the best warm-up run"),
                (trend.baseline, _RATIO, "the pod's own baseline"),
            ):
                if current is not None and usual:
                    rows.append((size, Slowness(current, usual, limit, FLOOR), name))
        return max(rows, key=lambda row: row[1].rank, default=None)


def _has_fallen(before: dict[int, ComputeBucket], after: dict[int, ComputeBucket]) -> bool:
    return any(
        elements not in after or after[elements].count < bucket.count
        for elements, bucket in before.items()
        if bucket.count
    )


def milliseconds(seconds: float) -> str:
    """Return a time for messages."""
    return f"{seconds * 1000:.3g} ms"
