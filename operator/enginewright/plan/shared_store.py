"""One Job at a time for an artefact that several namespaces need which share a part of a bucket.

None takes over another namespace's result, since it may read other content with other credentials: it waits, and its
own Job finds the artefact in the store. Quotas, queues and classes may keep a Job from a node in one namespace alone,
so such a Job is not waited for long, and a failed one not at all.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from enginewright.plan.attempts import UNREACHABLE
from enginewright.plan.types import Elsewhere

PATIENCE: Final = UNREACHABLE  # with a Job that has no pod on a node


@dataclass(frozen=True)
class MakingJob:
    """A Job that makes an artefact and will end by itself, or is being created."""

    namespace: str
    owner: str  # kind and name
    created: datetime
    has_node: bool = False  # a pod of it has, and has not ended


def awaited(jobs: Iterable[MakingJob], namespace: str, now: datetime) -> Elsewhere | None:
    """Return the Job that a namespace waits for, the first one; None: it creates one.

    Args:
        jobs: that make the same artefact in the same store.
        namespace: whose own Jobs do not count.
        now: timezone-aware.
    """
    for each in sorted(jobs, key=lambda job: (not job.has_node, job.created, job.namespace)):
        left = PATIENCE if each.has_node else each.created + PATIENCE - now
        if each.namespace != namespace and left.total_seconds() > 0:
            return Elsewhere(each.namespace, each.owner, left.total_seconds())
    return None
