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
        Check.ERRORS: 5.0,
    }
)


@dataclass(frozen=True, slots=True)
class Settings:
    """Times in seconds, shares and ratios of 1; the defaults are what pods run with."""

    intervals: Mapping[Check, float] = field(default_factory=lambda: INTERVALS)
    stale_intervals: float = 5.0  # after so many of its intervals a finding is unknown again
    release_seconds: float = 60.0  # ?release=1 holds for

    request_seconds: float = 2.0  # for the server to answer anything but an inference
    probe_seconds: float = 30.0  # for a golden inference
    scrape_seconds: float = 1.0  # for the server's metrics while a scrape waits

    probe_share: float = 0.05  # of the server's time that golden inferences may take,
    own_share: float = 0.005  # and of a core that comparing their answers may take,
    slowest_interval: float = 30.0  # but not less often than this

    baseline_probes: int = 20
    baseline_probes_a_sample: int = 4  # whichever is more
    baseline_interval: float = 0.1  # between probes until the baseline is there
    latency_window: int = 11  # probes whose median counts: six slow ones are needed to fail
    latency_least: int = 5  # fewer say nothing
    latency_ratio: float = 3.0  # of the baseline; a full queue can double a probe's time
    latency_floor: float = 0.002  # what is slower by less than this is noise of the machine

    live_window: float = 60.0  # of requests that are compared with warm-up,
    live_least: int = 20  # and how many of one size there must be
    live_ratio: float = 3.0  # of the warm-up's best run
    error_window: float = 60.0
    error_least: int = 20  # requests
    error_share: float = 0.05  # of answers 5xx
