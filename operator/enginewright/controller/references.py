"""What the statuses of models say about engines."""

from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model_status import EngineReference
from enginewright.controller.cache import ObjectCache
from enginewright.controller.routing import EngineKey
from enginewright.kube.resources import INFERENCE_MODELS


def references(cache: ObjectCache, engine: EngineKey) -> dict[str, EngineReference]:
    """Return the references to an engine from its namespace's models, except those being deleted, by model."""
    found = {}
    for model in cache.all(INFERENCE_MODELS):
        metadata = model["metadata"]
        if metadata["namespace"] != engine.namespace or "deletionTimestamp" in metadata:
            continue
        for each in (model.get("status") or {}).get("engines") or ():
            if each["name"] == engine.name:
                found[metadata["name"]] = EngineReference.model_validate(each)
    return found


def is_tried_again(cache: ObjectCache, namespace: str, engine: InferenceEngine) -> bool:
    """Return whether a model has rejected the backend of an engine, and may try it again with that."""
    wanted = str(engine.spec.backend), engine.spec.prepared_key
    return any(
        (each.get("backend"), (each.get("prepared") or {}).get("key")) == wanted
        for model in cache.all(INFERENCE_MODELS)
        if model["metadata"]["namespace"] == namespace
        for each in (model.get("status") or {}).get("rejectedBackends") or ()
    )
