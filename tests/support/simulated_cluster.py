"""What kubelet, Job controller and Deployment controller would write, where there are none.

Statuses go through the real API server, so they have the form that it accepts.
"""

import json
from datetime import UTC, datetime
from typing import Any

from enginewright_contract.reasons import Reason, exit_code
from enginewright_contract.task import PREPARE_STAGES

from tests.e2e.harness import Namespace
from tests.support.plan_objects import make_object
from tests.support.simulation import unschedulable


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _set_status(namespace: Namespace, kind: str, name: str, status: dict[str, Any]) -> None:
    namespace.patch(kind, name, {"status": status}, "status")


def add_account(namespace: Namespace) -> None:
    """Add the account of a namespace's pods, which the service account controller makes."""
    metadata = {"name": "default"}
    namespace.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})


def add_release(system: Namespace) -> None:
    """Add what tells a release's namespace from others, as the chart does; it grants nothing."""
    system.put(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": system.name, "labels": {"app.kubernetes.io/name": "enginewright"}},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "none",
            },
            "subjects": [{"kind": "ServiceAccount", "name": "any", "namespace": system.name}],
        }
    )


def add_node(namespace: Namespace, name: str, **labels: str) -> None:
    """Add a node that is ready."""
    metadata = {"name": name, "labels": {"kubernetes.io/os": "linux", **labels}}
    namespace.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}})
    _set_status(namespace, "node", name, {"conditions": [{"type": "Ready", "status": "True"}]})


def add_gpu_class(namespace: Namespace, **changes: Any) -> None:
    """Add a node, and the class `l4` that selects it and whose engines, without `changes`, are built ahead of time."""
    selector = {"example.com/gpu": "l4"}
    add_node(namespace, "node-2", **selector)
    spec = {
        "nodeSelector": selector,
        "backends": ["tensorrt-rtx"],
        "resourceName": "nvidia.com/gpu",
        "computeCapability": "8.9",
        "aheadOfTime": True,
        **changes,
    }
    namespace.apply(make_object("AcceleratorClass", "l4", spec=spec))


def start_pod(namespace: Namespace, job: dict[str, Any]) -> str:
    """Make a Job's pod, as the Job controller does; its name."""
    metadata = job["metadata"]
    name = f"{metadata['name']}-x{len(namespace.items('pods'))}"
    template = job["spec"]["template"]
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
    labels = {**template["metadata"]["labels"], "batch.kubernetes.io/job-name": metadata["name"]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
        "spec": template["spec"],
    }
    namespace.create(pod)
    _set_status(namespace, "job", metadata["name"], {"active": 1, "startTime": _now()})
    return name


def place_pod(namespace: Namespace, pod: str, node: str = "node-1") -> None:
    """Give a pod its node, as the scheduler does."""
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    path = f"/api/v1/namespaces/{namespace.name}/pods/{pod}/binding"
    namespace.kubectl("create", "--raw", path, "--filename", "-", stdin=json.dumps(binding))


def refuse_pod(namespace: Namespace, pod: str, wording: str) -> None:
    """Return the scheduler's message why a pod is unschedulable."""
    status = {"phase": "Pending", "conditions": [unschedulable(wording)]}
    _set_status(namespace, "pod", pod, status)


def run_stages(
    namespace: Namespace,
    pod: str,
    ended: dict[str, dict[str, Any]],
    running: str | None = None,
    stages: tuple[str, ...] = PREPARE_STAGES,
) -> None:
    """Set the status of a Job's pod: stages that have ended with their reports, one that runs.

    A report with `"ok": false` ends its stage with the exit code of its reason.
    """
    statuses = []
    for stage in stages:
        if stage in ended:
            termination_message = ended[stage]
            code = (
                0
                if termination_message["ok"]
                else int(exit_code(Reason(termination_message["reason"])))
            )
            message = json.dumps({"stage": stage, **termination_message})
            state = {"terminated": {"exitCode": code, "message": message, "finishedAt": _now()}}
        elif stage == running:
            state = {"running": {"startedAt": _now()}}
        else:
            state = {"waiting": {"reason": "PodInitializing"}}
        statuses.append(_container_status(stage, state))
    failed = any(not termination_message["ok"] for termination_message in ended.values())
    done = len(ended) == len(stages)
    phase = "Failed" if failed else "Succeeded" if done else "Pending"
    status = {
        "phase": phase,
        "initContainerStatuses": statuses[:-1],
        "containerStatuses": statuses[-1:],
    }
    _set_status(namespace, "pod", pod, status)


def end_probe(namespace: Namespace, pod: str, message: str) -> None:
    """End a probe's pod with its answer."""
    state = {"terminated": {"exitCode": 0, "message": message, "finishedAt": _now()}}
    status = {"phase": "Succeeded", "containerStatuses": [_container_status("probe", state)]}
    _set_status(namespace, "pod", pod, status)


def complete_job(namespace: Namespace, name: str) -> None:
    """End a Job well."""
    _end_job(namespace, name, ("SuccessCriteriaMet", "Complete"), {"succeeded": 1})


def fail_job(namespace: Namespace, name: str) -> None:
    """End a Job badly."""
    _end_job(namespace, name, ("FailureTarget", "Failed"), {"failed": 1})


def _end_job(
    namespace: Namespace, name: str, conditions: tuple[str, str], counts: dict[str, int]
) -> None:
    now = _now()
    entries = [
        {"type": condition, "status": "True", "reason": "Test", "lastTransitionTime": now}
        for condition in conditions
    ]
    # The API server requires the first of the two before the second.
    _set_status(namespace, "job", name, {"conditions": entries[:1]})
    status: dict[str, Any] = {"active": 0, "conditions": entries, **counts}
    if "succeeded" in counts:
        status["completionTime"] = now
    _set_status(namespace, "job", name, status)


def roll_out(namespace: Namespace, name: str) -> None:
    """Bring a Deployment's pods up."""
    deployment = namespace.get("deployment", name)
    count = deployment["spec"]["replicas"]
    status = {
        "observedGeneration": deployment["metadata"]["generation"],
        "replicas": count,
        "updatedReplicas": count,
        "readyReplicas": count,
        "availableReplicas": count,
    }
    _set_status(namespace, "deployment", name, status)


def _container_status(name: str, state: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "state": state,
        "ready": False,
        "restartCount": 0,
        "image": "example.com/i",
        "imageID": "example.com/i@sha256:0",
    }
