"""The limits and timeouts of connections in one place, for docs/serving.md and the tests."""

from dataclasses import dataclass
from typing import Final

MIB: Final = 1024 * 1024
RETRY_AFTER_SECONDS: Final = 1
SLOW_RATE: Final = 256 * 1024  # bytes per second, below which a transfer is the first to be ended
AGE_JITTER: Final = 0.1  # share of `connection_age`


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """Limits and timeouts of the connections of one process; pods use the defaults.

    A transfer (of a request body or a response) must move `transfer_rate` bytes per second, of which those of one
    `transfer_window` may be missing, so that slow clients are disconnected but large bodies are not.
    """

    head_bytes: int = 16 * 1024  # request line and headers; 431 above
    body_bytes: int = 64 * MIB  # 413 above; raised if the shape profiles admit larger requests
    json_bytes: int = 8 * MIB  # 413 above: parsing JSON holds the GIL, here for up to 50 ms
    # of bodies until they are answered, and of responses until they are written; above, transfers slower than
    # SLOW_RATE are ended; then 503. Small requests find some more (`ByteAccount`)
    inflight_bytes: int = 256 * MIB
    inflight_largest: int = 4  # requests of the largest size, if these are more bytes
    connections: int = 1024  # requests that are due at a time: 503 above
    reserved_connections: int = 32  # above both a new connection replaces one that waits
    drained_body_bytes: int = 64 * 1024  # a refused body up to this size is read and discarded
    head_seconds: float = 10.0  # from a request's first byte to the end of its headers
    idle_seconds: float = 75.0  # keep-alive without a request
    transfer_window: float = 10.0
    transfer_rate: int = 16 * 1024  # bytes per second
    # The first response after this age, varied by AGE_JITTER, closes a connection, so that clients reach new pods
    connection_age: float = 60.0
    aged_idle_seconds: float = 5.0  # without a request, after which an old connection is closed too
    sweep_seconds: float = 0.5  # interval at which the time limits are enforced
    linger_seconds: float = 2.0  # reads on after an early refusal, so that the client receives it
