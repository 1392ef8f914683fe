"""Processes and nodes die at every stage, and the model still becomes ready."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import files, harness, stored
from tests.e2e.files import Files
from tests.e2e.harness import (
    FAIL_SWITCH,
    HELD_STAGES,
    SHORT_HOLD,
    Namespace,
    cases,
    eventually,
    inference_model,
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ON_CACHE = (
    "test_a_lost_artefact_is_prepared_again",
    "test_a_file_that_was_overwritten_is_served_only_when_asked_for",
)


def _operator_pods(installed: Namespace) -> dict[str, bool]:
    """Return the operator's pods, and whether each is ready."""
    pods = installed.items(
        "pods", "app.kubernetes.io/name=enginewright,app.kubernetes.io/component=operator"
    )
    return {
        str(pod["metadata"]["name"]): any(
            (item["type"], item["status"]) == ("Ready", "True")
            for item in pod["status"].get("conditions", [])
        )
        for pod in pods
    }


def replace_operator(installed: Namespace) -> None:
    """Kill the operator, and wait for the next one."""
    killed = _operator_pods(installed)
    at_once = ("--grace-period=0", "--force", "--wait=false")
    installed.kubectl("delete", "pod", *killed, *at_once)

    def is_replaced() -> bool:
        pods = _operator_pods(installed)
        return not pods.keys() & killed.keys() and any(pods.values())

    eventually(is_replaced, 120, "the next operator")


def _hold(name: str, file_server: Files, file: str = "magika.onnx", **spec: Any) -> dict[str, Any]:
    """Return a model whose stage `fetch` waits until `file_server` releases its name."""
    source = {"uri": file_server.url(file, held_by=name)}
    return inference_model(name, "", source=source, **spec)


def _wait_stage(namespace: Namespace, name: str, stage: str) -> None:
    """Wait until a stage runs and the status reports it."""

    def runs() -> bool:
        status = namespace.get("inferencemodel", name).get("status", {})
        running = [
            container["name"]
            for pod in _prepare_pods(namespace, name)
            for container in pod["status"].get("initContainerStatuses", [])
            if "running" in container["state"]
        ]
        return status.get("preparation", {}).get("stage") == stage and running == [stage]

    eventually(runs, 120, f"stage {stage}")


def _prepare_pods(namespace: Namespace, name: str) -> list[dict[str, Any]]:
    selector = f"enginewright.dev/model={name},enginewright.dev/component=prepare"
    return namespace.items("pods", selector)


def test_the_operator_is_killed_while_a_stage_runs(
    namespace: Namespace, installed: Namespace, file_server: Files, model_files: Path
) -> None:
    """Each of these stages is held until the next operator leads."""
    name = "operator-killed"
    (library,) = (model_files / "held").glob("*.so")
    extension = {"uri": f"pvc://models/held/{library.name}", "sha256": library.stem}
    extension["type"] = "CustomOperators"
    namespace.apply(_hold(name, file_server, "cube.onnx", backends=["cpu"], extensions=[extension]))
    _wait_stage(namespace, name, "fetch")
    replace_operator(installed)
    file_server.release(name)
    for stage in HELD_STAGES:
        _wait_stage(namespace, name, stage)
        replace_operator(installed)
        (pod,) = _prepare_pods(namespace, name)
        touch = ("--container", stage, "--", "touch", f"/tmp/{stage}")
        namespace.kubectl("exec", pod["metadata"]["name"], *touch)
    namespace.wait_ready(name)
    assert len(namespace.items("jobs", f"enginewright.dev/model={name}")) == 1
    namespace.kubectl("delete", "im", name)


def test_a_jobs_pod_is_deleted(namespace: Namespace, file_server: Files) -> None:
    name = "pod-deleted"
    namespace.apply(_hold(name, file_server))
    _wait_stage(namespace, name, "fetch")
    (pod,) = _prepare_pods(namespace, name)
    namespace.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")
    file_server.release(name)
    namespace.wait_ready(name)
    uids = {prepare_pod["metadata"]["uid"] for prepare_pod in _prepare_pods(namespace, name)}
    assert uids - {pod["metadata"]["uid"]}, "another pod has prepared it"
    namespace.kubectl("delete", "im", name)


