"""Classes of GPUs, their engines, pods and devices, for tests on simulated devices."""

from typing import Any, Final

from hack.samples.load import pod_spec
from tests.e2e.harness import Namespace, eventually, image

CLASS: Final = "l4"  # of node-2
RESOURCE: Final = "nvidia.com/gpu"
COMPONENT: Final = "enginewright.dev/component"
SHAPES: Final = [
    {"input": "x", "min": [1, 3, 32, 32], "opt": [4, 3, 32, 32], "max": [8, 3, 32, 32]}
]


def wait_proposed_class(namespace: Namespace, name: str) -> dict[str, Any]:
    """Return the spec of a class that the operator proposes."""
    proposal = eventually(lambda: namespace.get("acceleratorclass", name), 60, "the proposal")
    spec: dict[str, Any] = proposal["spec"]
    assert spec["resourceName"] == RESOURCE
    return spec


def set_class(namespace: Namespace, name: str, **spec: Any) -> None:
    """Change an AcceleratorClass, as its administrator does."""
    namespace.patch("acceleratorclass", name, {"spec": spec})


def engines_of(namespace: Namespace, model: str) -> dict[str, str]:
    """Return the names of a model's engines, by class."""
    status = namespace.get("inferencemodel", model).get("status", {})
    return {item["class"]: item["name"] for item in status.get("engines", [])}


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
    """Return the nodes of pods, with an empty name for pods that are not scheduled."""
    return {pod["spec"].get("nodeName", "") for pod in pods}


def holder(devices: int) -> dict[str, Any]:
    """Return a pod that uses some devices, like another team's."""
    container = {
        "name": "devices",
        "command": ["sleep", "3600"],
        "resources": {"limits": {RESOURCE: str(devices)}},
    }
    spec = {
        **pod_spec({**container, "image": image("cpu")}),
        "tolerations": [{"key": RESOURCE, "operator": "Exists"}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "devices"}, "spec": spec}
