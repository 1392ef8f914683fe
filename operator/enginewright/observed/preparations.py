"""What the status of an InferenceModel says about a preparation that models of a namespace share.

Read from the plain object, since models that share one are read whenever one of them has changed.
"""

from dataclasses import dataclass

from pydantic import ValidationError

from enginewright.api.job_failure import JobFailure
from enginewright.observed.base import Json


@dataclass(frozen=True)
class PreparationView:
    """`status.preparation` of a model, if it may be shared."""

    name: str  # of the model
    created: str  # the model, RFC 3339
    shared_hash: str
    job: str  # its own, unless it waits
    leader: str  # whose result it takes over, if any
    stage: str  # of its own Job
    failure: JobFailure | None  # the last one

    @property
    def failed(self) -> bool:
        """Whether it is not prepared again until its inputs change."""
        return self.failure is not None and self.failure.lasting

    @property
    def leads(self) -> bool:
        """Whether its own Job prepares it, or is to be retried."""
        return self.job != "" and not self.failed

    @property
    def waits(self) -> bool:
        """Whether it has no Job, and needs one or the result of another one."""
        return self.job == "" and not self.failed


def preparation_view(obj: Json) -> PreparationView | None:
    """Return the view of an InferenceModel, unless it is being deleted or shares no preparation."""
    metadata, preparation = obj["metadata"], (obj.get("status") or {}).get("preparation") or {}
    if metadata.get("deletionTimestamp") or not preparation.get("sharedHash"):
        return None
    failure = preparation.get("failure")
    try:
        read = JobFailure.model_validate(failure) if failure else None
    except ValidationError:  # of another version; the model's own reconciliation reports it
        return None
    return PreparationView(
        name=metadata["name"],
        created=str(metadata.get("creationTimestamp") or ""),
        shared_hash=preparation["sharedHash"],
        job=str(preparation.get("job") or ""),
        leader=str(preparation.get("leader") or ""),
        stage=str(preparation.get("stage") or ""),
        failure=read,
    )
