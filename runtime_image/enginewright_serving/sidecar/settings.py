"""Intervals of the checks, and what tests run faster than pods do. The limits of a check are beside it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from enginewright_contract.task import HTTP_PORT
from enginewright_contract.verdict import Check

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
STALE_INTERVALS: Final = 5.0  # a check's result expires after this many of its intervals


@dataclass(frozen=True, slots=True)
class SidecarSettings:
    """Times in seconds, shares of 1; pods use the defaults."""

    intervals: Mapping[Check, float] = field(default_factory=lambda: INTERVALS)
    release_interval: float = 1.0  # between reads of the pod's annotation

    request_seconds: float = 2.0  # timeout of requests to the server other than inferences
    scrape_seconds: float = 1.0  # timeout of the server's metrics during a scrape

    probe_share: float = (
        0.005  # of the server's time for golden inferences while there are requests
    )
    idle_seconds: float = 60.0  # without requests until a pod is idle; larger samples run then too
    slowest_interval: float = 60.0  # golden inferences run at least this often

    baseline_probes: int = 10  # measurements for the baseline, the medians of whose halves

    window_seconds: float = 20.0  # the current latency is the median of this window

    shadow_interval: float = 0.25  # between looks for a request that a canary should answer too
    shadow_seconds: float = 60.0  # timeout of its answer
    shadow_port: int = HTTP_PORT  # of its server

    memory_interval: float = 2.0  # between samples of the server's memory
    measurements_age: float = 1.0  # of what /measurements returns, at most
