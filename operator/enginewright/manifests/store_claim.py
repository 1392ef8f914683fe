"""The claim that stores a namespace's artefacts. No model owns it: artefacts outlive the models that share them."""

from typing import Any

from enginewright.manifests.labels import MANAGED_BY, OPERATOR


def store_claim(
    namespace: str, name: str, *, size: str, access_mode: str, storage_class: str | None
) -> dict[str, Any]:
    """Return the claim; without `storage_class` the cluster's default is used."""
    spec: dict[str, Any] = {
        "accessModes": [access_mode],
        "resources": {"requests": {"storage": size}},
    }
    if storage_class:
        spec["storageClassName"] = storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace, "labels": {MANAGED_BY: OPERATOR}},
        "spec": spec,
    }
