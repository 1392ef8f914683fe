"""From a spec to what is to be made: every refusal names the thing, the reason, the remedy."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pytest
from enginewright.plan.plan import plan
from enginewright.plan.resolve.classes import PROPOSED
from enginewright.plan.resolve.resolve import Target, resolve
from enginewright.plan.types import StoreConfig
from enginewright_contract.task import (
    Calibration,
    Extension,
    OutputTolerance,
    PrepareTask,
    Preprocessing,
    Quantization,
    Recipe,
)

from tests.support.plan_objects import (
    CPU_IMAGE,
    NAMESPACE,
    OPENVINO_IMAGE,
    accelerator_class,
    image_facts,
    make_object,
    node,
)
from tests.support.plan_world import World

SOURCE: Final = {"uri": "https://models.example/resnet.onnx"}
SHAPE: Final = {"input": "images", "min": [1, 3], "opt": [8, 3], "max": [32, 3]}


def recipe(world: World) -> Recipe:
    return PrepareTask.model_validate_json(world.settle().task()).recipe


def expect_stalled(world: World) -> tuple[str, str]:
    world.settle()
    reported = world.condition("Stalled")
    assert reported["status"] == "True", reported
    assert not world.children(), "nothing is made for a spec that is refused"
    return reported["reason"], reported["message"]


# classes


def without_classes() -> World:
    world = World()
    world.classes = []
    return world


FP8: Final = {"precision": "FP8", "quantization": {"calibration": {"uri": "pvc://a/b"}}}
REFUSALS: Final[list[tuple[World, str, list[str]]]] = [
    (World("l4", "a100"), "AmbiguousAcceleratorClass", ["a100, l4", "spec.accelerators"]),
    (without_classes(), "NoAcceleratorClass", ["apply one"]),
    (World(accelerators=[{"class": "h100"}]), "UnknownAcceleratorClass", ["h100", "cpu"]),
    (
        World(
            "cpu",
            accelerator_class("intel", "openvino"),
            accelerators=[{"class": "cpu"}, {"class": "intel"}],
        ),
        "BackendNotAllowed",
        ["cpu: cpu, intel: openvino"],
    ),
    (
        World(**FP8),
        "PrecisionUnsupported",
        ["accelerator class cpu cannot run FP8: backend cpu supports FP32, INT8"],
    ),
    (
        World(precision="INT8", quantization={"rest": "FP16"}),
        "PrecisionUnsupported",
        [
            "spec.quantization.rest is FP16, but backend cpu runs the rest of a quantized model in FP32 alone",
            "remove it, or choose tensorrt or tensorrt-rtx in spec.backends",
        ],
    ),
]


@pytest.mark.parametrize(("world", "reason", "texts"), REFUSALS, ids=[pair[1] for pair in REFUSALS])
def test_refusal_names_the_thing_and_the_remedy(
    world: World, reason: str, texts: list[str]
) -> None:
    refusal, message = expect_stalled(world)
    assert refusal == reason
    assert all(text in message for text in texts)


def test_a_class_that_was_only_proposed_makes_no_model_ambiguous() -> None:
    world = World()
    proposed = accelerator_class("l4")
    labelled = proposed.metadata.model_copy(update={"labels": {PROPOSED: "true"}})
    world.classes = [accelerator_class("cpu"), proposed.model_copy(update={"metadata": labelled})]
    world.settle()
    assert world.conditions()["Ready"] == ("False", "Preparing")
    world.job_succeeds()
    assert world.the("Deployment")["metadata"]["name"] == "resnet-cpu"


# backends


@pytest.mark.parametrize(
    ("allowed", "backends", "chosen"),
    [
        (("openvino", "cpu"), None, "openvino"),
        (("openvino", "cpu"), ["cpu"], "cpu"),
        (("openvino", "cpu"), ["cpu", "openvino"], "cpu"),
        (("cpu",), ["cpu", "openvino"], "cpu"),
    ],
)
def test_first_candidate_serves(
    allowed: tuple[str, ...], backends: list[str] | None, chosen: str
) -> None:
    world = World(
        accelerator_class("cpu", *allowed), **({"backends": backends} if backends else {})
    )
    image = {"cpu": CPU_IMAGE, "openvino": OPENVINO_IMAGE}[chosen]
    assert recipe(world).backend == chosen
    assert world.job()["spec"]["template"]["spec"]["containers"][0]["image"] == image


@pytest.mark.parametrize(
    ("allowed", "backends"),
    [
        (("tensorrt",), None),
        (("cpu",), ["openvino"]),
        (("openvino",), ["cpu"]),
        (("cpu",), ["openvino", "cpu"]),
        (("tensorrt", "cpu"), None),
    ],
)
def test_lower_ranked_backend_waits(allowed: tuple[str, ...], backends: list[str] | None) -> None:
    world = World(
        accelerator_class("edge", *allowed), **({"backends": backends} if backends else {})
    )
    reason, message = expect_stalled(world)
    assert reason == "BackendNotAllowed"
    assert "edge" in message
    assert "spec.backends" in message


@pytest.mark.parametrize(
    ("backends", "why"),
    [
        (["tensorrt-rtx"], "TensorRT-RTX builds the same engine at every level"),
        (["cuda", "tensorrt"], "the backend cuda builds no engine"),
        (["cpu"], "the backend cpu builds no engine"),
    ],
)
def test_optimization_level_needs_a_backend_with_levels(backends: list[str], why: str) -> None:
    allowed = ("cpu", "tensorrt-rtx", "tensorrt", "cuda")
    build = {"optimizationLevel": 0}
    world = World(accelerator_class("edge", *allowed), backends=backends, build=build)
    reason, message = expect_stalled(world)
    assert reason == "BackendNotAllowed"
    assert f"spec.build.optimizationLevel is 0, but {why}; choose tensorrt in" in message
    assert "or remove spec.build.optimizationLevel" in message


# the runtime image


def test_recipe_holds_the_facts_of_the_image() -> None:
    world = World(
        shapes=[{**SHAPE, "range": {"low": "-1.5", "high": "1e2"}}],
        parity={
            "samples": {"uri": "pvc://golden/a/b.npz"},
            "rtol": "0.01",
            "atol": "1e-3",
        },
        source={"uri": "pvc://models/m.onnx", "sha256": "f" * 64},
    )
    world.images = {CPU_IMAGE: image_facts("cpu", "1.30.0", 24)}
    task = PrepareTask.model_validate_json(world.settle().task())
    assert task.source_sha256 == "f" * 64
    assert task.job == world.job()["metadata"]["name"]
    assert task.recipe.model_dump(exclude_none=True) == {
        "backend": "cpu",
        "ort_version": "1.30.0",
        "max_opset": 24,
        "max_ir_version": 13,
        "shapes": (
            {
                "input": "images",
                "min": (1, 3),
                "opt": (8, 3),
                "max": (32, 3),
                "low": -1.5,
                "high": 100.0,
            },
        ),
        "samples_uri": "pvc://golden/a/b.npz",
        "rtol": 0.01,
        "atol": 0.001,
        "allowed_precisions": (),
        "extensions": (),
        "outputs": (),
    }


def test_the_recipe_holds_all_that_the_spec_asks_for() -> None:
    world = World(
        targetOpset=17,
        precision="INT8",
        quantization={
            "calibration": {
                "uri": "pvc://data/images",
                "samples": 512,
                "method": "Entropy",
                "preprocessing": {"width": 224, "height": 224, "mean": ["0.5"]},
            },
            "perChannel": False,
            "maxExcludedShare": "10%",
        },
        extensions=[{"uri": "pvc://libs/a.so", "sha256": "A" * 64, "type": "CustomOperators"}],
        parity={"outputs": [{"name": "y", "rtol": "0.1"}, {"name": "z", "acceptUnjudged": True}]},
    )
    resolved = recipe(world)
    assert (resolved.target_opset, resolved.precision, resolved.allowed_precisions) == (
        17,
        "INT8",
        (),
    )
    assert resolved.quantization == Quantization(
        calibration=Calibration(
            uri="pvc://data/images",
            samples=512,
            method="Entropy",
            preprocessing=Preprocessing(width=224, height=224, mean=(0.5,)),
        ),
        per_channel=False,
        max_excluded_share=0.1,
    )
    assert resolved.extensions == (
        Extension(uri="pvc://libs/a.so", sha256="a" * 64, type="CustomOperators"),
    )
    assert resolved.outputs == (
        OutputTolerance(name="y", rtol=0.1),
        OutputTolerance(name="z", accept_unjudged=True),
    )


@pytest.mark.parametrize(
    "spec",
    [
        {"replicas": 3},
        {"accelerators": [{"class": "cpu", "replicas": 2}]},
        {"backends": ["cpu"]},
        {"fallback": {"policy": "Forbid"}},
        {"serving": {"maxQueue": 8, "startupTimeout": "5m", "processes": 2}},
        {"rollout": {"strategy": "Recreate", "paused": True}},
        {"podTemplate": {"labels": {"team": "vision"}, "serviceAccountName": "reader"}},
        {"podTemplate": {"imagePullSecrets": [{"name": "mine"}]}},
        {"build": {"timeout": "2h", "resources": {"limits": {"memory": "8Gi"}}}},
        {"source": {**SOURCE, "secretRef": {"name": "token"}, "refreshInterval": "1h"}},
    ],
)
def test_serving_settings_are_not_in_the_hash(spec: dict[str, Any]) -> None:
    assert artifact_hash(World(**spec)) == artifact_hash(World())


@pytest.mark.parametrize(
    "spec",
    [
        {"source": {"uri": "https://models.example/other.onnx"}},
        {"source": {**SOURCE, "sha256": "f" * 64}},
        {"targetOpset": 17},
        {"precision": "FP32"},
        {"shapes": [SHAPE]},
        {"parity": {"atol": "0.5"}},
        {"parity": {"outputs": [{"name": "y", "acceptUnjudged": True}]}},
        {"backends": ["openvino"]},
    ],
)
def test_preparation_settings_are_in_the_hash(spec: dict[str, Any]) -> None:
    def world(**changed: Any) -> World:
        edited = World(**changed)
        edited.classes = [accelerator_class("cpu", "cpu", "openvino")]
        return edited

    assert artifact_hash(world(**spec)) != artifact_hash(world())


def test_of_a_cluster_only_the_image_that_prepares_is_in_the_hash() -> None:
    before = artifact_hash(World())
    world = World()
    world.classes = [
        accelerator_class("cpu", nodeSelector={"pool": "b"}, tolerations=[{"operator": "Exists"}])
    ]
    world.nodes = []
    world.config = replace(
        world.config,
        image_pull_policy="Always",
        image_pull_secrets=(),
        images={**world.config.images, "openvino": "registry.example/openvino:2"},
    )
    assert artifact_hash(world) == before
    world.new_runtime_image()
    world.images["registry.example/cpu:2"] = image_facts("cpu")
    assert artifact_hash(world) != before


def artifact_hash(world: World) -> str:
    target = resolve(world.facts())
    assert isinstance(target, Target), target
    return target.artifact_hash


# the store


def make_unshared(*nodes: Mapping[str, Any]) -> World:
    world = World()
    world.nodes = [dict(entry) for entry in nodes]
    world.config = replace(
        world.config, store=StoreConfig("enginewright-store", "20Gi", "ReadWriteOnce", "fast")
    )
    return world


def test_the_rest_of_a_quantized_model_is_in_the_recipe_if_it_is_not_fp32() -> None:
    calibration = {"uri": "pvc://data/c.npz"}
    for asked, rest in (({}, None), ({"rest": "FP32"}, None), ({"rest": "FP16"}, "FP16")):
        quantization = {"calibration": calibration, **asked}
        world = World(precision="INT8", quantization=quantization).has_gpus()
        assert recipe(world).rest == rest
        assert ('"rest"' in recipe(world).to_json()) is (rest is not None)


def test_precisions_are_tried_by_themselves_with_calibration_data_or_on_devices() -> None:
    assert recipe(World()).allowed_precisions == ()
    calibrated = World(quantization={"calibration": {"uri": "pvc://data/c.npz"}})
    assert recipe(calibrated).allowed_precisions == ("INT8",)
    assert recipe(World().has_gpus()).allowed_precisions == ("FP16", "BF16")


@pytest.mark.parametrize("taints", [[], [{"key": "slow", "effect": "PreferNoSchedule"}]])
def test_volume_of_one_node_is_refused_where_pods_may_land_on_two(
    taints: list[dict[str, str]],
) -> None:
    reason, message = expect_stalled(make_unshared(node("a"), node("b", taints=taints)))
    assert reason == "StoreNotShared"
    assert "ReadWriteOnce" in message
    assert "store.accessMode=ReadWriteMany" in message


CONTROL_PLANE: Final = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    "other",
    [node("b", unschedulable=True), node("b", taints=[CONTROL_PLANE])],
    ids=["cordoned", "tainted"],
)
def test_a_volume_of_one_node_is_enough_where_pods_land_on_one(other: Mapping[str, Any]) -> None:
    world = make_unshared(node("a"), other).settle()
    claim = world.the("PersistentVolumeClaim")
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "20Gi"}},
        "storageClassName": "fast",
    }


@pytest.mark.parametrize(
    ("toleration", "counts"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "value": "yes"}, True),
        ({"key": "gpu", "value": "yes", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "value": "yes", "effect": "NoExecute"}, False),
        ({"key": "gpu", "value": "no"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_tolerated_taint_keeps_no_pod_away(toleration: dict[str, str], counts: bool) -> None:
    taint = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
    world = make_unshared(node("a"), node("b", taints=[taint]))
    world.classes = [accelerator_class("cpu", tolerations=[toleration])]
    world.settle()
    assert (world.condition("Ready")["reason"] == "StoreNotShared") is counts


def test_a_claim_of_the_administrators_own_is_taken_as_it_is() -> None:
    world = make_unshared(node("a"), node("b"))
    spec = {"accessModes": ["ReadWriteMany"]}
    claim = world.kube.put(
        make_object("PersistentVolumeClaim", "enginewright-store", NAMESPACE, spec=spec)
    )
    world.settle().job()
    assert world.the("PersistentVolumeClaim") == claim


def test_a_model_on_its_way_out_is_left_to_garbage_collection() -> None:
    world = World().settle().job_succeeds()
    world.subject["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    last = plan(world.facts())
    assert (last.apply, last.delete, last.events, last.requeue_after) == ((), (), (), None)


STEPS: dict[str, Any] = {
    "before": [{"uri": "pvc://steps/a.onnx", "sha256": "a" * 64}, {"uri": "hf://a/b/c.onnx"}],
    "after": [{"uri": "pvc://steps/b.onnx", "secretRef": {"name": "token"}}],
}


def test_the_recipe_holds_the_steps_and_the_job_their_digests() -> None:
    world = World(processing=STEPS, extensions=[{"type": "ONNXRuntimeExtensions"}])
    resolved = recipe(world)
    assert resolved.processing is not None
    assert resolved.processing.steps() == {
        "before-0": "pvc://steps/a.onnx",
        "before-1": "hf://a/b/c.onnx",
        "after-0": "pvc://steps/b.onnx",
    }
    assert resolved.extensions == (Extension(type="ONNXRuntimeExtensions"),)
    job = world.settle().job()["spec"]["template"]["spec"]["containers"][0]
    task = PrepareTask.model_validate_json(job["env"][0]["value"])
    assert task.steps_sha256 == {"before-0": "a" * 64}


def test_a_digest_of_a_step_is_looked_at_again_but_changes_no_recipe() -> None:
    one, other = World(processing=STEPS), World(processing={"after": STEPS["after"]})
    unpinned = World(
        processing={**STEPS, "before": [{"uri": step["uri"]} for step in STEPS["before"]]}
    )
    assert recipe(one) == recipe(unpinned) != recipe(other)
    assert artifact_hash(one) != artifact_hash(unpinned)
