"""Jobs that collect garbage in a store: their limits and recorded outcomes."""

from dataclasses import dataclass

from enginewright_contract.collection import CollectTask
from enginewright_contract.task import task_text
from pydantic import ValidationError

from enginewright.manifests.collection_outcome import CollectionOutcome
from enginewright.manifests.labels import STORE_GROUP
from enginewright.observed.base import Json, spec
from enginewright.observed.jobs import JobView, job_view


@dataclass(frozen=True, kw_only=True)
class CollectionView(JobView):
    """A Job that collects."""

    task: CollectTask | None  # unless it is of another version, and not readable
    recorded: CollectionOutcome | None  # once it has ended

    @property
    def is_of_group(self) -> bool:
        """Whether an earlier release made it for a part of a bucket that several namespaces shared."""
        return self.label(STORE_GROUP) != ""


def collection_view(obj: Json) -> CollectionView:
    """Return the view of a collection Job (batch/v1)."""
    return CollectionView(
        **vars(job_view(obj)),
        task=_task(obj),
        recorded=CollectionOutcome.read(obj["metadata"].get("annotations") or {}),
    )


def _task(obj: Json) -> CollectTask | None:
    pod = (spec(obj).get("template") or {}).get("spec") or {}
    variables = {
        str(item.get("name")): str(item.get("value"))
        for one in pod.get("containers") or ()
        for item in one.get("env") or ()
    }
    try:
        return CollectTask.model_validate_json(task_text(variables))
    except ValidationError:
        return None
