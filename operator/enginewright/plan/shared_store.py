"""One Job at a time for an artefact that several namespaces need which share a part of a bucket.

None takes over another namespace's result, since it may read other content with other credentials: it waits, and its
own Job finds the artefact in the store. Quotas, queues, classes and Secrets may keep a Job from running in one namespace
alone, so such a Job is not waited for long, and a failed one not at all. Once one has ended well, all others look at
the same time; what it made may be removed later, so it counts no longer than that.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from enginewright.plan.attempts import UNREACHABLE
from enginewright.plan.types import Elsewhere

PATIENCE: Final = UNREACHABLE  # with Jobs no container of which has run, from the first one on


@dataclass(frozen=True)
class MakingJob:
    """A Job that makes an artefact and will end by itself, has ended well, or is being created."""

    namespace: str
    owner: str  # kind and name
    created: datetime
    runs: bool = False  # a container of a pod of it has been started, and the pod has not ended
    succeeded: datetime | None = None  # when it has ended well


def awaited(jobs: Iterable[MakingJob], namespace: str, now: datetime) -> Elsewhere | None:
    """Return the Job that a namespace waits for, the first one that runs; None: it creates one.

    Args:
        jobs: that make the same artefact in the same store.
        namespace: whose own Jobs do not count.
        now: timezone-aware.
    """
    known = sorted(jobs, key=lambda job: (not job.runs, job.created, job.namespace))
    if any(each.succeeded and now - each.succeeded < PATIENCE for each in known):
        return None
    making = [each for each in known if each.succeeded is None]
    first = min((each.created for each in making), default=now)
    for each in making:
        left = PATIENCE if each.runs else first + PATIENCE - now
        if each.namespace != namespace and left.total_seconds() > 0:
            return Elsewhere(each.namespace, each.owner, left.total_seconds())
    return None
