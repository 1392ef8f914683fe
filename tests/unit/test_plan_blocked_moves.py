"""A model whose move to another image cannot go on: it gives its turn to others, until it does."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest
from enginewright.kube.errors import Forbidden
from enginewright.observed.moves import move_view
from enginewright.plan.fleet.turns import FleetState, fleet_state
from enginewright.plan.types import FleetConfig
from enginewright_contract.reasons import Reason

from tests.support.plan_objects import image_facts
from tests.support.plan_world import World, serving
from tests.unit.test_plan_capacity import WITH_CANARY


def moving() -> World:
    world = serving(rollout=WITH_CANARY).new_runtime_image(like=image_facts("cpu"))
    return world.job_succeeds()


def fleet_of(world: World) -> FleetState:
    """Return the fleet of this model and another one that waits, of which one may move at a time."""
    assert world.model
    move = move_view(world.model)
    assert move
    other = replace(move, name="other", state="Waiting", reason="")
    return fleet_state([move, other], world.config.images, FleetConfig(limit=1))


# event: Operator | a model that moves to a new image finds no device, or a quota forbids its pods, for longer than
#   `rollout.progressTimeout` | all; other models move | `status.images.reason` `CapacityBlocked` or `FailedCreate`, an Event
def test_a_move_without_a_device_gives_its_turn_away_and_says_so() -> None:
    world = moving().canary_unschedulable()
    assert not fleet_of(world).permitted
    assert world.last
    assert world.last.requeue_after
    events = len(world.events)
    world.later(minutes=11)
    images = world.status["images"]
    assert (images["state"], images["reason"]) == ("Moving", "CapacityBlocked")
    assert "Insufficient nvidia.com/gpu" in images["message"]
    (event,) = world.events[events:]
    assert (event.type, event.reason) == ("Warning", "CapacityBlocked")
    assert "gives its turn" in event.message
    assert [name for _, name in fleet_of(world).permitted] == ["other"]
    world.nodes_take_pods()
    assert "reason" not in world.status["images"]
    assert not fleet_of(world).permitted, "it goes on, and counts again"
    world.canary_available().later(seconds=61).later(seconds=61).all_available()
    assert world.status["images"]["state"] == "Moved"


QUOTA: Final = "exceeded quota: jobs"
STUCK: Final[dict[str, Callable[[World], object]]] = {
    "StorageFull": lambda world: world.job_fails(Reason.STORAGE_FULL),
    "StoreUnavailable": lambda world: world.job_fails(Reason.STORE_UNAVAILABLE),
    "FailedCreate": lambda world: world.job_pods_are_refused(QUOTA).settle(),
    "CapacityBlocked": lambda world: world.unschedulable("0/2 nodes are available: 2 no memory."),
    "ApplyFailed": World.settle,
}


# event: Operator | the preparation of a model that moves cannot go on for longer than `rollout.progressTimeout`: a full
#   store, a quota, no node | all; other models move | `status.images.reason` has the reason, an Event
@pytest.mark.parametrize("reason", STUCK)
def test_a_move_whose_preparation_cannot_go_on_gives_its_turn_away_and_says_so(reason: str) -> None:
    world = serving(rollout=WITH_CANARY)
    if reason == "ApplyFailed":
        world.kube.refuses["apply", "Job"] = Forbidden(QUOTA, code=403)
    world.new_runtime_image(like=image_facts("cpu"))
    STUCK[reason](world)
    world.later(minutes=5)
    assert not fleet_of(world).permitted
    world.later(minutes=6)
    images = world.status["images"]
    assert (images["state"], images["reason"]) == ("Moving", reason)
    assert [name for _, name in fleet_of(world).permitted] == ["other"]
    (told,) = [event for event in world.events if "gives its turn" in event.message]
    assert (told.type, told.reason) == ("Warning", reason)
    world.kube.refuses.clear()
    world.later(hours=2).job_succeeds()
    assert "reason" not in world.status["images"]
    assert not fleet_of(world).permitted, "it goes on, and counts again"


def test_a_move_whose_pods_are_refused_gives_its_turn_away() -> None:
    world = moving().pods_are_refused("exceeded quota: gpus").later(minutes=11)
    assert world.status["images"]["reason"] == "FailedCreate"
    assert [name for _, name in fleet_of(world).permitted] == ["other"]
    assert world.status["images"]["state"] == "Moving"


def test_a_move_whose_build_finds_no_device_gives_its_turn_away() -> None:
    world = World(rollout={"canary": {"replicas": 0}}, replicas=1).has_gpus(aheadOfTime=False)
    world.settle().job_succeeds().misses().succeeds("engine", nodes_accelerated=415).all_available()
    rtx = world.images[world.config.images["rtx"]]
    newer = rtx.model_copy(update={"backends": {"tensorrt-rtx": "1.8.0.1"}})
    world.new_runtime_image("registry.example/rtx:2", "rtx", like=newer)
    for job in world.running_jobs():
        if job["metadata"]["labels"]["enginewright.dev/component"] == "prepare":
            world.job_succeeds(of=job["metadata"]["name"])
    world.misses().unschedulable(
        "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.", "engine"
    )
    assert world.conditions()["EnginesReady"] == ("False", "CapacityBlocked")
    assert "reason" not in world.status["images"]
    world.later(minutes=11)
    assert world.status["images"]["reason"] == "CapacityBlocked"
    assert world.status["images"]["state"] == "Moving"
    world.stage_runs("build", "engine")
    assert "reason" not in world.status["images"]
