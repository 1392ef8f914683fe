"""Classes whose devices are claimed (DRA): what pods and Jobs name, and what is there before them."""

from typing import Any, Final

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.observed.nodes import node_view
from enginewright.plan.resolve.classes import device, readiness

from tests.support.plan_objects import accelerator_class, gpu_node
from tests.support.plan_world import World
from tests.unit.test_plan_engines_wanted import container_of, prepare
from tests.unit.test_plan_interim import BOTH, building

L4: Final = "device.attributes['gpu.nvidia.com'].productName == 'NVIDIA L4'"
REQUEST: Final[dict[str, Any]] = {
    "deviceClassName": "gpu.nvidia.com",
    "selectors": [{"cel": {"expression": L4}}],
}
CLAIMED: Final[dict[str, Any]] = {"resourceName": None, "device": REQUEST, "aheadOfTime": False}


def find_claim_name(pod: dict[str, Any]) -> str:
    (claim,) = pod["spec"]["resourceClaims"]
    assert claim["name"] == "device"
    return str(claim["resourceClaimTemplateName"])


def template_of(world: World, pod: dict[str, Any]) -> dict[str, Any]:
    template = world.find("ResourceClaimTemplate", find_claim_name(pod))
    assert template is not None
    return template


def serving() -> World:
    return prepare(CLAIMED).engine_built().all_available()


def test_a_job_that_builds_claims_a_device_for_the_stages_that_use_it() -> None:
    world = prepare(CLAIMED)
    assert world.all("ResourceClaimTemplate") == [], "the lookup needs none"
    pod = world.misses().job("engine")["spec"]["template"]
    stages = {item["name"]: item["resources"] for item in pod["spec"]["initContainers"]}
    assert all(stage["claims"] == [{"name": "device"}] for stage in stages.values())
    assert "claims" not in container_of(pod, "publish-engine")["resources"]
    template = template_of(world, pod)
    engine = world.the("InferenceEngine")
    (owner,) = template["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("InferenceEngine", engine["metadata"]["name"])
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request == {
        "name": "device",
        "exactly": {"allocationMode": "ExactCount", "count": 1, **REQUEST},
    }


def test_serving_pods_claim_a_device_each() -> None:
    world = serving()
    pod = world.the("Deployment")["spec"]["template"]
    assert container_of(pod, "server")["resources"]["claims"] == [{"name": "device"}]
    for name in ("fetch-artifact", "sidecar"):
        assert "claims" not in container_of(pod, name)["resources"]
    (owner,) = template_of(world, pod)["metadata"]["ownerReferences"]
    assert owner["kind"] == "InferenceModel"
    assert "nvidia.com/gpu" not in str(container_of(pod, "server")["resources"])


def test_classes_with_equal_requests_share_a_template() -> None:
    """Nothing in it is of one class: they would rewrite it in turn."""
    world = World(accelerators=[{"class": "a10"}, {"class": "l4"}])
    world.has_gpus(**CLAIMED, backends=["cuda"])
    (accelerator,) = world.classes
    other = accelerator.model_copy(
        update={"metadata": accelerator.metadata.model_copy(update={"name": "a10"})}
    )
    world.classes = [other, accelerator]
    world.settle().job_succeeds().all_available()
    assert len(world.serving_deployments()) == 2
    assert len(world.all("ResourceClaimTemplate")) == 1
    assert not world.pass_once()


def test_templates_stay_while_a_stored_revision_may_return_to_them() -> None:
    world = serving()
    before = find_claim_name(world.the("Deployment")["spec"]["template"])
    (accelerator,) = world.classes
    other = accelerator.spec.model_copy(update={"device": None, "resource_name": "nvidia.com/gpu"})
    world.classes = [accelerator.model_copy(update={"spec": other})]
    world.settle()
    assert world.find("ResourceClaimTemplate", before), "its pods may be restarted"


# event: Rollouts | a class of the model gets `spec.device` in a cluster without resource.k8s.io/v1 | what serves,
#   untouched | Ready `DeviceClaimsMissing`, until the cluster has it
def test_without_the_api_a_model_is_refused_and_serving_is_not_touched() -> None:
    world = World().has_gpus(**CLAIMED)
    world.has_device_claims = False
    world.settle()
    assert world.conditions()["Ready"] == ("False", "DeviceClaimsMissing")
    assert world.conditions()["Stalled"][0] == "True"
    assert "spec.device of AcceleratorClass l4 needs ResourceClaimTemplates" in world.message()
    assert "Kubernetes 1.34 or newer" in world.message()
    world.has_device_claims = True
    assert world.settle().conditions()["Ready"] == ("False", "Preparing")


def test_a_build_waits_for_a_device_that_is_claimed_elsewhere() -> None:
    world = prepare(CLAIMED).misses()
    message = "0/3 nodes are available: 3 cannot allocate all claims."
    engine = world.unschedulable(message, of="engine").settle().the("InferenceEngine")
    (ready,) = [item for item in engine["status"]["conditions"] if item["type"] == "Ready"]
    assert ready["reason"] == "CapacityBlocked"
    assert "no device of gpu.nvidia.com" in ready["message"]


def claim_devices(name: str, request: dict[str, Any], **selector: str) -> AcceleratorClass:
    return accelerator_class(
        name, "tensorrt", nodeSelector={"pool": "gpus", **selector}, device=request
    )


def test_the_request_tells_engines_and_classes_apart() -> None:
    product = {"nvidia.com/gpu.product": "NVIDIA-L4"}
    whole = claim_devices("whole", {"deviceClassName": "gpu.nvidia.com"}, **product)
    one, two = (
        claim_devices(name, {**REQUEST, "deviceClassName": f"{name}.nvidia.com"}, **product)
        for name in ("mig", "gpu")
    )
    assert device(whole) == "NVIDIA-L4 gpu.nvidia.com"
    assert len({device(item) for item in (whole, one, two)}) == 3
    assert device(claim_devices("unnamed", REQUEST)) == "", "its name identifies it"
    node = node_view(gpu_node("a", pool="gpus"))
    assert readiness(one, (two, whole), (node,)).reason == "NodesFound"
    assert readiness(one, (claim_devices("same", one.spec.device.manifest()),), (node,)).reason == (  # type: ignore[union-attr]  # it has one
        "OverlappingClass"
    )


def test_an_interim_on_the_cpu_claims_nothing_and_one_on_a_device_waits_for_the_build() -> None:
    on_cpu = building(gpus=CLAIMED)
    (deployment,) = on_cpu.serving_deployments()
    assert "resourceClaims" not in deployment["spec"]["template"]["spec"]
    assert on_cpu.all("ResourceClaimTemplate") == []
    on_device = building("CUDA", {**CLAIMED, "backends": BOTH})
    assert on_device.all("Deployment") == []
    on_device.misses().stage_runs("build", "engine")
    (deployment,) = on_device.serving_deployments()
    assert template_of(on_device, deployment["spec"]["template"])
