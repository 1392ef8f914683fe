"""What is watched, and what kopf does not do for it.

A process waits until every kind can be listed, and then to lead. Only a leader lists and watches, once it leads: the
previous leader's writes must not be undone, and no plan is made from incomplete state.

kopf does not report what was deleted while a watch was broken. So everything is listed once more whenever kopf has begun
a watch again, and hourly.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

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
SETTLE: Final = 5.0  # seconds from kopf's listing to our listing of everything
# seconds between attempts while a CRD, the API server or a permission is missing
RETRY: Final = 5.0
LACKING: Final = 60.0  # seconds between attempts while the cluster lacks a kind that it may lack
MANAGED: Final = f"{labels.MANAGED_BY}={labels.OPERATOR}"
_NO_OBJECT: Final = "metadata.name=-"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Watch:
    """One kind, and the selectors for its objects."""

    resource: Resource
    labels: str | None = None
    fields: str | None = None
    optional: bool = False  # a kind that the cluster may lack


@dataclass(frozen=True)
class WatchedPlace:
    """Where a kind is watched."""

    watch: Watch
    namespace: str | None  # or everywhere


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
    """Has everything that is watched in the cache; in `namespaces`, or in all if None."""

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
        self.watched = watched
        self.places = tuple(
            WatchedPlace(watch, namespace)
            for watch in watched
            for namespace in (
                sorted(namespaces)
                if watch.resource.namespaced and namespaces is not None
                else (None,)
            )
        )
        self._listed = {place: asyncio.Event() for place in self.places}
        self._watch_restarted = asyncio.Event()
        self._logged: dict[Watch, str] = {}  # problems
        self.checked = False  # whether every kind can be listed
        self.wanted = asyncio.Event()  # set to have everything listed and watched

    @property
    def synced(self) -> bool:
        """Return whether everything has been listed."""
        return all(event.is_set() for event in self._listed.values())

    @property
    def problem(self) -> str | None:
        """Return why a kind cannot be listed or watched now, if one cannot."""
        return next(iter(self._logged.values()), None)

    async def wait_listed(self, place: WatchedPlace) -> None:
        """Wait until a kind is listed, or the cluster is known to lack it."""
        await self._listed[place].wait()

    async def check(self) -> None:
        """Wait until every kind can be listed; logs what is missing."""
        for watch in self.watched:
            await self._try(watch, self._look)
        self.checked = True

    async def begin(self) -> None:
        """Have everything listed and watched; return when it is listed."""
        self.wanted.set()
        for place in self.places:
            await self.wait_listed(place)

    def on_event(self, resource: Resource, obj: Mapping[str, Any], *, deleted: bool) -> None:
        """Handle an object that was listed, or has changed."""
        try:
            self._router.event(resource, obj, deleted=deleted)
        except Exception:  # the next ones do not depend on it
            _logger.exception("unexpected error while handling an event of %s", resource.plural)

    def on_listed(self, place: WatchedPlace) -> None:
        """Handle the end of a listing: everything is listed soon, unless it was this one's first."""
        if self._listed[place].is_set():
            self._watch_restarted.set()
        self._on_whole(place)

    def on_failed(self, place: WatchedPlace, message: str, *, is_missing: bool) -> float:
        """Handle that a kind cannot be listed or watched; returns the seconds until another attempt."""
        if place.watch.optional and is_missing:
            self._router.missing(place.watch.resource)
            self._listed[place].set()
            return LACKING
        self._report(place.watch, message, is_missing=is_missing)
        return RETRY

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
        """List every kind, and forget what is not there any more; retries those that cannot be listed."""
        for watch in self.watched:
            await self._try(watch, self._list)

    async def _try(self, watch: Watch, work: Callable[[Watch], Awaitable[None]]) -> None:
        while True:
            try:
                await work(watch)
            except KubeError as error:
                is_missing = isinstance(error, NotFound)
                if watch.optional and is_missing:
                    self._router.missing(watch.resource)
                    return
                self._report(watch, error.message, is_missing=is_missing)
                await asyncio.sleep(RETRY)
            else:
                self._logged.pop(watch, None)
                return

    def _report(self, watch: Watch, message: str, *, is_missing: bool) -> None:
        """Log a problem once."""
        resource = watch.resource
        problem = (
            f"the API server does not know {resource.plural}.{resource.group}:"
            " install Enginewright's CRDs (kubectl apply --server-side -f crds/)"
            if is_missing
            else f"cannot list {resource.plural}: {message}"
        )
        if problem != self._logged.get(watch):
            self._logged[watch] = problem
            _logger.warning("%s; retrying", problem)

    def _places_of(self, watch: Watch) -> list[WatchedPlace]:
        return [place for place in self.places if place.watch == watch]

    async def _look(self, watch: Watch) -> None:
        """List no object of a kind. Raises KubeError."""
        for place in self._places_of(watch):
            fields = watch.fields or _NO_OBJECT
            await self._api.list(
                watch.resource, place.namespace, labels=watch.labels, fields=fields
            )

    async def _list(self, watch: Watch) -> None:
        """List one kind, page by page. Raises KubeError."""
        names: set[tuple[str, str]] = set()
        version = ""  # the oldest: newer objects stay
        for place in self._places_of(watch):
            here: set[tuple[str, str]] = set()
            async for page in self._api.pages(
                watch.resource, place.namespace, labels=watch.labels, fields=watch.fields
            ):
                if page.is_whole:
                    here.clear()
                here |= self._router.page(watch.resource, page.items)
                version = version or page.resource_version
                del page  # before the next one is there
            names |= here
        self._router.end_listing(watch.resource, names, version)
        for place in self._places_of(watch):
            self._on_whole(place)

    def _on_whole(self, place: WatchedPlace) -> None:
        """Note that all objects are in the cache."""
        watch = place.watch
        self._logged.pop(watch, None)
        self._listed[place].set()
        if watch.optional:
            self._router.on_kind_found(watch.resource)
        _logger.debug("listed %s", watch.resource.plural)
