"""Why the API server rejects the pods of Jobs: a quota, Pod Security, a LimitRange, a webhook.

A Deployment has a condition for it; a Job only has Events, which are read while it has no pod.
"""

import logging
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Final

from enginewright.controller.observe import POD
from enginewright.controller.shared import Shared
from enginewright.kube.api import JsonObject
from enginewright.kube.errors import KubeError
from enginewright.kube.resources import EVENTS, JOBS
from enginewright.manifests.job_limits import REFUSED_AFTER
from enginewright.observed.base import Json
from enginewright.observed.jobs import JobView

_REASON: Final = "FailedCreate"  # of the Job controller

_logger = logging.getLogger(__name__)


async def read_refusals(
    shared: Shared, jobs: Iterable[JobView], pods: Iterable[JsonObject]
) -> tuple[JobView, ...]:
    """Return `jobs` with why those that should have one of `pods` have none, as far as Events can be read."""
    has_pod = {pod.owners.get(JOBS.kind) for pod in shared.cache.views(POD, pods)}
    return tuple(
        [
            replace(job, refused=await _read(shared, job))
            if job.uid not in has_pod and _should_have_pod(job, shared.now())
            else job
            for job in jobs
        ]
    )


def _should_have_pod(job: JobView, now: datetime) -> bool:
    since = datetime.fromisoformat(job.started_at or job.created)
    return not (job.ended or job.deleting or job.suspended) and since + REFUSED_AFTER <= now


async def _read(shared: Shared, job: JobView) -> str:
    fields = f"involvedObject.uid={job.uid},reason={_REASON}"
    try:
        listing = await shared.api.list(EVENTS, job.namespace, fields=fields)
    except KubeError as error:
        _logger.warning("the Events of Job %s cannot be read: %s", job.name, error.message)
        return ""
    last = max(listing.items, key=_read_time, default=None)
    return str(last.get("message") or "") if last else ""


def _read_time(event: Json) -> str:
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return max(filter(None, times), default="")
