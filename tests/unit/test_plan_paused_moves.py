"""A move to other images that its user pauses: the model is as before it began, and moves in turn once it is resumed."""

from collections.abc import Callable
from typing import Final

import pytest
from enginewright_contract.reasons import Reason

from tests.support.plan_objects import CPU_IMAGE, OTHER, RTX_IMAGE, Json, gpu_node, image_facts
from tests.support.plan_world import World, conditions_of
from tests.unit.test_plan_moves import CANARY, MOVED, Member

NEW_RTX: Final = "registry.example/rtx:2"


def pause(world: World) -> World:
    return world.edit(rollout={**world.spec["rollout"], "paused": True})


def resume(world: World) -> World:
    return world.edit(rollout={**world.spec["rollout"], "paused": False})


def moves(world: World) -> tuple[str, str]:
    images = world.status["images"]
    return images["state"], images.get("reason", "")


def begins() -> World:
    return Member(rollout=CANARY, replicas=2).upgrade().moves()


def is_built() -> World:
    world = World().has_gpus(aheadOfTime=False)
    world.images[RTX_IMAGE] = world.images[RTX_IMAGE].model_copy(update={"pipeline": "5" * 64})
    world.nodes.append(gpu_node("gpu-1"))
    world.settle().job_succeeds().engine_built().all_available().jobs_are_cleaned_away()
    facts: Json = {"backends": {"tensorrt-rtx": "1.8.0.1"}}
    like = image_facts("rtx", "1.32.0").model_copy(update=facts)
    world.new_runtime_image(NEW_RTX, "rtx", like=like).job_succeeds(MOVED)
    return world.misses().stage_runs("build", "engine")


STAGES: Final[dict[str, Callable[[], World]]] = {
    "its Job runs": begins,
    "its Job is retried": lambda: begins().job_fails(Reason.STORE_UNAVAILABLE),
    "its engine is built": is_built,
    "its canary runs": lambda: begins().job_succeeds(MOVED).canary_available(),
}


# event: Operator | a user pauses a model that moves to another runtime image or class | the model with its own; what
#   was begun with the other is removed, and once resumed it waits for its turn | `status.images.reason` `Suspended`
@pytest.mark.parametrize("stage", STAGES)
def test_a_move_that_is_paused_gives_its_turn_back(stage: str) -> None:
    world = STAGES[stage]()
    active = world.status["active"]["revision"]
    assert moves(world) == ("Moving", "")
    pause(world).later(hours=1)
    assert moves(world) == ("Waiting", "Suspended")
    assert (world.running_jobs(), world.canaries()) == ([], [])
    assert world.conditions()["Ready"] == ("True", "Serving")
    assert world.status["revision"] == active
    world.turn = False
    assert moves(resume(world)) == ("Waiting", "")
    world.turn = True
    assert moves(world.settle()) == ("Moving", "")
    world.later(minutes=2)
    assert world.running_jobs() or world.canaries(), "it begins again"


def test_serving_revision_is_repaired_with_its_own_image_meanwhile() -> None:
    world = pause(begins()).later(hours=3)
    world.rolling(0).new_pod_fails(Reason.ARTIFACT_MISSING, "fetch-artifact")
    (job,) = world.running_jobs()
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == CPU_IMAGE
    assert not world.job_succeeds().all_available().later(hours=1).running_jobs()
    assert world.conditions()["Ready"] == ("True", "Serving")


def test_spec_that_is_edited_meanwhile_is_prepared_with_its_own_image() -> None:
    world = pause(begins()).edit(source=OTHER)
    assert moves(world) == ("Waiting", "Suspended")
    (job,) = world.running_jobs()
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == CPU_IMAGE
    world.job_succeeds(MOVED)
    assert world.status["target"]["phase"] == "Held"
    assert world.conditions()["Ready"] == ("False", "Suspended")


def test_engine_that_serves_is_looked_for_again_meanwhile() -> None:
    world = is_built()
    pause(world)
    (reference,) = world.status["engines"]
    world.remove("InferenceEngine", reference["name"])
    (engine,) = [
        entry
        for entry in world.settle().all("InferenceEngine")
        if entry["metadata"]["name"] == reference["name"]
    ]
    assert conditions_of(engine)["Ready"] == ("False", "LookingUp")
