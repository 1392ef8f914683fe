"""The limits and timeouts of the model's server, beside those of its connections."""

from dataclasses import dataclass
from typing import Final

from enginewright_serving.transport.settings import TransportSettings

PROBE_SLOTS: Final = 2  # concurrent requests of the sidecar that bypass the limits
WAITING_COPIES: Final = 1  # of requests, above which copies are refused: clients come first


@dataclass(frozen=True, slots=True)
class ServerSettings(TransportSettings):
    """Limits and timeouts of one server; pods use the defaults."""

    step_seconds: float = (
        10.0  # of the steps of spec.processing before or after the model, for one request
    )
    run_seconds: float = 50.0  # a run longer than this and than 15 warm-up runs is terminated
    stuck_seconds: float = 60.0  # a run longer than this and than 20 warm-up runs: not live
    retest_seconds: float = 1.0  # least interval between two such runs
    device_lost_seconds: float = 5.0  # not live after the device has been lost for this long
    runs_fail_seconds: float = 30.0  # not live after runs have failed otherwise for this long
    drain_linger: float = 3.0  # accepts after SIGTERM, while endpoints are still being removed
    drain_seconds: float = 25.0  # after SIGTERM; connections still open then are aborted
