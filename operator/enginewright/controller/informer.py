"""What is watched, and the listings that kopf does not do.

The first listing precedes any reconcile, so that no plan is made from incomplete state. A new leader
lists again before it acts: a watch may hang for minutes without an error, and the previous leader's
writes must not be undone. Later listings remove objects that were deleted while a watch was broken,
which kopf does not report: whenever kopf has restarted a watch, and hourly.

A kind that the cluster may lack is not watched where it is missing. Once it exists the process ends,
and begins again with a watch of it.
"""

import asyncio
import logging
import random
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from enginewright.controller.routing import Router
from enginewright.kube.api import KubeApi
from enginewright.kube.errors import KubeError, NotFound
from enginewright.kube.resources import (
    ACCELERATOR_CLASSES,
    CLAIM_TEMPLATES,
    CLAIMS,
    CONTROLLER_REVISIONS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    HORIZONTAL_POD_AUTOSCALERS,
    HTTP_ROUTES,
    INFERENCE_ENGINES,
    INFERENCE_MODELS,
    JOBS,
    NODES,
    PODS,
    SERVICES,
    Resource,
)
from enginewright.manifests import labels

RELIST: Final = 3600.0  # seconds
SETTLE: Final = 5.0  # seconds from kopf's first listed object to our listing of everything
# seconds between attempts while a CRD, the API server or a permission is missing
RETRY: Final = 5.0
MANAGED: Final = f"{labels.MANAGED_BY}={labels.OPERATOR}"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Watch:
    """One kind, and the selectors for its objects."""

    resource: Resource
    labels: str | None = None
    fields: str | None = None
    optional: bool = False  # a kind that the cluster may lack


def watches(claim: str) -> tuple[Watch, ...]:
    """Return everything that is watched, shared kinds before models; `claim` is the store's name in every namespace."""
    return (
        Watch(NODES),
        Watch(ACCELERATOR_CLASSES),
        # By name: the administrator may have created the claim, without our labels.
        Watch(CLAIMS, fields=f"metadata.name={claim}"),
        Watch(JOBS, labels=MANAGED),
        Watch(PODS, labels=MANAGED),
        Watch(DEPLOYMENTS, labels=MANAGED),
        Watch(CONTROLLER_REVISIONS, labels=MANAGED),
        Watch(SERVICES, labels=MANAGED),
        Watch(DISRUPTION_BUDGETS, labels=MANAGED),
        Watch(HORIZONTAL_POD_AUTOSCALERS, labels=MANAGED),
        Watch(HTTP_ROUTES, labels=MANAGED, optional=True),
        Watch(CLAIM_TEMPLATES, labels=MANAGED, optional=True),
        Watch(INFERENCE_ENGINES),
        Watch(INFERENCE_MODELS),
    )


class Informer:
    """Lists everything that is watched into the cache; in `namespaces`, or in all if None."""

    def __init__(
        self,
        api: KubeApi,
        router: Router,
        watched: tuple[Watch, ...],
        *,
        namespaces: frozenset[str] | None = None,
    ) -> None:
        self._api = api
        self._router = router
        self._watched = watched
        self._namespaces = namespaces
        self._watch_restarted = asyncio.Event()
        self._missing: set[Resource] = set()  # optional kinds
        self.synced = False
        # set when the cluster has got an optional kind that it lacked before
        self.outdated = asyncio.Event()

    @property
    def present(self) -> tuple[Watch, ...]:
        """Return what the cluster has of everything that is watched, as of the last listing."""
        return tuple(watch for watch in self._watched if watch.resource not in self._missing)

    async def first_listing(self) -> None:
        """List every kind, waiting for those that cannot be listed yet; logs what is missing."""
        for watch in self._watched:
            logged = ""
            while (problem := await self._try(watch)) is not None:
                if problem != logged:
                    _logger.warning("%s; retrying", problem)
                    logged = problem
                await asyncio.sleep(RETRY)
        self.synced = True

    def watch_restarted(self) -> None:
        """List everything soon: kopf has listed a kind, and does not report what was deleted before."""
        self._watch_restarted.set()

    async def relist_forever(self) -> None:
        """List everything again when a watch has been restarted, and about once an hour."""
        while True:
            hour = RELIST * random.uniform(0.9, 1.1)  # noqa: S311 - spreads load
            with suppress(TimeoutError):
                await asyncio.wait_for(self._watch_restarted.wait(), hour)
                await asyncio.sleep(SETTLE)
            self._watch_restarted.clear()
            await self.list_all()

    async def list_all(self) -> None:
        """List every kind, retrying those that cannot be listed."""
        left = list(self._watched)
        logged = ""
        while True:
            problems = [(watch, await self._try(watch)) for watch in left]
            left = [watch for watch, problem in problems if problem is not None]
            if not left:
                return
            reported = "; ".join(problem for _, problem in problems if problem is not None)
            if reported != logged:
                _logger.warning("%s; retrying", reported)
                logged = reported
            await asyncio.sleep(RETRY)

    async def _try(self, watch: Watch) -> str | None:
        resource = watch.resource
        try:
            count = await self._list(watch)
        except NotFound:
            if watch.optional:
                self._missing.add(resource)
                self._router.missing(resource)
                return None
            return (
                f"the API server does not know {resource.plural}.{resource.group}:"
                " install Enginewright's CRDs (kubectl apply --server-side -f crds/)"
            )
        except KubeError as error:
            return f"cannot list {resource.plural}: {error.message}"
        if resource in self._missing:
            self._missing.discard(resource)
            self.outdated.set()
        _logger.debug("listed %s: %d objects", resource.plural, count)
        return None

    async def _list(self, watch: Watch) -> int:
        """List one kind, namespace by namespace where not all are watched; return how many there are. Raises KubeError."""
        everywhere = self._namespaces is None or not watch.resource.namespaced
        names: set[tuple[str, str]] = set()
        version = ""  # the oldest: newer objects stay
        for namespace in (None,) if everywhere else sorted(self._namespaces or ()):
            here: set[tuple[str, str]] = set()
            async for page in self._api.pages(
                watch.resource, namespace, labels=watch.labels, fields=watch.fields
            ):
                if page.is_whole:
                    here.clear()
                here |= self._router.page(watch.resource, page.items)
                version = version or page.resource_version
                del page  # before the next one is there
            names |= here
        self._router.end_listing(watch.resource, names, version)
        return len(names)
