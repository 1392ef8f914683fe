"""A model's HTTPRoute, and the Service of its canary."""

from typing import Any, Final

from enginewright.api.inference_model import InferenceModel
from enginewright.api.route import Route
from enginewright.manifests.labels import CANARY, MODEL, SERVE, TRACK, model_value, of_model
from enginewright.manifests.names import canary_service_name
from enginewright.manifests.owner import make_owned_metadata
from enginewright.manifests.service import http_port, service

GATEWAY_API: Final = "gateway.networking.k8s.io"
ROUTE_VERSION: Final = f"{GATEWAY_API}/v1"
HTTP_ROUTE: Final = "HTTPRoute"
WEIGHTS: Final = 10_000  # the sum of both, so that a share of 0.01% is exact


def canary_service(model: InferenceModel, *, tls: bool) -> dict[str, Any]:
    """Return the Service in front of the canary's ready pods, which gets requests by the route only."""
    stable = service(model, tls=tls)
    return {
        **stable,
        "metadata": make_owned_metadata(
            model, canary_service_name(model.metadata.name), of_model(model.metadata.name, CANARY)
        ),
        "spec": {
            **stable["spec"],
            "selector": {MODEL: model_value(model.metadata.name), TRACK: CANARY},
        },
    }


def http_route(
    model: InferenceModel,
    route: Route,
    *,
    canary_share: float,
    tls: bool,
    canary_tls: bool,
) -> dict[str, Any]:
    """Return the HTTPRoute that splits inference requests between the serving pods and the canary's.

    `canary_share` is 0 to 1; above 0 it is at least 1/`WEIGHTS`. Requests for metrics and the server's
    state are not routed.
    """
    name = model.metadata.name
    weight = max(round(canary_share * WEIGHTS), 1 if canary_share > 0 else 0)
    spec = {
        "parentRefs": [
            {"group": GATEWAY_API, "kind": "Gateway", **ref.manifest()} for ref in route.parent_refs
        ],
        "rules": [
            {
                "matches": [{"path": {"type": "PathPrefix", "value": f"/v2/models/{name}"}}],
                "backendRefs": [
                    _backend(name, tls, WEIGHTS - weight),
                    _backend(canary_service_name(name), canary_tls, weight),
                ],
            }
        ],
    }
    return {
        "apiVersion": ROUTE_VERSION,
        "kind": HTTP_ROUTE,
        "metadata": make_owned_metadata(model, name, of_model(name, SERVE)),
        "spec": {**spec, "hostnames": list(route.hostnames)} if route.hostnames else spec,
    }


def _backend(name: str, tls: bool, weight: int) -> dict[str, Any]:
    port = http_port(tls=tls)
    return {"group": "", "kind": "Service", "name": name, "port": port, "weight": weight}
