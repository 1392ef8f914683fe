"""Whatever dies at whatever stage, nothing is lost: the model becomes ready in the end."""

from collections.abc import Callable, Iterator

import pytest

from tests.e2e import harness
from tests.e2e.harness import Namespace, eventually, inference_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def _operator_pod(installed: Namespace) -> str:
    pods = installed.items("pods", "app.kubernetes.io/name=enginewright")
    return str(pods[0]["metadata"]["name"])


def _kill_operator(installed: Namespace) -> None:
    installed.kubectl(
        "delete", "pod", _operator_pod(installed), "--grace-period=0", "--force", "--wait=false"
    )


def _stage_reached(namespace: Namespace, name: str, stage: str) -> Callable[[], bool]:
    def check() -> bool:
        status = namespace.get("inferencemodel", name).get("status", {})
        return bool(status.get("preparation", {}).get("stage") == stage)

    return check


@pytest.mark.parametrize("stage", ["fetch", "validate", "golden"])
def test_the_operator_is_killed_while_a_stage_runs(
    namespace: Namespace, installed: Namespace, stage: str
) -> None:
    name = f"operator-killed-{stage}"
    namespace.apply(inference_model(name, "magika.onnx"))
    eventually(_stage_reached(namespace, name, stage), 60, f"stage {stage}", interval=0.1)
    _kill_operator(installed)
    namespace.wait_ready(name)
    assert len(namespace.items("jobs", f"enginewright.dev/model={name}")) == 1
    namespace.kubectl("delete", "im", name)


def test_a_jobs_pod_is_deleted(namespace: Namespace) -> None:
    namespace.apply(inference_model("pod-deleted", "magika.onnx"))
    selector = "enginewright.dev/model=pod-deleted,enginewright.dev/component=prepare"
    pods = eventually(lambda: namespace.items("pods", selector), 30)
    namespace.kubectl("delete", "pod", pods[0]["metadata"]["name"], "--wait=false")
    namespace.wait_ready("pod-deleted")
    namespace.kubectl("delete", "im", "pod-deleted")


@pytest.fixture
def mended() -> Iterator[None]:
    yield
    harness.cluster("up")


@pytest.mark.parametrize("process", ["kubelet", "containerd"])
@pytest.mark.usefixtures("mended")
def test_a_node_agent_is_killed(namespace: Namespace, process: str) -> None:
    name = f"{process}-killed"
    namespace.apply(inference_model(name, "magika.onnx"))
    pods = eventually(
        lambda: [
            pod
            for pod in namespace.items("pods", f"enginewright.dev/model={name}")
            if pod["spec"].get("nodeName")
        ],
        30,
    )
    node = pods[0]["spec"]["nodeName"].removeprefix("node-")
    harness.cluster("kill", f"{process}-{node}")
    harness.cluster("up")
    namespace.wait_ready(name, 240)
    namespace.kubectl("delete", "im", name)


def test_a_lost_artefact_is_prepared_again(namespace: Namespace) -> None:
    """The store is cache: deleting from it costs time, never a service."""
    namespace.apply(inference_model("cache-lost", "magika.onnx"))
    namespace.wait_ready("cache-lost")
    key = namespace.get("inferencemodel", "cache-lost")["status"]["serving"]["preparedKey"]
    _remove_from_store(namespace, key)
    namespace.kubectl("delete", "pod", "--selector", "enginewright.dev/model=cache-lost")
    namespace.wait_condition("cache-lost", "Ready", "False", "Preparing", 120)
    namespace.wait_ready("cache-lost")
    namespace.kubectl("delete", "im", "cache-lost")


def _remove_from_store(namespace: Namespace, key: str) -> None:
    server = namespace.items("pods", "enginewright.dev/component=serve")[0]
    namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "remove"},
            "spec": {
                "restartPolicy": "Never",
                "securityContext": server["spec"]["securityContext"],
                "containers": [
                    {
                        "name": "remove",
                        "image": server["spec"]["containers"][0]["image"],
                        "command": ["rm", "-rf", f"/store/prepared/{key}"],
                        "securityContext": server["spec"]["containers"][0]["securityContext"],
                        "volumeMounts": [{"name": "store", "mountPath": "/store"}],
                    }
                ],
                "volumes": [
                    {
                        "name": "store",
                        "persistentVolumeClaim": {"claimName": "enginewright-store"},
                    }
                ],
            },
        }
    )
    namespace.kubectl(
        "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/remove", "--timeout=60s"
    )
    namespace.kubectl("delete", "pod", "remove")