@pytest.fixture
def mended() -> Iterator[None]:
    yield
    harness.cluster("up")


@pytest.mark.parametrize("process", ["kubelet", "containerd"])
@pytest.mark.usefixtures("mended")
def test_a_node_agent_is_killed(namespace: Namespace, file_server: Files, process: str) -> None:
    name = f"{process}-killed"
    namespace.apply(_hold(name, file_server))
    _wait_stage(namespace, name, "fetch")
    (pod,) = _prepare_pods(namespace, name)
    node = pod["spec"]["nodeName"].removeprefix("node-")
    harness.cluster("kill", f"{process}-{node}")
    harness.cluster("up")
    file_server.release(name)
    namespace.wait_ready(name)
    namespace.kubectl("delete", "im", name)


# event: Jobs | a Job's node dies and is deleted, as clouds do with what they have terminated | the previous revision;
#   another pod of the same Job within seconds | the stage that runs
@pytest.mark.usefixtures("mended")
def test_a_node_is_lost_with_the_pod_of_a_job(namespace: Namespace, file_server: Files) -> None:
    name = "node-lost"
    (pod,) = namespace.items("pods", f"app={files.NAME}")
    kept = pod["spec"]["nodeName"]  # the server's
    namespace.kubectl("cordon", kept)
    try:
        namespace.apply(_hold(name, file_server))
        _wait_stage(namespace, name, "fetch")
    finally:
        namespace.kubectl("uncordon", kept)
    (pod,) = _prepare_pods(namespace, name)
    lost = pod["spec"]["nodeName"]
    assert lost != kept
    harness.cluster("kill", lost)
    namespace.delete("node", lost)

    def has_moved() -> bool:
        return [
            prepare_pod["spec"].get("nodeName") for prepare_pod in _prepare_pods(namespace, name)
        ] == [kept]

    eventually(has_moved, 180, f"the Job's pod on {kept}")
    file_server.release(name)
    namespace.wait_ready(name)
    assert len(namespace.items("jobs", f"enginewright.dev/model={name}")) == 1
    namespace.kubectl("delete", "im", name)


@pytest.fixture(scope="module")
def together(
    request: pytest.FixtureRequest, namespace: Namespace, model_files: Path, file_server: Files
) -> Namespace:
    """Models whose faults affect only their own pods, prepared concurrently."""
    (library,) = model_files.glob("*.so")
    extension = {"uri": f"pvc://models/{library.name}", "sha256": library.stem}
    extension["type"] = "CustomOperators"
    limits = {"resources": {"requests": {"memory": "48Mi"}, "limits": {"memory": "48Mi"}}}
    namespace.apply(
        inference_model("device-lost", "cube.onnx", backends=["cpu"], extensions=[extension])
    )
    if cases(request, "test_a_server_killed_for_memory_names_its_limit"):
        namespace.apply(inference_model("too-small", "magika.onnx", podTemplate=limits))
    if cases(request, *ON_CACHE):
        file_server.put("own.onnx", of="magika.onnx")
        source = {"uri": file_server.url("own.onnx")}
        # another model takes the file's place
        rollout = {"allowSignatureChange": True, "canary": SHORT_HOLD}
        spec: dict[str, Any] = {"source": source, "backends": ["cpu"], "rollout": rollout}
        namespace.apply(inference_model("cache-lost", "", **spec))
    return namespace


@dataclass(frozen=True)
class LosesItsDevice:
    """A pod with a custom operator that throws the error of ONNX Runtime's CUDA provider for a lost device."""

    namespace: Namespace
    pod: str

    def lose(self) -> None:
        text = "CUDA failure 719: unspecified launch failure ; "
        self._sidecar(f"open({FAIL_SWITCH!r}, 'w').write({text!r})")

    def find(self) -> None:
        self._sidecar(f"import os; os.unlink({FAIL_SWITCH!r})")

    def _sidecar(self, program: str) -> None:
        run = ("--container", "sidecar", "--", "python3", "-c", program)
        self.namespace.kubectl("exec", self.pod, *run)

    def server(self) -> dict[str, Any]:
        (status,) = self.namespace.get("pod", self.pod)["status"]["containerStatuses"]
        return dict(status)


