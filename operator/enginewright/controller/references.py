"""What the models of a namespace say of its engines, in their status."""

from collections.abc import Iterator

from enginewright.api.inference_model_status import EngineReference
from enginewright.controller.cache import ObjectCache
from enginewright.controller.routing import EngineKey
from enginewright.kube.resources import INFERENCE_MODELS


def references(cache: ObjectCache, engine: EngineKey) -> Iterator[EngineReference]:
    """Yield the references to an engine in the status of its namespace's models that stay."""
    for model in cache.all(INFERENCE_MODELS):
        metadata = model["metadata"]
        if metadata["namespace"] != engine.namespace or "deletionTimestamp" in metadata:
            continue
        for each in (model.get("status") or {}).get("engines") or ():
            if each["name"] == engine.name:
                yield EngineReference.model_validate(each)
