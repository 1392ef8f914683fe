"""The part of an observed object that is cached: only fields that are read.

The cache compares slim objects to distinguish a change from a heartbeat, so fields that are dropped
here neither cause a reconcile nor take memory.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from enginewright.kube.api import JsonObject
from enginewright.kube.resources import (
    DEPLOYMENTS,
    HORIZONTAL_POD_AUTOSCALERS,
    NODES,
    PODS,
    Resource,
)
from enginewright.observed.deployments import count_managers

_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_READY: Final = "Ready"


def slim(resource: Resource, obj: Mapping[str, Any]) -> JsonObject:
    """Return a copy of `obj` with what is read of its kind; nested values are shared."""
    kept = _KEPT.get(resource, dict)(obj)
    kept["apiVersion"] = resource.api_version
    kept["kind"] = resource.kind
    kept["metadata"] = _metadata(resource, obj["metadata"])
    return kept


def without_version(obj: Mapping[str, Any]) -> JsonObject:
    """Return `obj` without the resource version, which changes with every heartbeat."""
    metadata = {key: value for key, value in obj["metadata"].items() if key != "resourceVersion"}
    return {**obj, "metadata": metadata}


def _metadata(resource: Resource, metadata: Mapping[str, Any]) -> JsonObject:
    kept = {key: value for key, value in metadata.items() if key != "managedFields"}
    if resource == DEPLOYMENTS and (managers := count_managers(metadata)):
        kept["managedFields"] = [
            {"manager": manager, "fieldsV1": {"f:spec": {"f:replicas": {}}}}
            for manager in sorted(managers)
        ]
    if resource == NODES:
        kept.pop("annotations", None)  # written by every agent on the node, all the time
    elif _LAST_APPLIED in (annotations := kept.get("annotations") or {}):
        kept["annotations"] = {k: v for k, v in annotations.items() if k != _LAST_APPLIED}
    return kept


def _pod(obj: Mapping[str, Any]) -> JsonObject:
    spec = obj.get("spec") or {}
    placed = "nodeName" if "nodeName" in spec else "schedulerName"  # that is to place it
    kept: JsonObject = {placed: spec[placed]} if placed in spec else {}
    for kind in ("initContainers", "containers"):  # limits explain why one was ended
        kept[kind] = [
            {"name": item["name"], "resources": item.get("resources") or {}}
            for item in spec.get(kind) or ()
        ]
    if mounted := [item for item in spec.get("volumes") or () if item.get("image")]:
        kept["volumes"] = mounted  # named where they cannot be pulled
    return {"spec": kept, "status": obj.get("status") or {}}


def _autoscaler(obj: Mapping[str, Any]) -> JsonObject:
    return {"spec": obj.get("spec") or {}}  # the status changes with every measurement


def _node(obj: Mapping[str, Any]) -> JsonObject:
    """Keep readiness, which changes rarely, and schedulability; labels stay with the metadata."""
    spec = obj.get("spec") or {}
    status = obj.get("status") or {}
    conditions = [
        {
            key: condition[key]
            for key in ("type", "status", "lastTransitionTime")
            if key in condition
        }
        for condition in status.get("conditions") or ()
        if condition.get("type") == _READY
    ]
    return {
        "spec": {key: spec[key] for key in ("unschedulable", "taints") if key in spec},
        "status": {"conditions": conditions},
    }


_KEPT: Final[dict[Resource, Callable[[Mapping[str, Any]], JsonObject]]] = {
    HORIZONTAL_POD_AUTOSCALERS: _autoscaler,
    PODS: _pod,
    NODES: _node,
}
