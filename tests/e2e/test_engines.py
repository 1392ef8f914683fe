"""Engines on real nodes: proposed classes, builds without a device, sharing, and no traffic without a driver."""

import json
from typing import Any

import pytest

from tests.e2e.harness import GPUS, Namespace, eventually, inference_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

CLASS = "l4"
NAMED = "enginewright.dev/component"
SHAPES = [{"input": "x", "min": [1, 3, 32, 32], "opt": [4, 3, 32, 32], "max": [8, 3, 32, 32]}]


@pytest.fixture(scope="module")
def l4(namespace: Namespace) -> Namespace:
    """The proposed class of GPUs, changed by its administrator to build ahead of time."""
    found = eventually(lambda: namespace.get("acceleratorclass", CLASS), 60, "the proposal")
    assert found["spec"]["computeCapability"] == "8.9"
    assert found["spec"]["resourceName"] == "nvidia.com/gpu"
    set_class(namespace, aheadOfTime=True, backends=["tensorrt-rtx", "cuda"])
    return namespace


def set_class(namespace: Namespace, **spec: Any) -> None:
    patch = json.dumps({"spec": spec})
    namespace.kubectl("patch", "acceleratorclass", CLASS, "--type", "merge", "--patch", patch)


def engines_of(namespace: Namespace, model: str) -> list[str]:
    status = namespace.get("inferencemodel", model).get("status", {})
    return [each["name"] for each in status.get("engines", [])]


def engine_jobs(namespace: Namespace, engine: str) -> list[dict[str, Any]]:
    return namespace.items("jobs", f"{NAMED}=engine,enginewright.dev/engine={engine}")


@pytest.fixture(scope="module")
def ahead(l4: Namespace) -> Namespace:
    """Real models whose engines are built by real TensorRT-RTX, without the GPU."""
    l4.apply(
        inference_model("ahead", "magika.onnx", on=CLASS),
        inference_model("partly", "partly-supported.onnx", on=CLASS, shapes=SHAPES),
    )
    l4.wait_condition("ahead", "EnginesReady", "True", "Built", 240)
    return l4


def test_the_engine_reports_its_size_time_digest_and_target(ahead: Namespace) -> None:
    (name,) = engines_of(ahead, "ahead")
    assert name.startswith("tensorrt-rtx-l4-")
    status = ahead.get("inferenceengine", name)["status"]
    engine = status["engine"]
    assert engine["computeCapabilities"] == ["8.9"]
    assert engine["sizeBytes"] > 1_000_000
    assert engine["buildMilliseconds"] > 0
    assert len(engine["sha256"]) == 64
    assert engine["nodesAccelerated"] == engine["nodesTotal"] > 0
    header, row = ahead.kubectl("get", "ieng", name).strip().splitlines()
    assert header.split()[:3] == ["NAME", "READY", "REASON"]
    assert row.split()[1:3] == ["True", "Built"]


def test_it_was_built_on_a_node_of_its_class_without_a_device(ahead: Namespace) -> None:
    (name,) = engines_of(ahead, "ahead")
    (job,) = engine_jobs(ahead, name)
    pod = job["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L4"}
    assert pod["automountServiceAccountToken"] is False
    for container in [*pod["initContainers"], *pod["containers"]]:
        assert "nvidia.com/gpu" not in container.get("resources", {}).get("limits", {})


def test_without_a_driver_it_gets_no_traffic_and_says_why(ahead: Namespace) -> None:
    found = ahead.wait_condition("ahead", "Ready", "False", "DriverMissing", 120)
    assert "libcuda.so.1" in found["message"]
    assert ahead.condition("ahead", "PlacementVerified")["reason"] == "DriverMissing"
    assert ahead.condition("ahead", "Available")["status"] == "False"
    endpoints = ahead.items("endpointslices", "kubernetes.io/service-name=ahead")
    ready = [
        each
        for one in endpoints
        for each in one.get("endpoints") or ()
        if each["conditions"].get("ready")
    ]
    assert ready == []
    pods = ahead.items("pods", f"enginewright.dev/model=ahead,{NAMED}=serve")
    assert {pod["spec"]["nodeName"] for pod in pods} == {"node-2"}


def test_models_share_an_engine_and_a_deleted_one_comes_from_the_store(ahead: Namespace) -> None:
    ahead.apply(inference_model("ahead-too", "magika.onnx", on=CLASS))
    ahead.wait_condition("ahead-too", "EnginesReady", "True", "Built", 120)
    (name,) = engines_of(ahead, "ahead")
    assert engines_of(ahead, "ahead-too") == [name]
    assert len(engine_jobs(ahead, name)) == 1
    digest = ahead.get("inferenceengine", name)["status"]["engine"]["sha256"]
    ahead.kubectl("delete", "ieng", name, "--wait=true")

    def again() -> bool:
        engine = ahead.get("inferenceengine", name).get("status", {}).get("engine", {})
        return bool(engine.get("sha256") == digest)

    eventually(again, 120, "the engine from the store")
    assert "store" in ahead.kubectl("describe", "ieng", name)
    ahead.kubectl("delete", "im", "ahead-too")


