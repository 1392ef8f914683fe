"""Fifty models that are to be prepared alike, applied at once: one prepare Job, also when the operator is killed.

With the operator's process on a real API server; kubelet and Job controller are played.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.apiserver.world import RTX_IMAGE, WHOLE, EngineWorld, engine_built, set_up
from tests.e2e.harness import Namespace, eventually
from tests.support import simulated_cluster as played
from tests.support.plan_objects import make_object

pytestmark = pytest.mark.apiserver

NAMES: Final = [f"m{number:02}" for number in range(50)]
RTX: Final = {"rtx": RTX_IMAGE}


@pytest.fixture
def world(new_namespace: Callable[[], Namespace], tmp_path: Path) -> Iterator[EngineWorld]:
    with set_up(EngineWorld, new_namespace, tmp_path) as world:
        played.add_gpu_class(world.user)
        yield world


def model(name: str) -> dict[str, Any]:
    spec = {"source": {"uri": "https://example.com/m.onnx"}, "rollout": {"canary": {"replicas": 0}}}
    return make_object("InferenceModel", name, spec=spec)


def reasons(world: EngineWorld, condition: str = "Ready") -> list[str]:
    """Return the reasons of a condition of all models, in the order of their names."""
    conditions = (
        {one["type"]: one["reason"] for one in entry.get("status", {}).get("conditions", ())}
        for entry in world.user.items("im")
    )
    return [reasons.get(condition, "") for reasons in conditions]


def test_fifty_models_cost_one_preparation_and_one_build(world: EngineWorld) -> None:
    with world.operator(images=RTX) as operator:
        operator.wait_ready()
        world.probe_images(2)
        operator.wait_quiet()
        world.user.apply(*map(model, NAMES))
        expected = sorted(["Preparing"] + ["SharedPreparation"] * (len(NAMES) - 1))
        eventually(lambda: sorted(reasons(world)) == expected, 60, interval=0.3)
        operator.wait_quiet()
        (job,) = world.jobs("prepare")
        leader = job["metadata"]["ownerReferences"][0]["name"]
        follower = next(name for name in NAMES if name != leader)
        message = world.user.condition(follower, "Ready")["message"]
        assert f"InferenceModel {leader} prepares the same model" in message
        operator.kill()
    assert operator.log.count("wrote the status of InferenceModel ") == len(NAMES)
    world.expire_lease()
    with world.operator(images=RTX) as operator:
        operator.wait_ready().wait_quiet()
        assert operator.writes() == 0
        assert len(world.jobs("prepare")) == 1
        world.prepare()
        eventually(lambda: reasons(world, "Validated") == ["Prepared"] * len(NAMES), 60)
        operator.wait_quiet()
        assert len(world.jobs("prepare")) == 1
        engine = world.job("engine")
        assert len(world.jobs("engine")) == 1
        assert len(world.user.items("ieng")) == 1
        world.follow(engine)
        world.end_build(engine_built(world.key, **WHOLE))
        eventually(lambda: reasons(world, "EnginesReady") == ["Built"] * len(NAMES), 60)
        eventually(lambda: len(world.user.items("deployments")) == len(NAMES), 60)
        operator.wait_quiet()
        assert len(world.jobs("prepare")) == len(world.jobs("engine")) == 1
        assert "level=error" not in operator.log
