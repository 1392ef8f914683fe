"""Why a model must not serve, as a failure of the contract."""

import logging
from typing import Final

from enginewright_contract.reasons import Reason
from enginewright_runtime.core.failure import StageFailure

_log: Final = logging.getLogger(__name__)


def as_failure(error: Exception) -> StageFailure:
    """Return why a model must not serve, from whatever `prepare` has raised."""
    if isinstance(error, StageFailure):
        return error
    if isinstance(error, MemoryError):
        return StageFailure(Reason.OUT_OF_MEMORY, "the model does not fit into memory")
    _log.debug("internal error", exc_info=error)
    return StageFailure(
        Reason.INTERNAL_ERROR, f"unexpected {type(error).__name__} at startup: {error}"
    )
