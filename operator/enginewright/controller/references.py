"""References to engines in the status of models."""

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
