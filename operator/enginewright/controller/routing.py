"""Which keys an observed change affects. No IO: kopf calls this inside its watch streams."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from enginewright_contract.base import canonical_json
from enginewright_contract.keys import sha256_text

from enginewright.controller.cache import ObjectCache, engine_of, model_of
from enginewright.controller.indices import CLASSES, PREPARED, UNBUILT
from enginewright.controller.node_changes import NodeChange
from enginewright.controller.observe import CLAIM, DEPLOYMENT, JOB, NODE, POD, Kind, name_of
from enginewright.controller.slim import without_version
from enginewright.kube.api import JsonObject
from enginewright.kube.resources import (
    ACCELERATOR_CLASSES,
    CLAIMS,
    DEPLOYMENTS,
    INFERENCE_ENGINES,
    INFERENCE_MODELS,
    JOBS,
    NODES,
    PODS,
    Resource,
)
from enginewright.manifests import labels
from enginewright.manifests.collect_job import COLLECT
from enginewright.observed.deployments import DeploymentView
from enginewright.observed.jobs import JobView
from enginewright.plan.types import StoreConfig

# kinds whose objects show that a namespace has a store
_WITH_STORE: Final = (INFERENCE_MODELS, INFERENCE_ENGINES, CLAIMS)

# in the status of an InferenceEngine: decides nothing for models that are planned already
_USE: Final = frozenset({"users", "lastUsed", "unusedSince", "prepared"})

# kinds of whose status plans read a view alone
_BY_STATUS: Final[Mapping[Resource, Kind[Any]]] = {
    kind.resource: kind for kind in (JOB, POD, DEPLOYMENT, CLAIM)
}


class ModelKey(NamedTuple):
    """Names an InferenceModel."""

    namespace: str
    name: str


class EngineKey(NamedTuple):
    """Names an InferenceEngine."""

    namespace: str
    name: str


@dataclass(frozen=True)
class Sinks:
    """The queues' `add`, one per controller."""

    model: Callable[[ModelKey], None]
    engine: Callable[[EngineKey], None]
    accelerator_class: Callable[[str], None]
    image: Callable[[str], None]
    proposals: Callable[[], None]
    collection: Callable[[str], None]  # takes a namespace
    # a model or an engine, for a change that others will follow; without it, at once
    lazily: Callable[[ModelKey | EngineKey], None] | None = None


