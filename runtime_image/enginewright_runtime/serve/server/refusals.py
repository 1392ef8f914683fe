"""Why a model must not serve, as a failure of the contract."""

import logging
from typing import Final

from enginewright.contract.engines import SHAREABLE
from enginewright.contract.reasons import Reason
from enginewright.contract.task import ServeTask

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


def check_processes(task: ServeTask) -> None:
    """Refuse several processes on a device: each would load the model onto it, and take turns on it."""
    if task.processes > 1 and task.backend not in SHAREABLE:
        allowed = " or ".join(SHAREABLE)
        raise StageFailure(
            Reason.PROVIDER_REFUSED,
            f"backend {task.backend} serves with one process, and spec.serving.processes is {task.processes}",
            remedy=f"set spec.serving.processes to 1, or choose {allowed} in spec.backends",
        )
