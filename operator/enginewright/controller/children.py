"""Which objects belong to which owner. Pure."""

from collections.abc import Iterable
from typing import TypeVar

from enginewright.kube.resources import INFERENCE_MODELS, JOBS, Resource
from enginewright.observed.base import ObservedObject
from enginewright.observed.jobs import JobView
from enginewright.observed.pods import PodView

Child = TypeVar("Child", bound=ObservedObject)


def of_owner(
    uid: str, children: Iterable[Child], kind: Resource = INFERENCE_MODELS
) -> tuple[Child, ...]:
    """Return the children without those of a deleted owner of the same name."""
    return tuple(child for child in children if child.owners.get(kind.kind, uid) == uid)


def of_jobs(jobs: Iterable[JobView], pods: Iterable[PodView]) -> tuple[PodView, ...]:
    """Return the pods without those of other Jobs than `jobs`."""
    uids = {job.uid for job in jobs}
    return tuple(
        pod for pod in pods if (owner := pod.owners.get(JOBS.kind)) is None or owner in uids
    )
