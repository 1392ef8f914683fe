"""What a drain may evict while a canary runs, as Kubernetes' disruption controller computes it.

The pods that a budget selects belong to two Deployments. Of each of them that has a selected pod, the
controller expects all replicas, selected or not.
"""

from typing import Any, Final

import pytest
from enginewright.manifests.labels import COMPONENT, SERVE, TRACK

from tests.support.plan_objects import OTHER, SECOND, Json
from tests.support.plan_world import World, serving

CANARY: Final[Json] = {"canary": {"replicas": 1, "hold": "1m", "steps": ["50%"]}}


def verifying(**rollout: Any) -> World:
    world = serving(replicas=3, rollout={**CANARY, **rollout})
    return world.edit(source=OTHER).job_succeeds(SECOND)


def analyzing() -> World:
    return verifying().canary_available()


def next_step() -> World:
    world = analyzing().later(seconds=61)
    assert world.status["target"]["step"] == 2
    return world


def promoting() -> World:
    return next_step().canary_available().later(seconds=61)


PHASES: Final = {
    "Verifying": verifying,
    "Analyzing": analyzing,
    "Promoting": promoting,
}


def has(pod: Json, selector: Json) -> bool:
    return bool(selector.items() <= pod["metadata"]["labels"].items())


def is_ready(pod: Json) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(
        (condition["type"], condition["status"]) == ("Ready", "True") for condition in conditions
    )


def find_covered(world: World) -> list[Json]:
    selector = world.the("PodDisruptionBudget")["spec"]["selector"]["matchLabels"]
    return [pod for pod in world.all("Pod") if has(pod, selector)]


def evictions_allowed(world: World) -> int:
    pods = find_covered(world)
    owners = {pod["metadata"]["labels"]["deployment"] for pod in pods}
    expected = sum(int(world.get("Deployment", owner)["spec"]["replicas"]) for owner in owners)
    most = world.the("PodDisruptionBudget")["spec"]["maxUnavailable"]
    return max(0, sum(map(is_ready, pods)) - (expected - int(most)))


@pytest.mark.parametrize("phase", PHASES)
def test_one_budget_covers_exactly_the_pods_that_get_requests(phase: str) -> None:
    world = PHASES[phase]()
    assert world.status["target"]["phase"] == phase
    selector = world.the("Service")["spec"]["selector"]
    assert find_covered(world) == [pod for pod in world.all("Pod") if has(pod, selector)]
    tracks = {pod["metadata"]["labels"].get(TRACK) for pod in find_covered(world)}
    assert len(tracks) == (1 if phase == "Verifying" else 2), "of both Deployments"


# event: Rollouts | a node is drained while a canary runs | all pods but one, be it of the canary or not |
#   `kubectl drain` waits
@pytest.mark.parametrize("phase", PHASES)
def test_a_drain_never_takes_a_serving_and_a_canary_pod_at_once(phase: str) -> None:
    world = PHASES[phase]()
    assert evictions_allowed(world) == 1
    for pod in find_covered(world):
        before = pod["status"]
        pod["status"] = {"phase": "Running", "conditions": []}  # it has been evicted
        assert evictions_allowed(world) == 0
        pod["status"] = before


def test_a_canary_that_gets_no_requests_does_not_delay_a_drain() -> None:
    world = verifying().canary_unschedulable()
    assert {pod["metadata"]["labels"][COMPONENT] for pod in find_covered(world)} == {SERVE}
    assert evictions_allowed(world) == 1


def test_further_canary_pods_count_as_unavailable_until_they_get_requests() -> None:
    world = next_step()
    assert sum(canary["spec"]["replicas"] for canary in world.canaries()) == 3
    assert evictions_allowed(world) == 0
    world.canary_available()
    assert evictions_allowed(world) == 1
