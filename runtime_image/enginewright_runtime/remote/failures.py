"""The failure of what cannot be read over the network."""

from enginewright_contract.reasons import Reason

from enginewright_runtime.core.failure import StageFailure


def unreachable(message: str, remedy: str | None = None) -> StageFailure:
    """Return the failure of a source that cannot be read."""
    return StageFailure(Reason.SOURCE_UNREACHABLE, message, remedy=remedy)
