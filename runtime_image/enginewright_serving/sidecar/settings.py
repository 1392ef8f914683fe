"""The times that several checks share, in seconds; import the module, since tests set others."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from enginewright_contract.verdict import Check

INTERVALS: Final[Mapping[Check, float]] = MappingProxyType(
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
STARTING_INTERVAL: Final = 0.2  # between polls of a server that is not ready yet, or not running
STALE_INTERVALS: Final = 5.0  # a check's result expires after this many of its intervals
SLOWEST_INTERVAL: Final = 60.0  # golden inferences run at least this often
RELEASE_INTERVAL: Final = 1.0  # between reads of the pod's annotations
REQUEST_SECONDS: Final = 2.0  # timeout of requests to the server other than inferences
