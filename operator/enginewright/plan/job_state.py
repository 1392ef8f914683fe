"""What Jobs tell, and when one that failed is tried again."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from enginewright.contract.reasons import ExitCode, Reason, exit_code
from enginewright.plan.types import Object

FIRST_RETRY: Final = timedelta(minutes=1)
LONGEST_RETRY: Final = timedelta(hours=1)


def condition(job: Object, kind: str) -> Mapping[str, Any] | None:
    """Return a Job's condition of this type that is True."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    return next(
        (each for each in conditions if each.get("type") == kind and each.get("status") == "True"),
        None,
    )


def ended(job: Object) -> bool:
    """Tell whether the Job controller has done with it."""
    return any(condition(job, kind) for kind in ("Complete", "Failed"))


def label(obj: Object, name: str) -> str:
    """Return a label's value; empty when there is none."""
    return str((obj["metadata"].get("labels") or {}).get(name, ""))


def can_pass(reason: str) -> bool:
    """Tell whether a failure may pass by itself."""
    return reason not in set(Reason) or exit_code(Reason(reason)) != ExitCode.PERMANENT


def due(failed_at: datetime | None, attempts: int) -> datetime:
    """Return when what failed for the `attempts`-th time is tried again."""
    delay = min(FIRST_RETRY * (1 << min(attempts - 1, 10)), LONGEST_RETRY)
    return (failed_at or datetime.min.replace(tzinfo=UTC)) + delay
