"""Lists the pods of a finished Job that the watch has not delivered yet.

Jobs and pods have separate watches. A Job that is complete while its pod still seems to run would look as
if its result was lost, and be repeated; so its pods are listed once before planning.
"""

from collections.abc import Iterable

from enginewright.controller.cache import ObjectCache
from enginewright.controller.observe import POD
from enginewright.kube.api import JsonObject, KubeApi
from enginewright.kube.resources import JOBS, PODS
from enginewright.observed.jobs import JobView
from enginewright.observed.pods import JOB_NAME


class PodCatchUp:
    """Remembers which Jobs were handled until they are deleted, so that each costs at most one request."""

    def __init__(self, api: KubeApi, cache: ObjectCache) -> None:
        self._api = api
        self._cache = cache
        self._done: dict[tuple[str, str], str] = {}  # uids by namespace and name
        cache.listen(JOBS, self._job_observed)

    async def catch_up(self, jobs: Iterable[JobView]) -> None:
        """Add missing pods of finished Jobs to the cache. Raises KubeError."""
        for job in jobs:
            key = job.namespace, job.name
            if self._done.get(key) == job.uid or not job.ended:
                continue
            pods = self._cache.views(POD, self._cache.find(PODS, job.namespace, JOB_NAME, job.name))
            mine = (pod for pod in pods if pod.owners.get(JOBS.kind) == job.uid)
            if sum(pod.finished for pod in mine) < job.ended_pods:
                selector = f"{JOB_NAME}={job.name}"
                listing = await self._api.list(PODS, job.namespace, labels=selector)
                for pod in listing.items:
                    self._cache.observe(PODS, pod)
            self._done[key] = job.uid

    def _job_observed(self, name: tuple[str, str], obj: JsonObject | None) -> None:
        if obj is None:
            self._done.pop(name, None)
