"""References to engines in the status of models."""

from collections.abc import Iterator

from enginewright.api.inference_model_status import EngineReference
from enginewright.controller.cache import ObjectCache
from enginewright.controller.routing import EngineKey
from enginewright.kube.api import JsonObject
from enginewright.kube.resources import INFERENCE_ENGINES, INFERENCE_MODELS
from enginewright.manifests.labels import REQUESTED_BY


def references(cache: ObjectCache, engine: EngineKey) -> Iterator[EngineReference]:
    """Yield the references to an engine from its namespace's models, except those being deleted."""
    for model in cache.all(INFERENCE_MODELS):
        if model["metadata"]["namespace"] == engine.namespace:
            yield from _of_model(model, engine.name)


def is_orphaned(cache: ObjectCache, engine: EngineKey) -> bool:
    """Return whether the model that requested an engine is deleted or needs another engine by now."""
    found = cache.get(INFERENCE_ENGINES, engine.namespace, engine.name)
    requester = (found["metadata"].get("annotations") or {}).get(REQUESTED_BY) if found else None
    if requester is None:
        return False
    model = cache.get(INFERENCE_MODELS, engine.namespace, requester)
    return model is None or not any(_of_model(model, engine.name))


def frees_elsewhere(cache: ObjectCache, engine: EngineKey, model: str) -> bool:
    """Return whether pods of a model other than `model` leave their devices to an engine's build."""
    return any(
        each.freed_at
        for other in cache.all(INFERENCE_MODELS)
        if other["metadata"]["namespace"] == engine.namespace and other["metadata"]["name"] != model
        for each in _of_model(other, engine.name)
    )


def _of_model(model: JsonObject, engine: str) -> Iterator[EngineReference]:
    if "deletionTimestamp" in model["metadata"]:
        return
    for each in (model.get("status") or {}).get("engines") or ():
        if each["name"] == engine:
            yield EngineReference.model_validate(each)
