"""Time in the model against the pod's own baseline: of golden inferences, and of requests. Pure.

Like is compared with like: a sample with itself, a size of request with that size; waiting is excluded,
so that a full queue is not taken for a slow model. Medians of measurements, never single ones.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from enginewright.contract.execution import ComputeBucket
from enginewright.contract.reasons import Reason
from typing_extensions import override

from enginewright_runtime.core.logs import counted
from enginewright_runtime.serve.sidecar.checks import CheckResult
from enginewright_runtime.serve.sidecar.golden import ProbeResult
from enginewright_runtime.serve.sidecar.settings import SidecarSettings
from enginewright_runtime.serve.sidecar.trend import Trend

_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class Slowness:
    """How one series stands; times in seconds."""

    now: float
    usual: float
    limit: float  # of `ratio`,
    floor: float  # and of what it takes longer: less is noise of the machine

    @property
    def ratio(self) -> float:
        """What is measured now over what is usual."""
        return self.now / self.usual

    @property
    def exceeds(self) -> bool:
        """Whether it is too slow."""
        return self.ratio > self.limit and self.now - self.usual > self.floor

    @property
    def rank(self) -> tuple[bool, float]:
        """By which the worst one is found."""
        return self.exceeds, self.ratio / self.limit


class _Latency(Generic[_Key]):
    """Trends by what is measured."""

    def __init__(self, settings: SidecarSettings) -> None:
        self._settings = settings
        self._trends: dict[_Key, Trend] = {}

    def restart(self) -> None:
        """Forget the last times, not the baselines: a new server process is held to them."""
        for trend in self._trends.values():
            trend.restart()

    @property
    def lowered(self) -> int:
        """How often a baseline has proved too high."""
        return sum(trend.lowered for trend in self._trends.values())

    def _current(self, key: _Key, now: float, age: float) -> float | None:
        trend = self._trends.get(key)
        return trend.current(now, age) if trend else None


class ProbeLatency(_Latency[tuple[str, float]]):
    """Time of golden inferences by sample: in the model, and until the answer where nothing else waits.

    The first is the server's word, which a queue cannot spoil; the second is measured here, and finds a
    server whose word is wrong, or one that reports none.
    """

    def __init__(self, settings: SidecarSettings) -> None:
        super().__init__(settings)  # trends by sample and floor
        self._reports_compute = False  # the server says how long it was in the model

    def add(self, found: ProbeResult, now: float, *, idle: bool) -> None:
        """Take in a golden inference that was answered rightly, or not in time; `idle`: beside no request."""
        settings = self._settings
        if found.compute is not None:
            self._reports_compute = True
            self._add(found.sample, settings.latency_floor, found.compute, now)
        if idle or not self._reports_compute:
            floor = settings.answer_floor if self._reports_compute else settings.latency_floor
            self._add(found.sample, floor, found.seconds, now)

    def _add(self, sample: str, floor: float, seconds: float, now: float) -> None:
        key = sample, floor
        if key not in self._trends:
            self._trends[key] = Trend(self._settings, first_runs=1)
        self._trends[key].add(seconds, now)

    @property
    def baseline(self) -> float | None:
        """Seconds of the quickest sample that has a baseline; None: there is none yet."""
        known = (trend.baseline for trend in self._trends.values())
        return min((each for each in known if each), default=None)

    def current(self, sample: str, now: float) -> float | None:
        """Return the seconds that `sample` takes in the model now; None: too few measurements."""
        return self._current((sample, self._settings.latency_floor), now, self._settings.probe_age)

    def worst(self, now: float) -> Slowness | None:
        """Return how the series stands that is furthest above its baseline; None: unknown."""
        age = self._settings.probe_age
        return self._worst(
            (each.current(now, age), *key, each) for key, each in self._trends.items()
        )

    def undecided(self, now: float) -> bool:
        """Tell whether more measurements are due soon: no baseline yet, or the last one alone was slow."""
        if self.baseline is None:
            return True
        age = self._settings.probe_age
        found = self._worst((each.last(now, age), *key, each) for key, each in self._trends.items())
        return found is not None and found.exceeds

    def _worst(self, rows: Iterable[tuple[float | None, str, float, Trend]]) -> Slowness | None:
        limit = self._settings.latency_ratio
        found = [
            Slowness(now, trend.baseline, limit, floor)
            for now, _, floor, trend in rows
            if now is not None and trend.baseline
        ]
        return max(found, key=lambda each: each.rank, default=None)

    def outcome(self, now: float) -> CheckResult:
        """Judge the last golden inferences."""
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
    """Time in the model for requests, by size, against the pod's own usual and warm-up's best."""

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
        """Take in the server's sums as they are at `now`."""
        current = {bucket.elements: bucket for bucket in buckets}
        if _fell(self._before, current):
            self.restart()  # the server has begun to count from zero
        known = bool(self._before)
        for elements, bucket in current.items():
            if bucket.warmup_seconds:
                self._warmup[elements] = bucket.warmup_seconds
            before = self._before.get(elements)
            if before is None:
                # what was counted before the first look may lie long back
                self._before[elements] = ComputeBucket(elements=elements) if known else bucket
                before = self._before[elements]
            count = bucket.count - before.count
            if count >= self._settings.live_least:
                trend = self._trends.setdefault(elements, Trend(self._settings))
                trend.add((bucket.seconds - before.seconds) / count, now)
                self._before[elements] = bucket

    def current(self, elements: int, now: float) -> float | None:
        """Return the seconds that requests of a size take now; None: too few of them lately."""
        return self._current(elements, now, self._settings.live_age)

    def worst(self, now: float) -> Slowness | None:
        """Return how the size stands that is furthest above what is usual; None: unknown."""
        found = self._compared(now)
        return found[1] if found else None

    def outcome(self, now: float) -> CheckResult:
        """Judge the requests of the last half minute, or of as long as there were enough."""
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
        return CheckResult.ok("requests spend about as long in the model as they usually do")

    def _compared(self, now: float) -> tuple[int, Slowness, str] | None:
        """Return the comparison that is furthest over its limit: its size, and what with."""
        settings = self._settings
        rows: list[tuple[int, Slowness, str]] = []
        for size, trend in self._trends.items():
            current = self.current(size, now)
            for usual, limit, name in (
                (self._warmup.get(size), settings.warmup_ratio, "warm-up's best"),
                (trend.baseline, settings.latency_ratio, "the pod's own baseline"),
            ):
                if current is not None and usual:
                    found = Slowness(current, usual, limit, settings.latency_floor)
                    rows.append((size, found, name))
        return max(rows, key=lambda row: row[1].rank, default=None)


def _fell(before: dict[int, ComputeBucket], after: dict[int, ComputeBucket]) -> bool:
    return any(
        elements not in after or after[elements].count < bucket.count
        for elements, bucket in before.items()
        if bucket.count
    )


def milliseconds(seconds: float) -> str:
    """Return a time for people."""
    return f"{seconds * 1000:.3g} ms"
