"""Whatever dies at whatever stage, nothing is lost: the model becomes ready in the end."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import harness
from tests.e2e.harness import FAIL_SWITCH, Namespace, eventually, inference_model

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


def test_a_server_killed_for_memory_names_its_limit(namespace: Namespace) -> None:
    limits = {"resources": {"requests": {"memory": "48Mi"}, "limits": {"memory": "48Mi"}}}
    namespace.apply(inference_model("too-small", "magika.onnx", podTemplate=limits))
    found = namespace.wait_condition("too-small", "Ready", "False", "OutOfMemory", 240)
    assert "more memory than its limit of 48Mi" in found["message"]
    namespace.kubectl("delete", "im", "too-small")


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


def test_a_server_that_loses_its_device_is_restarted_and_says_why(
    namespace: Namespace, model_files: Path
) -> None:
    """A real operator begins to throw what ONNX Runtime's CUDA provider does of a lost device."""
    (library,) = model_files.glob("*.so")
    extension = {"uri": f"pvc://models/{library.name}", "sha256": library.stem}
    extension["type"] = "CustomOperators"
    model = inference_model("device-lost", "cube.onnx", backends=["cpu"], extensions=[extension])
    namespace.apply(model)
    namespace.wait_ready("device-lost")
    selector = "enginewright.dev/model=device-lost,enginewright.dev/component=serve"
    (pod,) = namespace.items("pods", selector)
    name = pod["metadata"]["name"]

    def sidecar(program: str) -> None:
        namespace.kubectl("exec", name, "--container", "sidecar", "--", "python3", "-c", program)

    def server() -> dict[str, Any]:
        (found,) = namespace.get("pod", name)["status"]["containerStatuses"]
        return dict(found)

    sidecar(f"open({FAIL_SWITCH!r}, 'w').write('CUDA failure 719: unspecified launch failure ; ')")
    began = time.monotonic()
    namespace.kubectl("wait", "--for=condition=Ready=False", f"pod/{name}", "--timeout=60s")
    unready = time.monotonic() - began
    found = namespace.wait_condition("device-lost", "Ready", "False", "DeviceLost", 60)
    told = time.monotonic() - began
    assert "CUDA failure 719: unspecified launch failure" in found["message"]
    eventually(lambda: server()["restartCount"], 240, "a restart by the liveness probe")
    print(
        f"not ready {unready:.1f} s, DeviceLost {told:.1f} s, restarted {time.monotonic() - began:.1f} s"
    )
    ended = server()["lastState"]["terminated"]
    assert '"reason":"DeviceLost"' in ended["message"]
    found = namespace.wait_condition("device-lost", "Ready", "False", "DeviceLost", 60)
    assert "CUDA failure 719" in found["message"], "as the server said when it ended"
    sidecar(f"import os; os.unlink({FAIL_SWITCH!r})")
    namespace.wait_ready("device-lost", 400)
    namespace.kubectl("delete", "im", "device-lost")


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
