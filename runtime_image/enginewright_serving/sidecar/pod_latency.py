"""How fast the model of a pod is, compared with the pod itself and with its class. Pure: the clock is given."""

from collections.abc import Callable
from typing import Final

from enginewright_contract.execution import Baseline
from enginewright_contract.manifest import Manifest
from enginewright_contract.verdict import Check

from enginewright_serving.histogram import DurationHistogram
from enginewright_serving.sidecar import benchmark
from enginewright_serving.sidecar.checks import CheckResult
from enginewright_serving.sidecar.golden import ProbeResult
from enginewright_serving.sidecar.latency import LiveLatency, ProbeLatency, Slowness
from enginewright_serving.sidecar.settings import SidecarSettings

_PROBE_BOUNDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)  # seconds of a golden inference


class PodLatency:
    """The latency of golden inferences and of requests."""

    def __init__(
        self, manifest: Manifest, settings: SidecarSettings, clock: Callable[[], float]
    ) -> None:
        self.probes = ProbeLatency(settings)
        self.live = LiveLatency(settings)
        self.durations = DurationHistogram(_PROBE_BOUNDS)  # of golden inferences
        self._manifest = manifest
        self._settings = settings
        self._clock = clock
        self._probed_at = float("-inf")  # when `probes` got its last measurement
        self.reported: Baseline | None = None  # by the server; belongs to the pod

    def restart(self) -> None:
        """Discard the measurements of a process that has ended."""
        self.probes.restart()
        self.live.restart()

    def add_probe(self, found: ProbeResult, *, idle: bool, probing: bool) -> None:
        """Record a latency; of a higher rate only one in the usual interval, for which trends are made.

        Otherwise a second of the higher rate could lower the baseline, and three could be slow.
        """
        now, usual = self._clock(), self._settings.intervals[Check.GOLDEN]
        if probing and now - self._probed_at < usual:
            return
        self._probed_at = now
        self.probes.add(found, now, idle=idle)

    def judge_class(self) -> CheckResult:
        """Return the check's result for the comparison with the benchmark of the class."""
        return benchmark.outcome(self._manifest, self._benchmarked())

    @property
    def baseline(self) -> Baseline | None:
        """The baseline that the server reports, else that of the fastest golden sample."""
        seconds = self.probes.baseline
        if self.reported is not None or seconds is None:
            return self.reported
        return Baseline(p50=seconds, samples=self._settings.baseline_probes)

    @property
    def usual(self) -> tuple[str, float] | None:
        """The baseline's shapes and the seconds of a run: the lower of startup and now; None: unknown.

        Pods of one class are compared by it. The lower one counts, since other load slows the
        measurement at startup, and the low clocks of an idle device slow later ones.
        """
        usual = self.reported
        if usual is None or usual.shapes is None:
            return None
        current = self.probes.current(usual.shapes, self._clock())
        return usual.shapes, usual.p50 if current is None else min(usual.p50, current)

    def ratios(self) -> dict[Check, float]:
        """Return current latency relative to the usual one, by check; unknown ones are omitted."""
        now = self._clock()
        found = {
            Check.PROBE_LATENCY: self.probes.worst(now),
            Check.LIVE_LATENCY: self.live.worst(now),
        }
        if benchmarked := self._benchmarked():
            found[Check.CLASS_LATENCY] = benchmarked[1]
        return {check: each.ratio for check, each in found.items() if each is not None}

    def _benchmarked(self) -> tuple[str, Slowness] | None:
        now = self._clock()
        return benchmark.compared(
            self._manifest, self.reported, lambda sample: self.probes.current(sample, now)
        )
