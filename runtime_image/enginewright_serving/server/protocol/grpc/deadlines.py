"""Plans of inferences whose clients set a deadline for the call (grpc-timeout)."""

from dataclasses import dataclass
from typing import Final

from enginewright_serving.server.protocol.grpc.decode import GrpcPlan

SOON: Final = 1e-6  # seconds: the deadline has passed


@dataclass(frozen=True, slots=True)
class UrgentPlan:
    """A plan whose client stops waiting earlier than its parameters say (`RequestPlan`)."""

    plan: GrpcPlan
    timeout: float

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs."""
        return self.plan.outputs

    @property
    def priority(self) -> int:
        """Its priority among requests."""
        return self.plan.priority

    @property
    def has_run(self) -> bool:
        """Whether a request with the same shapes has run."""
        return self.plan.has_run
