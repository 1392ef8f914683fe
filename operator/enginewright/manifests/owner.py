"""Ownership: objects of a model or an engine are deleted with it, by Kubernetes' garbage collection."""

from typing import Any

from enginewright.api.base import API_VERSION
from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model import InferenceModel


def make_owned_metadata(
    owner: InferenceModel | InferenceEngine, name: str, labels: dict[str, str]
) -> dict[str, Any]:
    """Return the metadata of an object with a controller owner reference."""
    return {
        "name": name,
        "namespace": owner.metadata.namespace,
        "labels": labels,
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": owner.kind,
                "name": owner.metadata.name,
                "uid": owner.metadata.uid,
                "controller": True,
            }
        ],
    }