class Router:
    """Updates the cache and, if that has changed, the queues."""

    def __init__(self, cache: ObjectCache, sinks: Sinks, store: StoreConfig | None = None) -> None:
        """Create it; without the configured `store`, any node may decide for any model."""
        self._cache = cache
        self._sinks = sinks
        self._store = store
        self._engines: dict[EngineKey, str] = {}  # hash of what models have been queued for
        self._needs: dict[ModelKey, frozenset[str]] = {}  # engines that have been queued for it

    def event(self, resource: Resource, obj: Mapping[str, Any], *, deleted: bool) -> None:
        """Handle one watch event."""
        change = self._cache.observe(resource, obj, deleted=deleted)
        if change is None:
            return
        before, now = change.before, change.now
        if resource == NODES:
            self._node(before, now)
            return
        if before is not None and now is not None and self._reads_alike(resource, before, now):
            return
        lazily = self._will_be_followed(resource, before, now)
        if now is not None:
            self._route(resource, now, lazily=lazily)
        if before is not None and (now is None or _find_owner(before) != _find_owner(now)):
            self._route(resource, before, lazily=lazily)
        if now is not None and before is None:
            self._collection(resource, now)

    def page(self, resource: Resource, items: Iterable[JsonObject]) -> frozenset[tuple[str, str]]:
        """Handle a page of a listing; returns the namespaces and names in it."""
        for obj in items:
            self.event(resource, obj, deleted=False)
        return frozenset(map(name_of, items))

    def end_listing(
        self, resource: Resource, names: Collection[tuple[str, str]], version: str
    ) -> None:
        """Handle the end of a listing with these names, of this version."""
        for ghost in self._cache.end_listing(resource, names, version):
            self.event(resource, ghost, deleted=True)

    def on_kind_found(self, resource: Resource) -> None:
        """Handle that the API server has a kind that it may lack."""
        if self._cache.know_kind(resource):
            self.all_models()

    def missing(self, resource: Resource) -> None:
        """Handle that the API server does not have a kind."""
        if self._cache.forget_kind(resource):
            self.all_models()

    def on_written(self, resource: Resource, obj: Mapping[str, Any]) -> None:
        """Queue the keys affected by an object that another of our controllers has written."""
        if resource == INFERENCE_ENGINES:
            self._route(resource, obj)
        elif resource == INFERENCE_MODELS:
            self._queue_unbuilt_engines(obj)
        elif resource == CLAIMS:
            self._collection(resource, obj)

    def everything(self) -> None:
        """Queue every class and model: at the start, and when shared facts have changed."""
        for _, name in self._cache.names(ACCELERATOR_CLASSES):
            self._sinks.accelerator_class(name)
        self.all_models()

    def begin(self) -> None:
        """Queue every key, once workers are running."""
        self._sinks.proposals()
        self.everything()
        for key in self._cache.names(INFERENCE_ENGINES):
            self._sinks.engine(EngineKey(*key))
        self.all_collections()

    def all_models(self) -> None:
        """Queue every model."""
        self._models(self._cache.names(INFERENCE_MODELS))

    def all_collections(self) -> None:
        """Queue every namespace that has a store, or has had one."""
        cache = self._cache
        namespaces = {namespace for kind in _WITH_STORE for namespace, _ in cache.names(kind)}
        namespaces |= {
            namespace for namespace, _ in cache.names_everywhere(JOBS, labels.COMPONENT, COLLECT)
        }
        for namespace in sorted(namespaces):
            self._sinks.collection(namespace)

    def _route(self, resource: Resource, obj: Mapping[str, Any], *, lazily: bool = False) -> None:
        if resource == INFERENCE_MODELS:
            self._models((name_of(obj),))
            self._queue_unbuilt_engines(obj)
        elif resource == ACCELERATOR_CLASSES:
            self._sinks.accelerator_class(obj["metadata"]["name"])
            self._sinks.proposals()
            self.everything()
        elif resource == INFERENCE_ENGINES:
            self._engine(obj)
        elif resource == CLAIMS:
            namespace = obj["metadata"]["namespace"]
            for name in self._cache.names(INFERENCE_MODELS, namespace):
                self._owner(ModelKey(*name), lazily=lazily)
            for engine in self._cache.find_names(INFERENCE_ENGINES, namespace, UNBUILT, ""):
                self._owner(EngineKey(namespace, engine), lazily=lazily)
        elif owner := _find_owner(obj):
            self._owner(owner, lazily=lazily)
        elif _collects(obj):
            self._sinks.collection(obj["metadata"]["namespace"])
        elif image := (obj["metadata"].get("labels") or {}).get(labels.IMAGE):
            self._sinks.image(image)

    def _owner(self, key: ModelKey | EngineKey, *, lazily: bool) -> None:
        if lazily and self._sinks.lazily:
            self._sinks.lazily(key)
        elif isinstance(key, ModelKey):
            self._sinks.model(key)
        else:
            self._sinks.engine(key)

    def _reads_alike(self, resource: Resource, before: JsonObject, now: JsonObject) -> bool:
        """Return whether only what no plan reads has changed: counters and finalizers of other controllers."""
        kind = _BY_STATUS.get(resource)
        return (
            kind is not None
            and (resource == CLAIMS or _get_given(before) == _get_given(now))
            and self._cache.views(kind, (before,)) == self._cache.views(kind, (now,))
        )

    def _will_be_followed(
        self, resource: Resource, before: JsonObject | None, now: JsonObject | None
    ) -> bool:
        """Return whether a Job or a Deployment proceeds without a result, which comes with a change of its own."""
        if resource == PODS:  # their Job or Deployment says what becomes of them
            return True
        if before is None or now is None or resource not in (JOBS, DEPLOYMENTS, CLAIMS):
            return False
        (old,), (new,) = (self._cache.views(_BY_STATUS[resource], (obj,)) for obj in (before, now))
        return resource == CLAIMS or (
            _get_given(before) == _get_given(now) and _get_results(old) == _get_results(new)
        )

    def _node(self, before: JsonObject | None, now: JsonObject | None) -> None:
        """Queue what a node decides: the classes that select it, and their models; all models where any node counts."""
        old, new = (
            next(iter(self._cache.views(NODE, (node,) if node else ())), None)
            for node in (before, now)
        )
        change = NodeChange(old, new)
        self._sinks.proposals()
        if change.concerns_all(self._cache, self._store):
            self.everything()
            return
        classes = change.list_classes(self._cache)
        for name in classes:
            self._sinks.accelerator_class(name)
        for name in (*classes, ""):  # those that name none may be served on any
            self._models(self._cache.names_everywhere(INFERENCE_MODELS, CLASSES, name))

    def _engine(self, obj: Mapping[str, Any]) -> None:
        """Queue an engine and, unless only who uses it has changed, the models that refer to it or to what it is built from."""
        key = EngineKey(obj["metadata"]["namespace"], obj["metadata"]["name"])
        self._sinks.engine(key)
        before = self._engines.pop(key, None)
        if (engine := self._cache.get(INFERENCE_ENGINES, *key)) is not None:
            self._engines[key] = _hash_without_use(engine)
            if before == self._engines[key]:
                return
        prepared = str((obj.get("spec") or {}).get("preparedKey") or "")
        for index, value in ((labels.ENGINE, key.name), (PREPARED, prepared)):
            names = self._cache.find_names(INFERENCE_MODELS, key.namespace, index, value)
            self._models((key.namespace, name) for name in names)

    def _collection(self, resource: Resource, obj: Mapping[str, Any]) -> None:
        if resource in _WITH_STORE:
            self._sinks.collection(obj["metadata"]["namespace"])

    def _queue_unbuilt_engines(self, model: Mapping[str, Any]) -> None:
        """Queue the unbuilt engines that a model may need, or may have needed before."""
        key, cache = ModelKey(*name_of(model)), self._cache
        before = self._needs.pop(key, frozenset())
        observed = cache.get(INFERENCE_MODELS, *key)
        needs = frozenset(self._list_engines(observed)) if observed else frozenset()
        if needs:
            self._needs[key] = needs
        unbuilt = cache.find_names(INFERENCE_ENGINES, key.namespace, UNBUILT, "")
        for name in sorted((before | needs).intersection(unbuilt)):
            self._sinks.engine(EngineKey(key.namespace, name))

    def _list_engines(self, model: Mapping[str, Any]) -> Iterator[str]:
        """Yield the engines that a model refers to, or whose backend it has rejected and may try again."""
        namespace, status = model["metadata"]["namespace"], model.get("status") or {}
        for engine in status.get("engines") or ():
            yield engine["name"]
        for rejected in status.get("rejectedBackends") or ():
            key = str((rejected.get("prepared") or {}).get("key") or "")
            yield from self._cache.find_names(INFERENCE_ENGINES, namespace, PREPARED, key)

    def _models(self, models: Iterable[tuple[str, str]]) -> None:
        for model in models:
            self._sinks.model(ModelKey(*model))


def _hash_without_use(engine: Mapping[str, Any]) -> str:
    """Return a hash of all of an engine that may decide something for models."""
    status = engine.get("status") or {}
    kept = {name: item for name, item in status.items() if name not in _USE}
    return sha256_text(canonical_json({**without_version(engine), "status": kept}))


def _get_results(view: JobView | DeploymentView) -> tuple[object, ...]:
    """Return what decides something of a Job or a Deployment."""
    if isinstance(view, JobView):
        return view.outcome, view.suspended
    return view.available, view.is_stuck, view.refused is None


def _get_given(obj: JsonObject) -> JsonObject:
    """Return all of an object but its status and what it is kept for."""
    given = {name: item for name, item in without_version(obj).items() if name != "status"}
    given["metadata"].pop("finalizers", None)
    return given


def _collects(obj: Mapping[str, Any]) -> bool:
    return (obj["metadata"].get("labels") or {}).get(labels.COMPONENT) == COLLECT


def _find_owner(obj: Mapping[str, Any]) -> ModelKey | EngineKey | None:
    if owner := model_of(obj):
        return ModelKey(*owner)
    owner = engine_of(obj)
    return EngineKey(*owner) if owner else None
