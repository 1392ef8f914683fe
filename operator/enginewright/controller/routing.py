"""Which keys an observed change affects. No IO: kopf calls this inside its watch streams."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from enginewright.controller.cache import ObjectCache, engine_of, model_of
from enginewright.controller.slim import without_version
from enginewright.kube.api import Listing
from enginewright.kube.resources import (
    ACCELERATOR_CLASSES,
    CLAIMS,
    INFERENCE_ENGINES,
    INFERENCE_MODELS,
    JOBS,
    NODES,
    Resource,
)
from enginewright.manifests import labels
from enginewright.manifests.collect_job import COLLECT

# kinds whose objects show that a namespace has a store
_WITH_STORE: Final = (INFERENCE_MODELS, INFERENCE_ENGINES, CLAIMS)

# in the status of an InferenceEngine: decides nothing for models that are planned already
_USE: Final = frozenset({"users", "lastUsed", "unusedSince", "prepared"})


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


class Router:
    """Updates the cache and, if that has changed, the queues."""

    def __init__(self, cache: ObjectCache, sinks: Sinks) -> None:
        self._cache = cache
        self._sinks = sinks
        self._engines: dict[EngineKey, Mapping[str, Any]] = {}  # what models have been queued for

    def event(self, resource: Resource, obj: Mapping[str, Any], *, deleted: bool) -> None:
        """Handle one watch event."""
        before = self._cache.get(
            resource, obj["metadata"].get("namespace"), obj["metadata"]["name"]
        )
        if changed := self._cache.observe(resource, obj, deleted=deleted):
            self._route(resource, changed)
            if before is not None and _owners(before) != _owners(changed):
                self._route(resource, before)
            if before is None:
                self._collection(resource, changed)

    def listing(self, resource: Resource, listing: Listing) -> int:
        """Handle a complete listing; returns how many objects changed."""
        changed = self._cache.replace(resource, listing)
        for obj in changed:
            self._route(resource, obj)
            self._collection(resource, obj)
        return len(changed)

    def missing(self, resource: Resource) -> None:
        """Handle that the API server does not have a kind."""
        if self._cache.forget_kind(resource):
            self.all_models()

    def on_written(self, resource: Resource, obj: Mapping[str, Any]) -> None:
        """Queue the keys affected by an object that another of our controllers has written."""
        if resource == INFERENCE_ENGINES:
            self._route(resource, obj)
        elif resource == INFERENCE_MODELS:
            self._queue_unbuilt_engines(obj["metadata"]["namespace"])
        elif resource == CLAIMS:
            self._collection(resource, obj)

    def everything(self) -> None:
        """Queue every class and model: at the start, and when shared facts have changed."""
        for accelerator_class in self._cache.all(ACCELERATOR_CLASSES):
            self._sinks.accelerator_class(accelerator_class["metadata"]["name"])
        self.all_models()

    def begin(self) -> None:
        """Queue every key, once workers are running."""
        self._sinks.proposals()
        self.everything()
        for engine in self._cache.all(INFERENCE_ENGINES):
            metadata = engine["metadata"]
            self._sinks.engine(EngineKey(metadata["namespace"], metadata["name"]))
        self.all_collections()

    def all_models(self) -> None:
        """Queue every model."""
        self._models(self._cache.all(INFERENCE_MODELS))

    def all_collections(self) -> None:
        """Queue every namespace that has a store, or has had one."""
        objects = [entry for kind in _WITH_STORE for entry in self._cache.all(kind)]
        objects += [entry for entry in self._cache.all(JOBS) if _collects(entry)]
        for namespace in sorted({object_["metadata"]["namespace"] for object_ in objects}):
            self._sinks.collection(namespace)

    def _route(self, resource: Resource, obj: Mapping[str, Any]) -> None:
        if resource == INFERENCE_MODELS:
            self._models((obj,))
            self._queue_unbuilt_engines(obj["metadata"]["namespace"])
        elif resource in (ACCELERATOR_CLASSES, NODES):
            if resource == ACCELERATOR_CLASSES:
                self._sinks.accelerator_class(obj["metadata"]["name"])
            self._sinks.proposals()
            self.everything()
        elif resource == INFERENCE_ENGINES:
            self._engine(obj)
        elif resource == CLAIMS:
            self._models_of(obj["metadata"]["namespace"])
            self._queue_unbuilt_engines(obj["metadata"]["namespace"])
        elif owner := model_of(obj):
            self._sinks.model(ModelKey(*owner))
        elif owner := engine_of(obj):
            self._sinks.engine(EngineKey(*owner))
        elif _collects(obj):
            self._sinks.collection(obj["metadata"]["namespace"])
        elif image := (obj["metadata"].get("labels") or {}).get(labels.IMAGE):
            self._sinks.image(image)

    def _engine(self, obj: Mapping[str, Any]) -> None:
        """Queue an engine and, unless only who uses it has changed, its namespace's models: any may wait for it."""
        key = EngineKey(obj["metadata"]["namespace"], obj["metadata"]["name"])
        self._sinks.engine(key)
        before = self._engines.pop(key, None)
        if (engine := self._cache.get(INFERENCE_ENGINES, *key)) is not None:
            self._engines[key] = _without_use(engine)
            if before == self._engines[key]:
                return
        self._models_of(key.namespace)

    def _collection(self, resource: Resource, obj: Mapping[str, Any]) -> None:
        if resource in _WITH_STORE:
            self._sinks.collection(obj["metadata"]["namespace"])

    def _queue_unbuilt_engines(self, namespace: str) -> None:
        """Queue the unbuilt engines of a namespace: its models may need others than before."""
        for engine in self._cache.in_namespace(INFERENCE_ENGINES, namespace):
            if is_unbuilt(engine):
                self._sinks.engine(EngineKey(namespace, engine["metadata"]["name"]))

    def _models_of(self, namespace: str) -> None:
        self._models(self._cache.in_namespace(INFERENCE_MODELS, namespace))

    def _models(self, models: Iterable[Mapping[str, Any]]) -> None:
        for model in models:
            metadata = model["metadata"]
            self._sinks.model(ModelKey(metadata["namespace"], metadata["name"]))


def _without_use(engine: Mapping[str, Any]) -> Mapping[str, Any]:
    status = engine.get("status") or {}
    kept = {name: item for name, item in status.items() if name not in _USE}
    return {**without_version(engine), "status": kept}


def _collects(obj: Mapping[str, Any]) -> bool:
    return (obj["metadata"].get("labels") or {}).get(labels.COMPONENT) == COLLECT


def is_unbuilt(engine: Mapping[str, Any]) -> bool:
    """Return whether an InferenceEngine has no engine yet, so that models' references affect it."""
    return "engine" not in (engine.get("status") or {})


def _owners(obj: Mapping[str, Any]) -> tuple[object, object]:
    return model_of(obj), engine_of(obj)
