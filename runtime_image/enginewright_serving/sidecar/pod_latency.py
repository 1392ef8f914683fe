"""How fast the model of a pod is, compared with the pod itself and with its class. Pure: the clock is given."""

from collections.abc import Callable
from typing import Final

from enginewright_contract.execution import Baseline
from enginewright_contract.manifest import Manifest
from enginewright_contract.verdict import Check

from enginewright_serving.histogram import DurationHistogram
from enginewright_serving.sidecar import benchmark, settings, trend
from enginewright_serving.sidecar.checks import CheckResult
from enginewright_serving.sidecar.golden import ProbeResult
from enginewright_serving.sidecar.latency import LiveLatency, ProbeLatency, Slowness

_PROBE_BOUNDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)  # seconds of a golden inference


class PodLatency:
    """The latency of golden inferences and of requests."""

    def __init__(self, manifest: Manifest, clock: Callable[[], float]) -> None:
        self.probes = ProbeLatency()
        self.live = LiveLatency()
        self.durations = DurationHistogram(_PROBE_BOUNDS)  # of golden inferences
        self._manifest = manifest
        self._clock = clock
        self._probed_at = float("-inf")  # when `probes` got its last measurement
        self.reported: Baseline | None = None  # by the server; belongs to the pod

    def restart(self) -> None:
        """Discard the measurements of a process that has ended."""
        self.probes.restart()
        self.live.restart()

    def add_probe(self, result: ProbeResult, *, idle: bool, probing: bool) -> None:
        """Record a latency; while `probing` at a higher rate, one in the usual interval, as trends expect."""
        now = self._clock()
        if probing and now - self._probed_at < settings.INTERVALS[Check.GOLDEN]:
            return
        self._probed_at = now
        self.probes.add(result, now, idle=idle)

    def judge_class(self) -> CheckResult:
        """Return the check's result for the comparison with the benchmark of the class."""
        return benchmark.outcome(self._manifest, self._compare_class())

    @property
    def baseline(self) -> Baseline | None:
        """The baseline that the server reports, else that of the fastest golden sample."""
        seconds = self.probes.baseline
        if self.reported is not None or seconds is None:
            return self.reported
        return Baseline(p50=seconds, samples=trend.BASELINE_PROBES)

    @property
    def usual(self) -> tuple[str, float] | None:
        """The baseline's shapes and the seconds of a run, by which pods of one class are compared.

        The lower of startup and now, since other load slows the measurement at startup, and the low clocks
        of an idle device slow later ones.
        """
        usual = self.reported
        if usual is None or usual.shapes is None:
            return None
        current = self.probes.current(usual.shapes, self._clock())
        return usual.shapes, usual.p50 if current is None else min(usual.p50, current)

    def ratios(self) -> dict[Check, float]:
        """Return current latency relative to the usual one, by check; unknown ones are omitted."""
        now = self._clock()
        of_class = self._compare_class()
        comparisons = {
            Check.PROBE_LATENCY: self.probes.worst(now),
            Check.LIVE_LATENCY: self.live.worst(now),
            Check.CLASS_LATENCY: of_class[1] if of_class else None,
        }
        return {
            check: comparison.ratio
            for check, comparison in comparisons.items()
            if comparison is not None
        }

    def _compare_class(self) -> tuple[str, Slowness] | None:
        now = self._clock()
        return benchmark.compare(
            self._manifest, self.reported, lambda sample: self.probes.current(sample, now)
        )
