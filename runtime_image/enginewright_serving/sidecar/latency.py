"""Compares time in the model with the pod's own baseline, for golden inferences and requests. Pure.

Each sample and each size of request is compared only with itself. Waiting is excluded, so that a full
queue is not mistaken for a slow model. Medians are compared, never single measurements.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from enginewright_contract.execution import ComputeBucket
from enginewright_contract.reasons import Reason
from enginewright_runtime.core.logs import counted
from typing_extensions import override

from enginewright_serving.sidecar.checks import CheckResult
from enginewright_serving.sidecar.golden import ProbeResult
from enginewright_serving.sidecar.settings import SidecarSettings
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
    """Trends by key."""

    def __init__(self, settings: SidecarSettings) -> None:
        self._settings = settings
        self._trends: dict[_Key, Trend] = {}

    def restart(self) -> None:
        """Discard the measurements but keep the baselines, which apply to a new server process too."""
        for trend in self._trends.values():
            trend.restart()

    @property
    def lowered(self) -> int:
        """How often a baseline was lowered because it proved too high."""
        return sum(trend.lowered for trend in self._trends.values())

    def _current(self, key: _Key, now: float, age: float) -> float | None:
        trend = self._trends.get(key)
        return trend.current(now, age) if trend else None


class ProbeLatency(_Latency[tuple[str, float]]):
    """Latency of golden inferences by sample: in the model, and end to end while the pod is idle.

    The first is reported by the server and not affected by queueing; the second is measured here, and
    covers a server that reports wrongly or not at all.
    """

    def __init__(self, settings: SidecarSettings) -> None:
        super().__init__(settings)  # trends by sample and floor
        self._reports_compute = False  # whether the server reports time in the model

    def add(self, found: ProbeResult, now: float, *, idle: bool) -> None:
        """Record a golden inference that succeeded or timed out; `idle`: without other requests."""
        if found.compute is not None:
            self._reports_compute = True
            self._add(found.sample, FLOOR, found.compute, now)
        if idle or not self._reports_compute:
            floor = _ANSWER_FLOOR if self._reports_compute else FLOOR
            self._add(found.sample, floor, found.seconds, now)

    def _add(self, sample: str, floor: float, seconds: float, now: float) -> None:
        key = sample, floor
        if key not in self._trends:
            self._trends[key] = Trend(self._settings, first_runs=1)
        self._trends[key].add(seconds, now)

    @property
    def baseline(self) -> float | None:
        """Seconds of the fastest sample that has a baseline; None: there is none yet."""
        known = (trend.baseline for trend in self._trends.values())
        return min((each for each in known if each), default=None)

    def current(self, sample: str, now: float) -> float | None:
        """Return the current seconds in the model of `sample`; None: too few measurements."""
        return self._current((sample, FLOOR), now, _PROBE_AGE)

    def worst(self, now: float) -> Slowness | None:
        """Return the comparison furthest above its baseline; None: unknown."""
        age = _PROBE_AGE
        return self._worst(
            (each.current(now, age), *key, each) for key, each in self._trends.items()
        )

    def undecided(self, now: float) -> bool:
        """Return whether more measurements are needed soon: no baseline yet, or the last was slow."""
        if self.baseline is None:
            return True
        age = _PROBE_AGE
        found = self._worst((each.last(now, age), *key, each) for key, each in self._trends.items())
        return found is not None and found.exceeds

    def _worst(self, rows: Iterable[tuple[float | None, str, float, Trend]]) -> Slowness | None:
        limit = _RATIO
        found = [
            Slowness(now, trend.baseline, limit, floor)
            for now, _, floor, trend in rows
            if now is not None and trend.baseline
        ]
        return max(found, key=lambda each: each.rank, default=None)

    def outcome(self, now: float) -> CheckResult:
        """Return the check's result for the recent golden inferences."""
        if self.baseline is None:
            return CheckResult.unknown("the baseline is being measured")
        found = self.worst(now)
        if found is None:
            return CheckResult.unknown("too few golden inferences recently")
        usual = f"{found.limit:g} times the pod's own baseline of {milliseconds(found.usual)}"
        if found.exceeds:
            return CheckResult.failed(
                Reason.SLOWER_THAN_BASELINE, f"golden inferences take more than {usual}"
            )
        return CheckResult.ok(f"golden inferences take no more than {usual}")


class LiveLatency(_Latency[int]):
    """Time in the model of requests by size, compared with the pod's baseline and its best warm-up run."""

    def __init__(self, settings: SidecarSettings) -> None:
        super().__init__(settings)  # trends by size
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
        if _fell(self._before, current):
            self.restart()  # the server's counters were reset
        known = bool(self._before)
        for elements, bucket in current.items():
            if bucket.warmup_seconds:
                self._warmup[elements] = bucket.warmup_seconds
            before = self._before.get(elements)
            if before is None:
                # requests that were counted before the first poll may be old
                self._before[elements] = ComputeBucket(elements=elements) if known else bucket
                before = self._before[elements]
            count = bucket.count - before.count
            if count >= _LIVE_LEAST:
                trend = self._trends.setdefault(elements, Trend(self._settings))
                trend.add((bucket.seconds - before.seconds) / count, now)
                self._before[elements] = bucket

    def current(self, elements: int, now: float) -> float | None:
        """Return the current seconds of requests of a size; None: too few recent ones."""
        return self._current(elements, now, _LIVE_AGE)

    def worst(self, now: float) -> Slowness | None:
        """Return the comparison furthest above its limit; None: unknown."""
        found = self._compared(now)
        return found[1] if found else None

    def outcome(self, now: float) -> CheckResult:
        """Return the check's result for the recent requests."""
        worst = self._compared(now)
        if worst is None:
            return CheckResult.unknown("too few requests of one size recently")
        size, found, usual = worst
        if found.exceeds:
            return CheckResult.failed(
                Reason.SLOWER_THAN_BASELINE,
                f"requests of up to {counted(size, 'element')} spend more than {found.limit:g} times"
                f" {usual} of {milliseconds(found.usual)} in the model",
            )
        return CheckResult.ok("requests spend about as much time in the model as usual")

    def _compared(self, now: float) -> tuple[int, Slowness, str] | None:
        """Return the comparison furthest above its limit: size, comparison, what it is compared with."""
        rows: list[tuple[int, Slowness, str]] = []
        for size, trend in self._trends.items():
            current = self.current(size, now)
            for usual, limit, name in (
                (self._warmup.get(size), _WARMUP_RATIO, "the best warm-up run"),
                (trend.baseline, _RATIO, "the pod's own baseline"),
            ):
                if current is not None and usual:
                    found = Slowness(current, usual, limit, FLOOR)
                    rows.append((size, found, name))
        return max(rows, key=lambda row: row[1].rank, default=None)


def _fell(before: dict[int, ComputeBucket], after: dict[int, ComputeBucket]) -> bool:
    return any(
        elements not in after or after[elements].count < bucket.count
        for elements, bucket in before.items()
        if bucket.count
    )


def milliseconds(seconds: float) -> str:
    """Return a time for messages."""
    return f"{seconds * 1000:.3g} ms"
