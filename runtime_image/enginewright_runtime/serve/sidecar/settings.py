"""Intervals and limits of all checks in one place, which docs/sidecar.md documents."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from enginewright.contract.task import HTTP_PORT
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
    """Times in seconds, shares and ratios of 1; pods use the defaults."""

    intervals: Mapping[Check, float] = field(default_factory=lambda: INTERVALS)
    stale_intervals: float = 5.0  # a check's result expires after this many of its intervals
    release_interval: float = 1.0  # between reads of the pod's annotation

    request_seconds: float = 2.0  # timeout of requests to the server other than inferences
    probe_seconds: float = 30.0  # timeout of a golden inference
    scrape_seconds: float = 1.0  # timeout of the server's metrics during a scrape

    golden_failures: int = 2  # consecutive golden inferences that fail until the check fails

    probe_share: float = (
        0.005  # of the server's time for golden inferences while there are requests
    )
    idle_share: float = 0.05  # likewise, while the pod is idle
    idle_seconds: float = 60.0  # without requests until a pod is idle; larger samples run then too
    own_share: float = 0.005  # of a core for comparing outputs
    probing_share: float = 0.05  # as probe_share, while the operator asks for a higher rate
    probing_idle_share: float = 0.2  # as idle_share, likewise
    probing_large_share: float = 0.05  # of probing_idle_share, for larger samples
    probing_own_share: float = 0.05  # as own_share, likewise, and for a canary's answers
    slowest_interval: float = 60.0  # golden inferences run at least this often

    admission_interval: float = 0.05  # between golden inferences until every sample has passed
    baseline_probes: int = 10  # measurements for the baseline, the medians of whose halves
    settled_share: float = 0.2  # may differ by this share
    unsettled_most: int = 60  # measurements after which their lower quartile is the baseline
    lowering_least: int = 20  # measurements; if three quarters of them
    lowering_share: float = 0.9  # are below this share of the baseline, it is lowered

    window_seconds: float = 20.0  # the current latency is the median of this window
    window_least: int = 5  # or of this many measurements, if the window has fewer
    window_minimum: int = 3  # with fewer it is unknown
    latency_ratio: float = (
        2.2  # of the baseline: finds a slowdown by 3 even if the baseline is 20% too high
    )
    latency_floor: float = 0.001  # smaller differences of time in the model are noise
    answer_floor: float = 0.010  # likewise, of end-to-end time
    probe_age: float = 300.0  # older golden inferences are ignored

    live_least: int = 3  # requests of one size for a measurement
    live_age: float = 90.0  # older measurements are ignored
    warmup_ratio: float = (
        3.0  # of the best warm-up run; warm-up runs follow each other without pause
    )
    benchmark_ratio: float = 2.0  # of the class's benchmark, measured without other load

    shadow_interval: float = 0.25  # between looks for a request that a canary should answer too
    shadow_seconds: float = 60.0  # timeout of its answer
    shadow_port: int = HTTP_PORT  # of its server

    memory_interval: float = 2.0  # between samples of the server's memory
    measurements_age: float = 1.0  # of what /measurements returns, at most

    error_window: float = 60.0
    error_least: int = 20  # requests
    error_share: float = 0.05  # of responses with 5xx
