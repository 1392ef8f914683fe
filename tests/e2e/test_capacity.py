"""Builds that need a device: they wait for one and say so, and serving pods leave theirs to a build."""

import pytest

from tests.e2e.devices import CLASS, COMPONENT, engines_of, holder, set_class
from tests.e2e.harness import GPUS, Namespace, eventually, inference_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_a_build_that_needs_a_device_waits_for_one_and_says_so(l4: Namespace) -> None:
    l4.apply(holder(GPUS))
    l4.kubectl("wait", "--for=condition=Ready", "pod/devices", "--timeout=90s")
    set_class(l4, CLASS, aheadOfTime=False)
    try:
        l4.apply(inference_model("on-device", "magika.onnx", on=CLASS))
        ready = l4.wait_condition("on-device", "EnginesReady", "False", "CapacityBlocked", 180)
        assert "nvidia.com/gpu" in ready["message"]
        name = engines_of(l4, "on-device")[CLASS]
        assert l4.items("jobs", f"{COMPONENT}=engine-lookup,enginewright.dev/engine={name}")
        l4.kubectl("delete", "pod", "devices", "--grace-period=0", "--force")
        l4.wait_condition("on-device", "EnginesReady", "False", "DriverMissing", 240)
        pods = l4.items("pods", f"{COMPONENT}=engine,enginewright.dev/engine={name}")
        assert {pod["spec"]["nodeName"] for pod in pods} == {"node-2"}
    finally:
        set_class(l4, CLASS, aheadOfTime=True)
        l4.kubectl("delete", "pod", "devices", "--ignore-not-found", "--force")
        l4.kubectl("delete", "im", "on-device", "--ignore-not-found")


# event: Jobs | an update must build on the only device, under `Recreate`
def test_under_recreate_pods_leave_the_last_device_to_a_build_and_come_back(
    l4: Namespace,
) -> None:
    """The build gets the serving pod's device; it fails here, as there is no driver."""
    set_class(l4, CLASS, aheadOfTime=False, backends=["tensorrt-rtx", "cpu"])
    model = inference_model(
        "last-device", "magika.onnx", on=CLASS, backends=["cpu"], rollout={"strategy": "Recreate"}
    )
    try:
        l4.apply(model)
        l4.wait_ready("last-device", 240)
        l4.apply(holder(GPUS - 1))
        l4.kubectl("wait", "--for=condition=Ready", "pod/devices", "--timeout=90s")
        model["spec"]["backends"] = ["tensorrt-rtx"]
        l4.apply(model)

        def gives_way() -> bool:
            message = l4.condition("last-device", "Ready")["message"]
            return "the pods of l4 yield the device" in message

        eventually(gives_way, 180, "the device for the build")
        name = engines_of(l4, "last-device")[CLASS]
        l4.wait_condition("last-device", "EnginesReady", "False", "DriverMissing", 240)
        pods = l4.items("pods", f"{COMPONENT}=engine,enginewright.dev/engine={name}")
        assert {pod["spec"].get("nodeName") for pod in pods} >= {"node-2"}
        l4.kubectl("delete", "ieng", name)
        model["spec"]["backends"] = ["cpu"]
        l4.apply(model)
        l4.wait_ready("last-device", 120)
    finally:
        set_class(l4, CLASS, aheadOfTime=True, backends=["tensorrt-rtx", "cuda"])
        l4.kubectl("delete", "pod", "devices", "--ignore-not-found", "--force")
        l4.kubectl("delete", "im", "last-device", "--ignore-not-found")
