"""The engines that every model uses, kept up to date from the cache, so that no reconcile searches all models."""

import sys
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from enginewright.controller.cache import ObjectCache, model_of
from enginewright.controller.observe import REVISION
from enginewright.controller.routing import EngineKey
from enginewright.kube.api import JsonObject
from enginewright.kube.resources import (
    CONTROLLER_REVISIONS,
    DEPLOYMENTS,
    INFERENCE_ENGINES,
    INFERENCE_MODELS,
    Resource,
)
from enginewright.manifests import labels
from enginewright.plan.engines.engine import EngineUse, engine_use

SETTLE: Final = timedelta(seconds=10)  # between two changes of the users of one engine
_CHILDREN: Final = (CONTROLLER_REVISIONS, DEPLOYMENTS)

_Name = tuple[str, str]  # namespace, name


class EngineUses:
    """The uses of all models in the cache, which must still be empty; `changed` gets engines whose users may differ."""

    def __init__(self, cache: ObjectCache, changed: Callable[[str, str], None]) -> None:
        self._cache = cache
        self._changed = changed
        self._uses: dict[str, dict[str, EngineUse]] = {}
        # models of children, by the children's kind, namespace and name
        self._models: dict[Resource, dict[_Name, str]] = {kind: {} for kind in _CHILDREN}
        self._engines: dict[str, dict[str, str]] = {}  # keys by namespace and name
        cache.listen(INFERENCE_ENGINES, self._engine)
        cache.listen(INFERENCE_MODELS, lambda name, _: self._update(name))
        for resource in _CHILDREN:
            cache.listen(resource, partial(self._child, resource))

    def of_namespace(self, namespace: str) -> Iterable[EngineUse]:
        """Return what each model of a namespace uses, except those being deleted."""
        return self._uses.get(namespace, {}).values()

    def _child(self, resource: Resource, name: _Name, obj: JsonObject | None) -> None:
        models, namespace = self._models[resource], name[0]
        before = models.pop(name, "")
        _, model = (model_of(obj) if obj else None) or ("", "")
        if model:
            models[name] = sys.intern(model)
        for owner in sorted({before, model} - {""}):
            self._update((namespace, owner))

    def _update(self, model: _Name) -> None:
        namespace, name = model
        uses = self._uses.setdefault(namespace, {})
        before, now = uses.pop(name, None), self._use(namespace, name)
        if now is not None:
            uses[name] = now
        if before != now:
            self._report(namespace, before or EngineUse(name), now or EngineUse(name))

    def _use(self, namespace: str, name: str) -> EngineUse | None:
        cache = self._cache
        observed = cache.get(INFERENCE_MODELS, namespace, name)
        if observed is None or "deletionTimestamp" in observed["metadata"]:
            return None
        engines = (observed.get("status") or {}).get("engines") or ()
        revisions = cache.of_model(CONTROLLER_REVISIONS, namespace, name)
        deployments = cache.of_model(DEPLOYMENTS, namespace, name)
        return engine_use(
            name,
            (engine["name"] for engine in engines),
            cache.views(REVISION, revisions),
            (
                deployment["metadata"]["labels"].get(labels.REVISION, "")
                for deployment in deployments
            ),
        )

    def _report(self, namespace: str, before: EngineUse, now: EngineUse) -> None:
        engines = self._engines.get(namespace, {})
        keys = before.keys ^ now.keys
        names = before.names ^ now.names
        if keys or before.is_known != now.is_known:
            names |= {
                name
                for name, key in engines.items()
                if before.includes(name, key) != now.includes(name, key)
            }
        for name in sorted(names & engines.keys()):
            self._changed(namespace, name)

    def _engine(self, name: _Name, obj: JsonObject | None) -> None:
        """Remember an InferenceEngine's key; its own controller is queued by its event."""
        engines = self._engines.setdefault(name[0], {})
        if obj is None:
            engines.pop(name[1], None)
        else:
            engines[name[1]] = str((obj.get("spec") or {}).get("key") or "")


class SettledUsers:
    """The users of engines, changed at most every `SETTLE`: a hundred models applied at once cause few writes.

    The first user of an engine is reported at once, so that what is used never appears unused.
    """

    def __init__(self) -> None:
        self._reported: dict[EngineKey, tuple[datetime, tuple[str, ...]]] = {}

    def of(
        self, key: EngineKey, users: tuple[str, ...], now: datetime
    ) -> tuple[tuple[str, ...], float | None]:
        """Return which of an engine's `users` to report at `now`, and the seconds until others are due, if any."""
        since, reported = self._reported.get(key, (now - SETTLE, users))
        waited = now - since
        is_due = not reported or not timedelta() <= waited < SETTLE
        if users == reported:
            self._reported.setdefault(key, (since, users))
            return users, None
        if is_due:
            self._reported[key] = now, users
            return users, None
        return reported, (SETTLE - waited).total_seconds()

    def forget(self, key: EngineKey) -> None:
        """Forget an engine that is deleted."""
        self._reported.pop(key, None)
