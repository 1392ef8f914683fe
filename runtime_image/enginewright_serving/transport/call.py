"""An inference request as all protocols share it, and how it is answered."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from enginewright_serving.transport.account import Holding
    from enginewright_serving.transport.request_context import RequestContext


@dataclass(slots=True, eq=False)
class InferenceCall:
    """One request, until it is answered."""

    holding: "Holding | None" = None  # its bytes in flight
    context: "RequestContext | None" = None  # if the client sends one, or it is needed
    probe: bytes = b""  # the sidecar's token
    shadow: bytes = b""  # the token of copies
    # of a request that another revision has answered, with the token: not a client's
    copy: bool = False
    defer: float = 0.0  # seconds that a probe may wait for an idle moment
    reserved: bool = False  # a probe of the sidecar: bypasses the limits and is not counted
    abandoned: bool = False  # the client is gone
    # an inference of a client, or a copy, once it is admitted or refused: its end is counted, once
    counted: bool = False
    parts: "Iterable[InferenceCall]" = ()  # inferences that it is answered with

    def abandon(self) -> None:
        """Note that the client is gone."""
        self.abandoned = True
        for part in self.parts:
            part.abandoned = True

    @property
    def accounted(self) -> int:
        """Bytes that count as in flight."""
        return self.holding.size if self.holding else 0

    @property
    def in_flight(self) -> bool:
        """Whether it counts as in flight until it is answered: an inference of a client."""
        return self.counted and not self.copy

    @property
    def of_client(self) -> bool:
        """Whether a client of the model sent it for its answer."""
        return not (self.reserved or self.copy)
