"""Fifty models that are to be prepared alike, applied at once: one prepare Job, also when the operator is killed.

With the operator's process on a real API server; kubelet and Job controller are played.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.apiserver.test_engine_lifecycle import (
    PREPARED,
    RTX_IMAGE,
    World,
    built,
    know_images,
)
from tests.e2e.harness import Namespace, eventually
from tests.support import simulated_cluster as played
from tests.support.plan_objects import made

pytestmark = pytest.mark.apiserver

NAMES: Final = [f"m{number:02}" for number in range(50)]


@pytest.fixture
def world(new_namespace: Callable[[], Namespace], tmp_path: Path) -> Iterator[World]:
    world = World(new_namespace(), new_namespace(), tmp_path)
    world.furnish()
    played.add_gpu_class(world.user)
    yield world
    world.user.delete_all("inferencemodels,inferenceengines")
    world.user.delete_all("acceleratorclasses")


def model(name: str) -> dict[str, Any]:
    spec = {"source": {"uri": "https://example.com/m.onnx"}, "rollout": {"canary": {"replicas": 0}}}
    return made("InferenceModel", name, spec=spec)


def reasons(world: World, condition: str = "Ready") -> list[str]:
    """Return the reasons of a condition of all models, in the order of their names."""
    found = []
    for each in world.user.items("im"):
        conditions = {one["type"]: one for one in each.get("status", {}).get("conditions", ())}
        found.append(conditions.get(condition, {}).get("reason", ""))
    return found


def test_fifty_models_cost_one_preparation_and_one_build(world: World) -> None:
    with world.operator(rtx=RTX_IMAGE) as operator:
        operator.wait_ready()
        know_images(world)
        operator.wait_quiet()
        world.user.apply(*map(model, NAMES))
        expected = sorted(["Preparing"] + ["SharedPreparation"] * (len(NAMES) - 1))
        eventually(lambda: sorted(reasons(world)) == expected, 60, interval=0.3)
        operator.wait_quiet()
        (job,) = world.jobs("prepare")
        leader = job["metadata"]["ownerReferences"][0]["name"]
        ready = world.user.get("im", next(each for each in NAMES if each != leader))["status"]
        (message,) = [each["message"] for each in ready["conditions"] if each["type"] == "Ready"]
        assert f"InferenceModel {leader} prepares the same model" in message
        operator.kill()
    assert operator.log.count("wrote the status of InferenceModel ") == len(NAMES)
    world.system.delete("lease", "enginewright")  # as if it had expired
    with world.operator(rtx=RTX_IMAGE) as operator:
        operator.wait_ready().wait_quiet()
        assert operator.writes() == 0
        assert len(world.jobs("prepare")) == 1
        world.play(job, PREPARED, tuple(PREPARED))
        eventually(lambda: reasons(world, "Validated") == ["Prepared"] * len(NAMES), 60)
        operator.wait_quiet()
        assert len(world.jobs("prepare")) == 1
        engine = world.job("engine")
        assert len(world.jobs("engine")) == 1
        assert len(world.user.items("ieng")) == 1
        world.name = engine["metadata"]["labels"]["enginewright.dev/engine"]
        whole = {"nodes_total": 415, "nodes_accelerated": 415, "elsewhere": ()}
        world.play(engine, built(world.key, **whole))
        eventually(lambda: reasons(world, "EnginesReady") == ["Built"] * len(NAMES), 60)
        eventually(lambda: len(world.user.items("deployments")) == len(NAMES), 60)
        operator.wait_quiet()
        assert len(world.jobs("prepare")) == len(world.jobs("engine")) == 1
        assert "level=error" not in operator.log


def test_the_next_model_leads_once_the_leader_is_deleted(world: World) -> None:
    with world.operator(rtx=RTX_IMAGE) as operator:
        operator.wait_ready()
        know_images(world)
        world.user.apply(*map(model, NAMES[:3]))
        (first,) = eventually(lambda: world.jobs("prepare"), 20, interval=0.1)
        leader = first["metadata"]["ownerReferences"][0]["name"]
        eventually(lambda: reasons(world).count("SharedPreparation") == 2, 20, interval=0.1)
        operator.wait_quiet()
        world.user.delete("im", leader)

        def next_one() -> dict[str, Any] | None:
            jobs = world.jobs("prepare")
            others = [each for each in jobs if each["metadata"]["uid"] != first["metadata"]["uid"]]
            return others[0] if others else None

        second = eventually(next_one, 20, interval=0.1)
        assert second is not None
        assert second["metadata"]["ownerReferences"][0]["name"] != leader
        world.play(second, PREPARED, tuple(PREPARED))
        eventually(lambda: reasons(world, "Validated") == ["Prepared"] * 2, 20, interval=0.1)
