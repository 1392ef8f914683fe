"""A model's Service and its PodDisruptionBudgets."""

from typing import Any, Final

from enginewright_contract.task import GRPC_PORT

from enginewright.api.inference_model import InferenceModel
from enginewright.manifests.labels import CLASS, SERVE, of_model, serving_selector
from enginewright.manifests.owner import make_owned_metadata

_HTTP_PORT: Final = 80
_HTTPS_PORT: Final = 443


def http_port(*, tls: bool) -> int:
    """Return a Service's port for HTTP, or for HTTPS."""
    return _HTTPS_PORT if tls else _HTTP_PORT


def service(model: InferenceModel, *, tls: bool) -> dict[str, Any]:
    """Return the Service in front of all the model's ready pods, of every class, which speak TLS or not."""
    name = model.metadata.name
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": make_owned_metadata(model, name, of_model(name, SERVE)),
        "spec": {
            "selector": serving_selector(name),
            "ports": [
                {
                    "name": "https" if tls else "http",
                    "port": http_port(tls=tls),
                    "targetPort": "http",
                    "protocol": "TCP",
                    "appProtocol": "https" if tls else "http",
                },
                {
                    "name": "grpc",
                    "port": GRPC_PORT,
                    "targetPort": GRPC_PORT,  # no named port of the container: it would be a new revision
                    "protocol": "TCP",
                    # HTTP/2 is negotiated by TLS
                    "appProtocol": "https" if tls else "kubernetes.io/h2c",
                },
            ],
        },
    }


def disruption_budget(
    model: InferenceModel, accelerator_class: str, *, name: str
) -> dict[str, Any]:
    """Return the budget of a class: one eviction at a time; unready pods do not block a drain."""
    served = model.metadata.name
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": make_owned_metadata(
            model, name, {**of_model(served, SERVE), CLASS: accelerator_class}
        ),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": serving_selector(served, accelerator_class)},
        },
    }
