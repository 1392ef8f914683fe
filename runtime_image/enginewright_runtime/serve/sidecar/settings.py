"""How often each check runs and what it allows, in one place that docs/sidecar.md repeats."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from enginewright.contract.verdict import Check

INTERVALS: Final[Mapping[Check, float]] = MappingProxyType(  # seconds
    {
        Check.SERVER: 1.0,
        Check.PROVIDER: 1.0,
        Check.PLACEMENT: 1.0,
        Check.DISTRIBUTION: 10.0,
        Check.VERSIONS: 10.0,
        Check.GOLDEN: 1.0,
        Check.PROBE_LATENCY: 1.0,
        Check.LIVE_LATENCY: 5.0,
        Check.CLASS_LATENCY: 5.0,
        Check.ERRORS: 5.0,
    }
)


@dataclass(frozen=True, slots=True)
class SidecarSettings:
    """Times in seconds, shares and ratios of 1; the defaults are what pods run with."""

    intervals: Mapping[Check, float] = field(default_factory=lambda: INTERVALS)
    stale_intervals: float = 5.0  # after so many of its intervals a finding is unknown again
    release_interval: float = 1.0  # between two looks at the pod's annotation

    request_seconds: float = 2.0  # for the server to answer anything but an inference
    probe_seconds: float = 30.0  # for a golden inference
    scrape_seconds: float = 1.0  # for the server's metrics while a scrape waits

    golden_failures: int = 2  # golden inferences in a row that fail, until that is a finding

    probe_share: float = (
        0.005  # of the server's time that golden inferences may take beside requests,
    )
    idle_share: float = 0.05  # and where there have been none
    idle_seconds: float = 60.0  # for so long: then larger samples are asked too;
    own_share: float = 0.005  # and of a core that comparing their answers may take,
    slowest_interval: float = 60.0  # but not less often than this

    admission_interval: float = 0.05  # between golden inferences until the pod has proven itself
    baseline_probes: int = 10  # measurements whose halves must agree before they are the baseline,
    settled_share: float = 0.2  # but for so much;
    unsettled_most: int = 60  # after so many the lowest quarter is the baseline
    lowering_least: int = 20  # measurements of which three quarters
    lowering_share: float = 0.9  # are below so much of the baseline: it has proved too high

    window_seconds: float = 20.0  # of measurements whose median counts,
    window_least: int = 5  # or of so many if these are more
    window_minimum: int = 3  # fewer say nothing
    latency_ratio: float = (
        2.2  # of the baseline: a threefold slow-down over a baseline a fifth too high
    )
    latency_floor: float = 0.001  # what is slower by less than this is noise of the machine,
    answer_floor: float = 0.010  # and of the way to the server and back
    probe_age: float = 300.0  # a golden inference of longer ago says nothing of now

    live_least: int = 3  # requests of one size that make a measurement
    live_age: float = 90.0  # what was measured longer ago says nothing of now
    warmup_ratio: float = (
        3.0  # of the warm-up's best run: run after run, which live requests are not
    )
    benchmark_ratio: float = 2.0  # of the class's benchmark: run after run there, and alone

    error_window: float = 60.0
    error_least: int = 20  # requests
    error_share: float = 0.05  # of answers 5xx