@pytest.fixture(scope="module")
def lost(together: Namespace) -> LosesItsDevice:
    """A server that has just lost its device; its restart takes minutes."""
    together.wait_ready("device-lost")
    selector = "enginewright.dev/model=device-lost,enginewright.dev/component=serve"
    (pod,) = together.items("pods", selector)
    lost = LosesItsDevice(together, pod["metadata"]["name"])
    lost.lose()
    return lost


# fault: Devices | every run fails in a pod, by a custom operator that throws | readiness,
#   liveness, condition Ready | as for a lost device
def test_a_server_that_loses_its_device_is_unready_and_says_why(lost: LosesItsDevice) -> None:
    unready = ("--for=condition=Ready=False", f"pod/{lost.pod}", "--timeout=60s")
    lost.namespace.kubectl("wait", *unready)
    ready = lost.namespace.wait_condition("device-lost", "Ready", "False", "DeviceLost", 60)
    assert "CUDA failure 719: unspecified launch failure" in ready["message"]


def test_a_server_killed_for_memory_names_its_limit(together: Namespace) -> None:
    ready = together.wait_condition("too-small", "Ready", "False", "OutOfMemory", 240)
    assert "exceeded its memory limit of 48Mi" in ready["message"]
    together.kubectl("delete", "im", "too-small")


def test_a_lost_artefact_is_prepared_again(together: Namespace) -> None:
    """The store is a cache: deletion from it costs time, but never interrupts serving."""
    together.wait_ready("cache-lost")
    _lose_artifact(together, "cache-lost")
    together.wait_condition("cache-lost", "Ready", "False", "Preparing", 120)
    together.wait_ready("cache-lost")


def test_a_file_that_was_overwritten_is_served_only_when_asked_for(
    together: Namespace, file_server: Files
) -> None:
    before = together.get("inferencemodel", "cache-lost")["status"]["serving"]["modelDigest"]
    file_server.put("own.onnx", of="classify.onnx")
    _lose_artifact(together, "cache-lost")
    ready = together.wait_condition("cache-lost", "Ready", "False", "SourceChanged", 120)
    assert f"sha256 {before[:12]} then, " in ready["message"]
    together.kubectl("annotate", "im", "cache-lost", "enginewright.dev/refresh=now")
    together.wait_ready("cache-lost")
    status = together.get("inferencemodel", "cache-lost")["status"]
    assert status["serving"]["modelDigest"] != before
    assert status["source"]["requested"] == "now"
    together.kubectl("delete", "im", "cache-lost")


# fault: Devices | every run fails in a pod, by a custom operator that throws
def test_a_server_that_has_lost_its_device_is_restarted(lost: LosesItsDevice) -> None:
    namespace = lost.namespace
    eventually(lambda: lost.server()["restartCount"], 240, "a restart by the liveness probe")
    ended = lost.server()["lastState"]["terminated"]
    assert '"reason":"DeviceLost"' in ended["message"]
    ready = namespace.wait_condition("device-lost", "Ready", "False", "DeviceLost", 60)
    assert "CUDA failure 719" in ready["message"], "from the server's termination message"
    lost.find()
    namespace.wait_ready("device-lost", 400)
    namespace.kubectl("delete", "im", "device-lost")


def _lose_artifact(namespace: Namespace, model: str) -> None:
    """Delete the serving artefact from the store, and the pod that has a copy."""
    key = namespace.get("inferencemodel", model)["status"]["serving"]["preparedKey"]
    shutil.rmtree(stored.volume(namespace) / "prepared" / key)
    # without waiting: the operator reacts while the old pod still terminates
    selector = ("--selector", f"enginewright.dev/model={model}")
    namespace.kubectl("delete", "pod", *selector, "--wait=false")
