"""Classes of GPUs, their engines, pods and devices, as tests on simulated devices look at them."""

import json
from typing import Any, Final

from tests.e2e.harness import REPOSITORY, Namespace, eventually, run

CLASS: Final = "l4"  # of node-2
COMPONENT: Final = "enginewright.dev/component"
SHAPES: Final = [
    {"input": "x", "min": [1, 3, 32, 32], "opt": [4, 3, 32, 32], "max": [8, 3, 32, 32]}
]


def proposed_class(namespace: Namespace, name: str) -> dict[str, Any]:
    """Return the spec of a class that the operator proposes."""
    found = eventually(lambda: namespace.get("acceleratorclass", name), 60, "the proposal")
    spec: dict[str, Any] = found["spec"]
    assert spec["resourceName"] == "nvidia.com/gpu"
    return spec


def set_class(namespace: Namespace, name: str, **spec: Any) -> None:
    """Change an AcceleratorClass, as its administrator does."""
    patch = json.dumps({"spec": spec})
    namespace.kubectl("patch", "acceleratorclass", name, "--type", "merge", "--patch", patch)


def engines_of(namespace: Namespace, model: str) -> dict[str, str]:
    """Return the names of a model's engines, by class."""
    status = namespace.get("inferencemodel", model).get("status", {})
    return {each["class"]: each["name"] for each in status.get("engines", [])}


def engine_jobs(namespace: Namespace, engine: str) -> list[dict[str, Any]]:
    """Return the Jobs that build an engine."""
    return namespace.items("jobs", f"{COMPONENT}=engine,enginewright.dev/engine={engine}")


def serving_pods(namespace: Namespace, model: str, on: str = "") -> list[dict[str, Any]]:
    """Return the pods of a model, of all classes or of one."""
    selector = f"enginewright.dev/model={model},{COMPONENT}=serve"
    selector += f",enginewright.dev/class={on}" if on else ""
    pods = namespace.items("pods", selector)
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def nodes(pods: list[dict[str, Any]]) -> set[str]:
    """Return the nodes of pods; "": of those that have none yet."""
    return {pod["spec"].get("nodeName", "") for pod in pods}


def holder(devices: int) -> dict[str, Any]:
    """Return a pod that uses some devices, like another team's."""
    image = run([str(REPOSITORY / "hack/images"), "list", "cpu"]).split()[1]
    container = {
        "name": "devices",
        "image": image,
        "command": ["sleep", "3600"],
        "resources": {"limits": {"nvidia.com/gpu": str(devices)}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "devices"}, "spec": spec}
