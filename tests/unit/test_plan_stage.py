"""What `kubectl get im -w` shows of a model on its way: the stage, while no Event of it is a Warning."""

from tests.support.plan_objects import OTHER, SECOND
from tests.support.plan_world import World


def stage(world: World) -> str:
    return str(world.status["summary"].get("stage", ""))


def test_every_stage_until_it_serves_and_is_updated() -> None:
    world = World(rollout={"canary": {"replicas": 1, "hold": "1m"}}).settle()
    assert stage(world.stage_runs("validate")) == "validate"
    world.job_succeeds().all_available()
    assert stage(world) == ""
    world.edit(source=OTHER)
    assert stage(world) == "fetch"
    world.job_succeeds(SECOND).canary_available()
    assert stage(world) == "Analyzing 1"
    assert stage(world.later(seconds=101)) == "Promoting"
    assert stage(world.later(seconds=30).all_available()) == ""
    assert {event.type for event in world.events} == {"Normal"}


def test_the_stage_of_a_build() -> None:
    world = World().has_gpus().settle().job_succeeds()
    engine = world.the("InferenceEngine")
    world.set_status(engine, {"stage": "build"})
    assert stage(world.settle()) == "build"
