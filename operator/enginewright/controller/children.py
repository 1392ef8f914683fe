"""Whose child is whose, and what the cache cannot know yet. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from enginewright.kube.api import JsonObject
from enginewright.kube.resources import INFERENCE_MODELS, JOBS, Resource

_FINAL: Final = frozenset({"Complete", "Failed"})
_ENDED: Final = frozenset({"Succeeded", "Failed"})


def owners(obj: Mapping[str, Any]) -> dict[str, str]:
    """Return the uids of the owners by kind."""
    return {o["kind"]: o["uid"] for o in obj["metadata"].get("ownerReferences") or ()}


def of_owner(
    uid: str, children: Iterable[JsonObject], kind: Resource = INFERENCE_MODELS
) -> tuple[JsonObject, ...]:
    """Leave out what belonged to an earlier owner of this name and awaits garbage collection."""
    return tuple(child for child in children if owners(child).get(kind.kind, uid) == uid)


def of_jobs(jobs: Iterable[JsonObject], pods: Iterable[JsonObject]) -> tuple[JsonObject, ...]:
    """Leave out the pods of Jobs that are not among `jobs`."""
    uids = {job["metadata"]["uid"] for job in jobs}
    return tuple(
        pod for pod in pods if (owner := owners(pod).get(JOBS.kind)) is None or owner in uids
    )


def finished(job: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the condition that ended a Job, Complete or Failed; None while it runs."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("type") in _FINAL and condition.get("status") == "True":
            found: Mapping[str, Any] = condition
            return found
    return None


def ended_pods_missing(job: Mapping[str, Any], pods: Iterable[JsonObject]) -> bool:
    """Return whether a Job counts more ended pods than are among its `pods`."""
    status = job.get("status") or {}
    counted = int(status.get("succeeded") or 0) + int(status.get("failed") or 0)
    return sum(pod["status"].get("phase") in _ENDED for pod in pods) < counted
