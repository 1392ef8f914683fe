"""Faults of the cluster in every state of a model: what is no fault of a revision rejects none, and what cannot begin says why."""

from datetime import timedelta
from typing import Final

import pytest
from enginewright.observed.pods import JOB_NAME, pod_view

from tests.support.effort import spread
from tests.support.plan_world import World, conditions_of
from tests.unit.test_plan_conditions import QUOTA, STATES

LONG: Final = timedelta(minutes=11)  # more than pods may take to start
AT_WORK: Final = ("Preparing", "LookingUp", "Queued", "Building", "FailedCreate")
WITH_PODS: Final = [
    state for state in STATES if state.startswith(("first rollout", "update", "paused, a canary"))
]


def judge(world: World) -> tuple[object, ...]:
    """Return what is rejected or given up, and what runs beside the serving pods."""
    conditions = world.conditions()
    given_up = conditions["Ready"] if conditions["Ready"][1] == "RolloutFailed" else None
    canaries = [canary["metadata"]["name"] for canary in world.canaries()]
    return conditions["RolledBack"], given_up, canaries


@pytest.mark.parametrize("state", WITH_PODS)
def test_pods_that_get_a_node_late_are_not_given_up(state: str) -> None:
    world = STATES[state]()
    for pod in [pod for pod in world.all("Pod") if "deployment" in pod["metadata"]["labels"]]:
        if not pod_view(pod).ready:
            world.remove("Pod", pod["metadata"]["name"])  # for another one
    before = judge(world.settle())
    world.canary_unschedulable().update_unschedulable()
    world.now += LONG
    world.later(minutes=0)
    assert world.conditions()["Ready"][1] != "RolloutFailed" or before[1]
    assert judge(world.nodes_take_pods())[:2] == before[:2]


@pytest.mark.parametrize("state", WITH_PODS)
def test_old_and_foreign_restarts_of_ready_pods_change_nothing(state: str) -> None:
    world = STATES[state]()
    before = judge(world)
    for container, hours in (("server", 5), ("istio-proxy", 0)):
        for pod in world.all("Pod"):
            if "deployment" in pod["metadata"]["labels"] and pod_view(pod).ready:
                world.has_restarted(pod, container, ago=timedelta(hours=hours))
        assert judge(world.settle()) == before, container


@pytest.mark.parametrize("state", spread(tuple(STATES), 2))
def test_jobs_whose_pods_are_refused_are_not_silent(state: str) -> None:
    world = STATES[state]()
    names = [job["metadata"]["name"] for job in world.running_jobs()]
    names = [name for name in names if not world.pods_of(JOB_NAME, name)]
    for name in names:
        world.job_pods_are_refused(QUOTA, name)
    world.settle()
    if names and conditions_of(world.subject)["Ready"][1] in AT_WORK:
        assert QUOTA in world.message()


# event: Jobs | the node of a Job's pod is NotReady, or no scheduler looks at its pod | the previous revision | Ready names
#   the node, `NodeNotReady`, or the scheduler
@pytest.mark.parametrize("of", ["prepare", "engine"])
def test_jobs_name_their_node_and_their_scheduler(of: str) -> None:
    world = World().settle() if of == "prepare" else World.of_engine().settle().misses()
    world.job_pod(of=of, placed=False)
    world.settle()
    before = world.conditions()["Ready"][1]
    assert world.last
    assert world.last.requeue_after == 60
    world.later(minutes=1)
    assert "the scheduler has not looked at a pod" in world.message()
    world.stage_runs(world.stages(of)[0], of).node_goes_down()
    assert world.conditions()["Ready"] == ("False", "NodeNotReady")
    assert "node node-1 is NotReady" in world.message()
    world.node_comes_back()
    assert world.conditions()["Ready"][1] in (before, "Building")
    assert "not" not in world.message()
