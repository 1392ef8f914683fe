"""An inference request as all protocols share it, and how it is answered."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from enginewright_serving.transport.account import Holding
    from enginewright_serving.transport.request_context import RequestContext


class InferenceCall:
    """One request, until it is answered."""

    __slots__ = (
        "abandoned",
        "context",
        "copy",
        "counted",
        "defer",
        "holding",
        "probe",
        "reserved",
    )

    def __init__(self) -> None:
        self.holding: Holding | None = None  # its bytes in flight
        self.context: RequestContext | None = None  # if the client sends one, or it is needed
        self.probe = b""  # the sidecar's token
        self.copy = False  # of a request that another revision has answered; not a client's
        self.defer = 0.0  # seconds that a probe may wait for an idle moment
        self.reserved = False  # a probe of the sidecar: bypasses the limits and is not counted
        self.abandoned = False  # the client is gone
        self.counted = False  # an inference request of a client, once it is admitted or refused

    @property
    def accounted(self) -> int:
        """Bytes that count as in flight."""
        return self.holding.size if self.holding else 0

    @property
    def of_client(self) -> bool:
        """Whether a client of the model sent it for its answer."""
        return not (self.reserved or self.copy)
