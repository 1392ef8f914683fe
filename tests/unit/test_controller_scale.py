"""What one change costs does not grow with what else is in the namespace: counted in passes and parsed objects."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from enginewright.api.base import ApiModel
from enginewright.api.inference_engine import InferenceEngine
from enginewright.controller import facts
from enginewright.controller.parse import parse_objects
from enginewright.controller.routing import ModelKey

from tests.support.many_models import ManyModels
from tests.support.plan_objects import (
    RTX_IMAGE,
    engine_spec,
    gpu_node,
    image_facts,
    make_object,
    publish_model,
)


def build_many(count: int) -> ManyModels:
    """Return models, each of which waits for an engine of its own."""
    world = ManyModels()
    world.config.images["rtx"] = RTX_IMAGE  # type: ignore[index]  # a dict, of this world alone
    rtx = image_facts("rtx").model_copy(update={"backends": {"tensorrt-rtx": "1.7.1.116"}})
    world.images.facts[RTX_IMAGE] = rtx
    selector = {"nvidia.com/gpu.product": "NVIDIA-L4"}
    spec = {
        "nodeSelector": selector,
        "resourceName": "nvidia.com/gpu",
        "computeCapability": "8.9",
        "backends": ["tensorrt-rtx"],
    }
    world.kube.put(make_object("AcceleratorClass", "l4", spec=spec))
    world.kube.put(gpu_node("gpu-1"))
    names = [f"model-{number}" for number in range(count)]
    for number, name in enumerate(names):
        source = {"uri": f"https://models.example/{number}.onnx"}
        world.put(name, source=source, accelerators=[{"class": "l4"}])
    world.settle()
    for number, job in enumerate(world.running_jobs()):
        published = publish_model(f"{number:064x}", f"{number:064x}")
        world.job_succeeds(published, of=job["metadata"]["name"])
    for job in world.running_jobs():
        world.misses(of=job["metadata"]["name"])
    world.passes.clear()
    return world


def test_a_stage_of_an_engine_plans_only_the_engine_and_the_models_that_use_it() -> None:
    world = build_many(6)
    job = world.running_jobs()[3]["metadata"]["name"]
    world.stage_runs("verify", of=job)
    (engine,) = {name for name in world.passes if name.startswith("tensorrt")}
    (model,) = {name for name in world.passes if name.startswith("model")}
    assert engine in [item["name"] for item in world.status(model)["engines"]]


def test_passes_are_as_many_for_each_of_many_engines_as_for_each_of_few() -> None:
    passes = []
    for count in (2, 6):
        world = build_many(count)
        for job in world.running_jobs():
            world.stage_runs("verify", of=job["metadata"]["name"])
        passes.append(world.passes.total() / count)
    assert passes[0] == passes[1]


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return the names of InferenceEngines that passes of models parse."""
    names: Counter[str] = Counter()

    def parse(model: type[ApiModel], objects: Iterable[Any]) -> list[Any]:
        every = list(objects)
        if model is InferenceEngine:
            names.update(entry["metadata"]["name"] for entry in every)
        return parse_objects(model, every)

    monkeypatch.setattr(facts, "parse_objects", parse)
    return names


def test_a_pass_parses_only_the_engines_that_its_model_needs(parsed: Counter[str]) -> None:
    world = build_many(3)
    for number in range(20):
        others = {**engine_spec(), "preparedKey": f"{number + 100:064x}"}
        world.kube.put(
            make_object("InferenceEngine", f"another-{number}", world.namespace, spec=others)
        )
    world.watch()
    parsed.clear()
    world.reconcile(ModelKey(world.namespace, "model-1"))
    (own,) = world.status("model-1")["engines"]
    assert set(parsed) == {own["name"]}
