"""The HorizontalPodAutoscaler of a class's Deployment."""

from collections.abc import Mapping
from typing import Any, Final

from enginewright.api.inference_model import InferenceModel
from enginewright.api.serving import Autoscaling
from enginewright.manifests.labels import CLASS, SERVE, of_model
from enginewright.manifests.owner import make_owned_metadata
from enginewright.manifests.serving_pod import SERVER
from enginewright.manifests.snapshot import Revision

QUEUE_METRIC: Final = "enginewright_queue_depth"  # of the server, docs/reference/metrics.md
CPU_UTILIZATION: Final = 80  # percent of the request


def horizontal_pod_autoscaler(
    model: InferenceModel,
    autoscaling: Autoscaling,
    revision: Revision,
    accelerator: str,
    *,
    name: str,
) -> dict[str, Any]:
    """Return the autoscaler of one class of `revision`; `name` is that of the class's Deployment."""
    labels = {**of_model(model.metadata.name, SERVE), CLASS: accelerator}
    metrics = autoscaling.metrics or (_default_metric(revision, accelerator),)
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": make_owned_metadata(model, name, labels),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicas": autoscaling.min_replicas or 1,
            "maxReplicas": autoscaling.max_replicas,
            "metrics": [dict(metric) for metric in metrics],
        },
    }


def _default_metric(revision: Revision, accelerator: str) -> dict[str, Any]:
    """Return CPU utilization where the server computes on requested CPUs, else its queue, known for every backend."""
    (snapshot,) = (
        device_class
        for device_class in revision.snapshot.classes
        if device_class.name == accelerator
    )
    if not snapshot.takes_device and _requests_cpu(revision.templates[accelerator]):
        return {
            "type": "ContainerResource",
            "containerResource": {
                "name": "cpu",
                "container": SERVER,
                "target": {"type": "Utilization", "averageUtilization": CPU_UTILIZATION},
            },
        }
    return {
        "type": "Pods",
        "pods": {
            "metric": {"name": QUEUE_METRIC},
            "target": {"type": "AverageValue", "averageValue": "1"},
        },
    }


def _requests_cpu(template: Mapping[str, Any]) -> bool:
    """Return whether the server requests CPU; a limit without a request is one."""
    (server,) = (item for item in template["spec"]["containers"] if item["name"] == SERVER)
    resources = server.get("resources") or {}
    return any("cpu" in (resources.get(side) or {}) for side in ("requests", "limits"))
