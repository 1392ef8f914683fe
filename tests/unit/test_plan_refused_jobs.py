"""Jobs whose pods the API server refuses: only Events of the Jobs say so, and the owners repeat it."""

from typing import Final

from tests.support.plan_world import World

QUOTA: Final = "exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: 2, limited: 2"


# event: Jobs | a quota, Pod Security, a LimitRange or a webhook forbids a Job's pods | the previous revision | Ready
#   `FailedCreate` with the API server's words within a minute, a Warning Event; the Job goes on once its pods are allowed
def test_a_prepare_job_whose_pods_are_refused_says_why() -> None:
    world = World().settle()
    assert world.last
    assert world.last.requeue_after == 20, "its Events are read then"
    world.job_pods_are_refused(QUOTA).settle()
    assert world.conditions()["Ready"] == ("False", "FailedCreate")
    assert world.conditions()["Reconciling"][0] == "True"
    assert QUOTA in world.message()
    assert "x2x9k" not in world.message(), "each attempt has another name"
    assert [(event.type, event.reason) for event in world.events][-1] == ("Warning", "FailedCreate")
    assert world.last.requeue_after <= 60
    world.stage_runs("fetch")
    assert world.conditions()["Ready"] == ("False", "Preparing")
    assert QUOTA not in world.message()
    assert world.last.requeue_after is None


def test_a_build_whose_pods_are_refused_says_why() -> None:
    world = World.of_engine().settle()
    world.misses().job_pods_are_refused(QUOTA, "engine").settle()
    assert world.conditions()["Ready"] == ("False", "FailedCreate")
    assert QUOTA in world.message()
    world.stage_runs("build", "engine")
    assert world.conditions()["Ready"] == ("False", "Building")


def test_a_model_repeats_why_its_build_has_no_pod() -> None:
    world = World(replicas=1).has_gpus(aheadOfTime=False).settle().job_succeeds()
    world.misses().job_pods_are_refused(QUOTA, "engine").settle()
    assert world.conditions()["Ready"] == ("False", "FailedCreate")
    assert QUOTA in world.message()


def test_a_job_that_has_no_pod_for_another_reason_is_reported() -> None:
    world = World().settle().later(minutes=1)
    assert "has no pod" not in world.message()
    world.later(minutes=1)
    assert world.conditions()["Ready"] == ("False", "Preparing")
    assert "has no pod: see its Events" in world.message()


def test_a_job_that_was_resumed_has_the_time_to_get_a_pod() -> None:
    world = World().settle()
    job = world.job()
    job["spec"]["suspend"] = True
    world.later(hours=3)
    assert "has no pod" not in world.message()
    job["spec"]["suspend"] = False
    job["status"] = {"startTime": "2126-01-01T00:00:00Z"}
    world.settle()
    assert "has no pod" not in world.message()