def test_nodes_outside_the_engine_are_judged_by_the_policy(ahead: Namespace) -> None:
    found = ahead.wait_condition("partly", "Ready", "False", "NodeFallback", 240)
    assert "volume (Det)" in found["message"]
    assert ahead.condition("partly", "EnginesReady")["status"] == "True"
    assert not ahead.items("deployments", "enginewright.dev/model=partly")
    (name,) = engines_of(ahead, "partly")
    ahead.apply(
        inference_model(
            "partly",
            "partly-supported.onnx",
            on=CLASS,
            shapes=SHAPES,
            fallback={"policy": "Budget", "maxNodeShare": "40%"},
        )
    )
    ahead.wait_condition("partly", "Ready", "False", "DriverMissing", 120)
    assert len(engine_jobs(ahead, name)) == 1, "the policy decides nothing of the engine"
    ahead.kubectl("delete", "im", "partly", "--wait=true")


def test_a_build_that_needs_a_device_waits_for_one_and_says_so(ahead: Namespace) -> None:
    ahead.kubectl("delete", "im", "ahead", "--wait=true")
    ahead.apply(_holder(ahead))
    ahead.kubectl("wait", "--for=condition=Ready", "pod/holder", "--timeout=90s")
    set_class(ahead, aheadOfTime=False)
    try:
        ahead.apply(inference_model("on-device", "magika.onnx", on=CLASS))
        found = ahead.wait_condition("on-device", "EnginesReady", "False", "CapacityBlocked", 180)
        assert "nvidia.com/gpu" in found["message"]
        (name,) = engines_of(ahead, "on-device")
        assert ahead.items("jobs", f"{NAMED}=engine-lookup,enginewright.dev/engine={name}")
        ahead.kubectl("delete", "pod", "holder", "--grace-period=0", "--force")
        failed = ahead.wait_condition("on-device", "EnginesReady", "False", "DriverMissing", 240)
        assert failed["message"]
        pods = ahead.items("pods", f"{NAMED}=engine,enginewright.dev/engine={name}")
        assert {pod["spec"]["nodeName"] for pod in pods} == {"node-2"}
    finally:
        set_class(ahead, aheadOfTime=True)
        ahead.kubectl("delete", "pod", "holder", "--ignore-not-found", "--force")
        ahead.kubectl("delete", "im", "on-device", "--ignore-not-found")


# event: Jobs | an update must build on the only device, under `Recreate`
def test_under_recreate_pods_leave_the_last_device_to_a_build_and_come_back(
    ahead: Namespace,
) -> None:
    """The build gets the serving pod's device; it fails here, as there is no driver."""
    set_class(ahead, aheadOfTime=False, backends=["tensorrt-rtx", "cpu"])
    wanted = inference_model(
        "last-device", "magika.onnx", on=CLASS, backends=["cpu"], rollout={"strategy": "Recreate"}
    )
    try:
        ahead.apply(wanted)
        ahead.wait_ready("last-device", 240)
        ahead.apply(_holder(ahead, GPUS - 1))
        ahead.kubectl("wait", "--for=condition=Ready", "pod/holder", "--timeout=90s")
        wanted["spec"]["backends"] = ["tensorrt-rtx"]
        ahead.apply(wanted)

        def gives_way() -> bool:
            message = ahead.condition("last-device", "Ready")["message"]
            return "the pods of l4 yield the device" in message

        eventually(gives_way, 180, "the device for the build")
        (name,) = engines_of(ahead, "last-device")
        ahead.wait_condition("last-device", "EnginesReady", "False", "DriverMissing", 240)
        pods = ahead.items("pods", f"{NAMED}=engine,enginewright.dev/engine={name}")
        assert {pod["spec"].get("nodeName") for pod in pods} >= {"node-2"}
        ahead.kubectl("delete", "ieng", name)
        wanted["spec"]["backends"] = ["cpu"]
        ahead.apply(wanted)
        ahead.wait_ready("last-device", 120)
    finally:
        set_class(ahead, aheadOfTime=True, backends=["tensorrt-rtx", "cuda"])
        ahead.kubectl("delete", "pod", "holder", "--ignore-not-found", "--force")
        ahead.kubectl("delete", "im", "last-device", "--ignore-not-found")


def _holder(namespace: Namespace, devices: int = GPUS) -> dict[str, Any]:
    """Return a pod that requests devices, like another team's."""
    server = namespace.items("pods", f"{NAMED}=serve")[0]["spec"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "holder"},
        "spec": {
            "securityContext": server["securityContext"],
            "containers": [
                {
                    "name": "holder",
                    "image": server["containers"][0]["image"],
                    "command": ["sleep", "600"],
                    "securityContext": server["containers"][0]["securityContext"],
                    "resources": {"limits": {"nvidia.com/gpu": str(devices)}},
                }
            ],
        },
    }
