"""Asking for the pods of a finished Job that the watch has not shown yet.

Jobs and pods come by separate streams. A Job that is complete while its pod still seems to run
would look like one whose result is lost, and be repeated; so before anything is decided about it,
its pods are listed, once.
"""

from collections.abc import Iterable
from typing import Final

from enginewright.controller.cache import Cache
from enginewright.controller.children import ended_pods_missing, finished, owners
from enginewright.kube.api import JsonObject, KubeApi
from enginewright.kube.resources import JOBS, PODS

_JOB_NAME: Final = "batch.kubernetes.io/job-name"
_REMEMBERED: Final = 4096


class PodCatchUp:
    """Remembers which Jobs were looked after, so that an unchanged one costs no request."""

    def __init__(self, api: KubeApi, cache: Cache) -> None:
        self._api = api
        self._cache = cache
        self._done: set[str] = set()  # uids

    async def catch_up(self, jobs: Iterable[JsonObject]) -> None:
        """Take the pods of finished Jobs into the cache where some are missing. Raises KubeError."""
        for job in jobs:
            uid = job["metadata"]["uid"]
            if uid in self._done or not finished(job):
                continue
            mine = (pod for pod in self._cache.all(PODS) if owners(pod).get(JOBS.kind) == uid)
            if ended_pods_missing(job, mine):
                metadata = job["metadata"]
                selector = f"{_JOB_NAME}={metadata['name']}"
                listing = await self._api.list(PODS, metadata["namespace"], labels=selector)
                for pod in listing.items:
                    self._cache.wrote(PODS, pod)
            if len(self._done) >= _REMEMBERED:
                self._done.clear()
            self._done.add(uid)
