"""Golden inferences against the pod's own first ones, live requests against warm-up. Pure.

Like is compared with like: a sample with itself, a size of request with that size. Medians and means
over many requests, never single ones: on a busy machine any one of them may be slow.
"""

from collections import deque
from collections.abc import Sequence
from statistics import median, median_low
from typing import Final

from enginewright.contract.execution import ComputeBucket
from enginewright.contract.manifest import Latency
from enginewright.contract.reasons import Reason

from enginewright_runtime.logs import counted
from enginewright_runtime.sidecar.board import Outcome
from enginewright_runtime.sidecar.settings import Settings

_LEAST_OF_SAMPLE: Final = 3  # probes in the baseline


class ProbeLatency:
    """Durations of golden inferences, as a client sees them."""

    def __init__(self, settings: Settings, samples: int) -> None:
        self._settings = settings
        self._wanted = max(settings.baseline_probes, samples * settings.baseline_probes_a_sample)
        self._first: list[tuple[str, float]] = []
        self._usual: dict[str, float] = {}  # median by sample
        self._recent: deque[tuple[float, float]] = deque(maxlen=settings.latency_window)
        self.baseline: Latency | None = None

    def add(self, sample: str, seconds: float) -> None:
        """Take in one golden inference that was answered rightly."""
        if self.baseline is None:
            self._first.append((sample, seconds))
            if len(self._first) >= self._wanted:
                self._settle()
        elif usual := self._usual.get(sample):
            self._recent.append((seconds / usual, seconds - usual))

    def restart(self) -> None:
        """Forget the last durations, not the baseline: a new server process is held to it."""
        self._recent.clear()
        self._first.clear()

    def ratio(self) -> float | None:
        """Return the median of the last durations over the baseline; None when there are too few."""
        if len(self._recent) < self._settings.latency_least:
            return None
        return median_low(ratio for ratio, _ in self._recent)

    def outcome(self) -> Outcome:
        """Judge the last durations."""
        if self.baseline is None:
            return Outcome.unknown("the baseline is being measured")
        ratio = self.ratio()
        if ratio is None:
            return Outcome.unknown("too few golden inferences since the baseline")
        limit = self._settings.latency_ratio
        usual = f"the pod's own baseline of {_milliseconds(self.baseline.p50)}"
        excess = median_low(excess for _, excess in self._recent)
        if ratio > limit and excess > self._settings.latency_floor:
            return Outcome.failed(
                Reason.SLOWER_THAN_BASELINE,
                f"golden inferences take more than {limit:g} times {usual}",
            )
        return Outcome.ok(f"golden inferences take no more than {limit:g} times {usual}")

    def _settle(self) -> None:
        by_sample: dict[str, list[float]] = {}
        for sample, seconds in self._first:
            by_sample.setdefault(sample, []).append(seconds)
        self._usual = {
            sample: median(each)
            for sample, each in by_sample.items()
            if len(each) >= _LEAST_OF_SAMPLE
        }
        ordered = sorted(seconds for _, seconds in self._first)
        self.baseline = Latency(
            p50=_quantile(ordered, 0.5),
            p90=_quantile(ordered, 0.9),
            p99=_quantile(ordered, 0.99),
            samples=len(ordered),
        )
        self._first.clear()


class LiveLatency:
    """Time in the model for requests of one size, against warm-up's best run of that size."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._seen: deque[tuple[float, dict[int, ComputeBucket]]] = deque()

    def add(self, buckets: Sequence[ComputeBucket], now: float) -> None:
        """Take in the server's sums as they are at `now`."""
        current = {bucket.elements: bucket for bucket in buckets}
        if self._seen and _fell(self._seen[-1][1], current):
            self._seen.clear()  # the server has begun to count anew
        self._seen.append((now, current))
        while len(self._seen) > 2 and self._seen[1][0] <= now - self._settings.live_window:
            self._seen.popleft()

    def outcome(self) -> Outcome:
        """Judge the requests of the window."""
        if not self._seen:
            return Outcome.unknown("the server has told no times yet")
        before, after = self._seen[0][1], self._seen[-1][1]
        compared = 0
        for elements, bucket in sorted(after.items()):
            earlier = before.get(elements, ComputeBucket(elements=elements))
            count, usual = bucket.count - earlier.count, bucket.warmup_seconds
            if usual is None or count < self._settings.live_least:
                continue
            compared += 1
            mean = (bucket.seconds - earlier.seconds) / count
            limit = self._settings.live_ratio
            if mean > limit * usual and mean - usual > self._settings.latency_floor:
                return Outcome.failed(
                    Reason.SLOWER_THAN_BASELINE,
                    f"requests of up to {counted(elements, 'element')} spend more than {limit:g} times"
                    f" the {_milliseconds(usual)} in the model that they took at warm-up",
                )
        if not compared:
            return Outcome.unknown("too few requests of a size that was warmed up")
        return Outcome.ok("requests spend about as long in the model as at warm-up")


def _fell(before: dict[int, ComputeBucket], after: dict[int, ComputeBucket]) -> bool:
    return any(
        elements not in after or after[elements].count < bucket.count
        for elements, bucket in before.items()
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"
