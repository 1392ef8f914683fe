"""An inference request as all protocols share it, and how it is answered."""

from typing import TYPE_CHECKING, Protocol

from enginewright_runtime.session.request_errors import RequestError

if TYPE_CHECKING:
    from enginewright_serving.server.account import Holding
    from enginewright_serving.server.job import Job
    from enginewright_serving.server.request_context import RequestContext


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
        self.holding: Holding | None = None  # what counts as in flight
        self.context: RequestContext | None = None  # None: nothing is known, or needed
        self.probe = b""  # the sidecar's token
        self.copy = (
            False  # of a request that another revision has answered; not counted as a client's
        )
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


class Responder(Protocol):
    """Sends the response to one request in its protocol; called in the event loop."""

    def succeed(self, job: "Job") -> bool:
        """Encode and send the outputs of `job`; return whether they were sent.

        If not, a thread encodes or compresses them, and `InferenceResults.answer_later` ends the request.

        Raises:
            RequestError: they cannot be sent; nothing was.
        """

    def fail(self, error: RequestError) -> None:
        """Send `error`."""

    def release(self) -> None:
        """Release the memory that is accounted for the request, which needs no answer; idempotent."""

    def abort(self) -> None:
        """Close the client's connection, as answering has failed, and release the request's memory."""
