"""The InferenceEngine that a model requests."""

from typing import Any

from enginewright.api.base import API_VERSION
from enginewright.api.inference_engine import InferenceEngine, InferenceEngineSpec
from enginewright.manifests.labels import CLASS, MANAGED_BY, OPERATOR, REQUESTED_BY
from enginewright.manifests.names import child_name

_KEY_SHOWN = 12


def engine_name(spec: InferenceEngineSpec) -> str:
    """Return the name: backend, class and the beginning of the key; a valid label value."""
    return child_name(str(spec.backend), spec.class_name, spec.key[:_KEY_SHOWN])


def inference_engine(namespace: str, spec: InferenceEngineSpec, model: str) -> dict[str, Any]:
    """Return the InferenceEngine. No model owns it, but only the requesting `model` decides where its Jobs run."""
    return {
        "apiVersion": API_VERSION,
        "kind": InferenceEngine.kind,
        "metadata": {
            "name": engine_name(spec),
            "namespace": namespace,
            "labels": {MANAGED_BY: OPERATOR, CLASS: spec.class_name},
            "annotations": {REQUESTED_BY: model},
        },
        "spec": spec.manifest(),
    }
