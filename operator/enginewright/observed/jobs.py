"""Jobs: whether and how they have finished, and how many of their pods have."""

from dataclasses import dataclass
from typing import Literal

from enginewright.manifests.labels import (
    PLACEMENT,
    PREPARATION_RECORD,
    QUEUE_NAME,
    SHARED_PREPARATION,
)
from enginewright.observed.base import (
    Json,
    ObservedCondition,
    ObservedObject,
    conditions,
    identity,
    spec,
    status,
)


@dataclass(frozen=True, kw_only=True)
class JobView(ObservedObject):
    """A Job."""

    outcome: Literal["", "Complete", "Failed"]  # once it has finished
    reason: str  # of a failed Job, such as DeadlineExceeded
    message: str
    started_at: str  # RFC 3339, once the Job controller has seen it, and again when it is resumed
    ended_at: str  # RFC 3339, once it has finished
    placement: str  # hash of the JobTemplate that it was created with, if any
    suspended: bool  # spec.suspend: it has no pods until it is resumed
    queue: str  # name of the Kueue queue that admits it, if any
    shared_hash: str  # of a prepare Job whose result other models may take over
    record_hash: str  # of a prepare Job whose result is found again later
    ended_pods: int  # succeeded and failed pods that the Job controller has counted
    refused: str = ""  # why the API server rejects its pod, of which only its Events tell

    @property
    def ended(self) -> bool:
        """Whether it has finished: no further pod will start."""
        return self.outcome != ""

    @property
    def proceeds(self) -> bool:
        """Whether it will end by itself, unlike one that was suspended without a queue."""
        return not self.ended and not self.deleting and (self.queue != "" or not self.suspended)


def job_view(obj: Json) -> JobView:
    """Return the view of a Job (batch/v1)."""
    annotations = obj["metadata"].get("annotations") or {}
    last = _last(obj)
    counts = (status(obj).get(name) or 0 for name in ("succeeded", "failed"))
    return JobView(
        **identity(obj),
        outcome="" if last is None else "Complete" if last.type == "Complete" else "Failed",
        reason=last.reason if last else "",
        message=last.message if last else "",
        started_at=str(status(obj).get("startTime") or ""),
        ended_at=str(status(obj).get("completionTime") or "") or (last.since if last else ""),
        placement=annotations.get(PLACEMENT) or "",
        suspended=bool(spec(obj).get("suspend")),
        queue=(obj["metadata"].get("labels") or {}).get(QUEUE_NAME) or "",
        shared_hash=annotations.get(SHARED_PREPARATION) or "",
        record_hash=annotations.get(PREPARATION_RECORD) or "",
        ended_pods=sum(map(int, counts)),
    )


def _last(obj: Json) -> ObservedCondition | None:
    ends = (condition for condition in conditions(obj) if condition.type in ("Complete", "Failed"))
    return next((end for end in ends if end.status == "True"), None)
