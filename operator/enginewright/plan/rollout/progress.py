"""How far the Deployments have come with a revision, and what its pods wait for."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from enginewright.manifests.snapshot import Revision
from enginewright.observed.deployments import DeploymentView
from enginewright.observed.pods import PodView
from enginewright.plan import pods
from enginewright.plan.history.outcomes import served_before
from enginewright.plan.rollout.failures import unready
from enginewright.plan.types import Facts

_POD_NAME: Final = re.compile(r'^pods "[^"]*" is forbidden: ')


@dataclass(frozen=True)
class RolloutProgress:
    """Progress of the applied revision."""

    complete: bool
    message: str  # pods of each class, and what they wait for
    failure: pods.Failure | None = None  # of a pod of the applied revision
    lasting: pods.Failure | None = None  # that would repeat, of a revision that never served
    stuck: bool = False  # the progress deadline has passed
    missing: str = ""  # reason, if pods wait for a volume
    refused: str = ""  # why the API server rejects pods of a class


def progress_of(
    facts: Facts,
    revision: Revision,
    deployments: Mapping[str, DeploymentView],
    counts: Mapping[str, int],
) -> RolloutProgress:
    """Return the progress of an applied revision towards `counts`, pods by class."""
    parts = []
    complete, stuck = True, False
    for name, wanted in counts.items():
        existing = deployments.get(name)
        current = existing if existing and _has_revision(existing, revision.name) else None
        available = current.available_updated() if current else 0
        complete = complete and current is not None and current.is_complete(wanted)
        stuck = stuck or (current is not None and current.is_stuck)
        parts.append(f"{name} {min(available, wanted)}/{wanted}")
    message = f"pods ready: {', '.join(parts)}"
    if complete:
        return RolloutProgress(complete=True, message=message)
    mine = pods.serving_pods(facts.pods, revision.name)
    seen = unready(facts, mine)
    return RolloutProgress(
        complete=False,
        message=f"{message}; {seen.waits_for}" if seen.waits_for else message,
        failure=seen.first,
        lasting=None if _served(facts, revision, mine) else seen.lasting,
        stuck=stuck,
        missing=seen.missing,
        refused=_refused(deployments, counts),
    )


def _refused(deployments: Mapping[str, DeploymentView], counts: Mapping[str, int]) -> str:
    """Return why the API server rejects pods: a quota, Pod Security, a missing service account."""
    for name in counts:
        existing = deployments.get(name)
        if existing and existing.refused:
            # without the pod's name, which differs with each attempt
            return (
                f"cannot create pods of class {name}: {_POD_NAME.sub('', existing.refused.message)}"
            )
    return ""


def _served(facts: Facts, revision: Revision, mine: Iterable[PodView]) -> bool:
    """Return whether any pod of the revision is ready, or the revision was complete before."""
    before = served_before(facts)
    return any(pod.ready for pod in mine) or (
        before is not None and before.last_complete == revision.name
    )


def _has_revision(deployment: DeploymentView, revision: str) -> bool:
    """Return whether the Deployment has this revision, and its counts are up to date."""
    return deployment.revision == revision and deployment.is_current
