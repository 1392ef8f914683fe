"""What the server allows, in one place, so that docs/serving.md and the tests can name it."""

from dataclasses import dataclass
from typing import Final

MIB: Final = 1024 * 1024
RETRY_AFTER_SECONDS: Final = 1
PROBE_LANES: Final = 2  # requests of the sidecar at a time that no limit on others holds up


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Limits and times of one server; the defaults are what pods run with.

    A transfer (a body coming in, a response going out) may take `transfer_grace` seconds plus one
    second for every `transfer_rate` bytes of it: a slow client is cut off, a large body is not.
    """

    head_bytes: int = 16 * 1024  # request line and headers: 431 past it
    body_bytes: int = 64 * MIB  # 413 past it; raised when the shape profiles admit larger requests
    json_bytes: int = 16 * MIB  # 413 past it: JSON is parsed under the interpreter's lock
    inflight_bytes: int = 256 * MIB  # bodies read and not yet answered: 503 past it
    connections: int = 1024  # past it: 503 for inference, a reserve answers health and metrics
    reserved_connections: int = 32
    head_seconds: float = 10.0  # from a request's first byte to the end of its headers
    idle_seconds: float = 75.0  # kept alive without a request
    transfer_grace: float = 10.0
    transfer_rate: int = 16 * 1024  # bytes per second
    connection_age: float = 300.0  # after it, the next response closes the connection
    sweep_seconds: float = 0.5  # how often the times above are looked at
    run_seconds: float = 50.0  # one run longer than this and than 15 warm-up runs is stopped
    stuck_seconds: float = 60.0  # one run longer than this and than 20 warm-up runs: not live
    failed_runs: int = 3  # requests in a row, before a golden sample is tried again
    retest_seconds: float = 1.0  # between two such trials, at least
    device_lost_seconds: float = 5.0  # of nothing but failures, where the device is lost: not live
    runs_fail_seconds: float = 30.0  # likewise, whatever else fails
    drain_linger: float = 3.0  # accepts after SIGTERM, while endpoints are still being removed
    drain_seconds: float = 25.0  # after SIGTERM, whatever is still open is cut
    linger_seconds: float = 2.0  # reads on after an early refusal, so that the client sees it
