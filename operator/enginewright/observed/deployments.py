"""Deployments: their class and revision, and the progress of their pods."""

from dataclasses import dataclass

from enginewright.manifests.field_managers import FIELD_MANAGER
from enginewright.manifests.labels import CLASS, COMPONENT, REVISION, TRIAL
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
class DeploymentView(ObservedObject):
    """A Deployment of a model for one accelerator class."""

    accelerator_class: str
    revision: str
    is_current: bool  # whether its controller has observed the latest spec
    desired: int  # spec.replicas
    count_is_shared: bool  # whether another field manager than the operator's owns spec.replicas
    pods: int  # of all revisions, except those that are being deleted
    updated: int  # pods of the latest template
    ready_pods: int
    available: int
    is_stuck: bool  # Progressing is False, as after progressDeadlineSeconds
    refused: (
        ObservedCondition | None
    )  # ReplicaFailure: the API server rejects pods of the latest spec

    @property
    def is_serving(self) -> bool:
        """Whether it is neither a canary nor what is left of an earlier release."""
        return not self.is_canary and not self.is_trial

    @property
    def is_trial(self) -> bool:
        """Whether an earlier release tried a rejected backend with it; its pods receive no requests."""
        return self.label(COMPONENT) == TRIAL

    def available_updated(self) -> int:
        """Return how many pods of the latest template are available, at least."""
        return max(0, self.available - max(0, self.pods - self.updated))

    @property
    def is_rolling_out(self) -> bool:
        """Whether it replaces its pods, or is about to, and is not stuck."""
        settled = self.is_current and self.pods == self.updated == self.desired
        return not self.is_stuck and not settled

    def is_complete(self, replicas: int) -> bool:
        """Return whether it has exactly `replicas` pods, all of the latest template and available."""
        return self.is_current and all(
            count == replicas for count in (self.desired, self.pods, self.updated, self.available)
        )


def deployment_view(obj: Json) -> DeploymentView:
    """Return the view of a Deployment (apps/v1)."""
    view, replicas = identity(obj), spec(obj).get("replicas")
    by_type = {condition.type: condition for condition in conditions(obj)}
    progressing, failing = by_type.get("Progressing"), by_type.get("ReplicaFailure")
    is_current = _count(obj, "observedGeneration") >= int(obj["metadata"].get("generation") or 0)
    return DeploymentView(
        **view,
        accelerator_class=view["labels"].get(CLASS, ""),
        revision=view["labels"].get(REVISION, ""),
        is_current=is_current,
        desired=1 if replicas is None else int(replicas),
        count_is_shared=bool(count_managers(obj["metadata"]) - {FIELD_MANAGER}),
        pods=_count(obj, "replicas"),
        updated=_count(obj, "updatedReplicas"),
        ready_pods=_count(obj, "readyReplicas"),
        available=_count(obj, "availableReplicas"),
        is_stuck=progressing is not None and progressing.status == "False",
        refused=failing if failing and failing.status == "True" and is_current else None,
    )


def count_managers(metadata: Json) -> frozenset[str]:
    """Return the field managers that own spec.replicas."""
    return frozenset(
        str(item.get("manager") or "")
        for item in metadata.get("managedFields") or ()
        if "f:replicas" in ((item.get("fieldsV1") or {}).get("f:spec") or {})
    )


def _count(obj: Json, name: str) -> int:
    return int(status(obj).get(name) or 0)
