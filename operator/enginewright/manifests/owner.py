"""Ownership: what belongs to one model goes with it, by Kubernetes' own garbage collection."""

from typing import Any

from enginewright.api.base import API_VERSION
from enginewright.api.inference_model import InferenceModel


def owned_metadata(model: InferenceModel, name: str, labels: dict[str, str]) -> dict[str, Any]:
    """Return the metadata of an object that the model owns."""
    return {
        "name": name,
        "namespace": model.metadata.namespace,
        "labels": labels,
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": InferenceModel.kind,
                "name": model.metadata.name,
                "uid": model.metadata.uid,
                "controller": True,
            }
        ],
    }
