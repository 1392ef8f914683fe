"""A device by Dynamic Resource Allocation: the template from which each pod gets a separate claim.

A template's spec is immutable, so its name has a hash of the request. It belongs to the model or the
InferenceEngine whose pods name it, and is deleted with that: stored revisions may return to it.
"""

from collections.abc import Mapping
from typing import Any, Final

from enginewright_contract.keys import content_hash

from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model import InferenceModel
from enginewright.manifests.names import child_name
from enginewright.manifests.owner import make_owned_metadata

CLAIM_TEMPLATE: Final = "ResourceClaimTemplate"
CLAIMS_VERSION: Final = "resource.k8s.io/v1"
_DEVICE: Final = "device"  # name of the claim in a pod, and of its request
_HASH_LENGTH: Final = 10


def claim_template(
    owner: InferenceModel | InferenceEngine, labels: dict[str, str], request: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the template for the pods of a model or an engine; `request`: a DeviceRequest."""
    name = template_name(owner.kind, owner.metadata.name, request)
    exactly = {"allocationMode": "ExactCount", "count": 1, **request}
    return {
        "apiVersion": CLAIMS_VERSION,
        "kind": CLAIM_TEMPLATE,
        "metadata": make_owned_metadata(owner, name, labels),
        "spec": {"spec": {"devices": {"requests": [{"name": _DEVICE, "exactly": exactly}]}}},
    }


def template_name(kind: str, owner: str, request: Mapping[str, Any]) -> str:
    """Return the name of the template for a request of an owner's pods."""
    return child_name(owner, "device", content_hash(kind, owner, request)[:_HASH_LENGTH])


def pod_claims(template: str) -> list[dict[str, str]]:
    """Return `resourceClaims` of a pod that gets one claim of a template."""
    return [{"name": _DEVICE, "resourceClaimTemplateName": template}]


def with_claim(resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resources of a container that uses the device."""
    return {**resources, "claims": [{"name": _DEVICE}]}
