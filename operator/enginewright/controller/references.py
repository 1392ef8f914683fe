"""What the statuses of models say about engines."""

from collections.abc import Iterator, Mapping
from typing import Any

from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model import InferenceModel
from enginewright.api.inference_model_status import EngineReference, Prepared
from enginewright.controller.cache import ObjectCache
from enginewright.controller.indices import REJECTED
from enginewright.controller.parse import parse_objects
from enginewright.controller.routing import EngineKey
from enginewright.kube.api import JsonObject
from enginewright.kube.resources import INFERENCE_MODELS


def references(cache: ObjectCache, engine: EngineKey) -> dict[str, EngineReference]:
    """Return the references to an engine from its namespace's models by model, except those being deleted."""
    return {
        model["metadata"]["name"]: EngineReference.model_validate(entry)
        for model, entry in _referring(cache, engine)
    }


def preparations(cache: ObjectCache, engine: EngineKey) -> tuple[Prepared, ...]:
    """Return the prepared models of those that refer to an engine; likewise."""
    models = parse_objects(InferenceModel, (model for model, _ in _referring(cache, engine)))
    return tuple(model.status.prepared for model in models if model.status.prepared)


def _referring(
    cache: ObjectCache, engine: EngineKey
) -> Iterator[tuple[JsonObject, Mapping[str, Any]]]:
    for model in cache.of_engine(INFERENCE_MODELS, *engine):
        for item in (model.get("status") or {}).get("engines") or ():
            if item["name"] == engine.name:
                yield model, item


def is_tried_again(cache: ObjectCache, namespace: str, engine: InferenceEngine) -> bool:
    """Return whether a model has rejected the backend of an engine, and may try it again with that."""
    key = engine.spec.prepared_key
    rejected = str(engine.spec.backend), key
    return any(
        (item.get("backend"), (item.get("prepared") or {}).get("key")) == rejected
        for model in cache.find(INFERENCE_MODELS, namespace, REJECTED, key)
        for item in (model.get("status") or {}).get("rejectedBackends") or ()
    )
