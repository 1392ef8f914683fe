"""From what CPU classes have to what INT8 forms rely on: one way, and the safest where nothing is known."""

from dataclasses import replace
from typing import Any, Final

import pytest
from enginewright.observed.nodes import node_view
from enginewright.plan.resolve.classes import readiness
from enginewright.plan.resolve.devices import features, find_contradicted, int8_products
from enginewright_contract.processors import Feature
from enginewright_contract.task import PrepareTask, Recipe

from tests.support.plan_objects import accelerator_class, node
from tests.support.plan_world import World

NFD: Final = "feature.node.kubernetes.io/cpu-cpuid."
DATA: Final = {"calibration": {"uri": "pvc://data/c.npz"}}
VNNI: Final = accelerator_class("vnni", cpuFeatures=["AVX512", "VNNI"], tolerations=[{"key": "a"}])
AVX2: Final = accelerator_class("avx2", cpuFeatures=["AVX2"])
UNKNOWN: Final = accelerator_class("cpu")


def selecting(**labels: str) -> Any:
    selector = {f"{NFD}{name}": value for name, value in labels.items()}
    return accelerator_class("labels", nodeSelector=selector)


def world_of(*classes: Any, **spec: Any) -> World:
    return World(*classes, **spec)


def recipe(world: World) -> Recipe:
    return PrepareTask.model_validate_json(world.settle().task()).recipe


@pytest.mark.parametrize(
    ("accelerator", "expected"),
    [
        (UNKNOWN, ()),
        (VNNI, (Feature.AVX512, Feature.VNNI)),
        (selecting(AVX512VNNI="true", AVX2="true"), (Feature.AVX2, Feature.VNNI)),
        (selecting(AVXVNNI="true"), (Feature.VNNI,)),
        (selecting(ASIMDDP="true"), (Feature.ASIMDDP,)),
        (selecting(AVX512VNNI="false"), ()),
        (selecting(FMA3="true"), ()),
        (accelerator_class("none", cpuFeatures=[], nodeSelector={f"{NFD}AVXVNNI": "true"}), ()),
    ],
)
def test_features_of_every_node_of_a_class(accelerator: Any, expected: tuple[Feature, ...]) -> None:
    assert features(accelerator) == expected


@pytest.mark.parametrize(
    ("backend", "precision", "classes", "expected"),
    [
        ("cpu", "INT8", [VNNI], "exact"),
        ("openvino", "INT8", [VNNI], "exact"),
        ("cpu", "INT8", [UNKNOWN], "any"),
        ("cpu", "INT8", [VNNI, AVX2], "any"),  # one model serves all classes
        ("cpu", None, [VNNI], None),
        ("cpu", "FP16", [VNNI], None),
        ("cuda", "INT8", [VNNI], None),
        ("tensorrt", "INT8", [UNKNOWN], None),
    ],
)
def test_features_that_int8_needs(
    backend: str, precision: Any, classes: list[Any], expected: str | None
) -> None:
    assert int8_products(backend, (precision,), classes) == expected


def test_the_class_decides_the_recipe_and_where_the_job_proves_it() -> None:
    world = world_of(VNNI, precision="INT8")
    assert recipe(world).int8_products == "exact"
    pod = world.job()["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert [item["key"] for item in pod["tolerations"]] == ["a"]
    for item in (UNKNOWN, AVX2):
        world = world_of(item, precision="INT8")
        assert recipe(world).int8_products == "any"
        assert "nodeSelector" not in world.job()["spec"]["template"]["spec"]
    assert recipe(world_of(VNNI, quantization=DATA)).int8_products == "exact"
    assert recipe(world_of(VNNI)).int8_products is None


# fault: Processors | a class names an instruction set that a node lacks | the class's `Ready`:
#   `FeatureMissing` | next pass
def test_class_with_a_missing_feature_is_reported() -> None:
    with_vnni = replace(node_view(node("a")), labels=labels(AVX512VNNI="true"))
    without = replace(node_view(node("b")), labels=labels(AVX2="true"))
    unlabelled = node_view(node("c"))
    promising = accelerator_class("vnni", cpuFeatures=["VNNI", "I8MM"])
    assert readiness(promising, [], [with_vnni, unlabelled]).status == "True"
    reported = readiness(promising, [], [with_vnni, without])
    assert (reported.status, reported.reason) == ("False", "FeatureMissing")
    assert "lists VNNI, but node b lacks it" in reported.message
    assert find_contradicted(UNKNOWN, labels(AVX2="true")) == ()


def labels(**cpuid: str) -> dict[str, str]:
    return {"kubernetes.io/os": "linux"} | {f"{NFD}{key}": value for key, value in cpuid.items()}
