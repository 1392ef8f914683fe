"""spec.serving.autoscaling: an autoscaler per class, and live counts that are never reset.

World refuses every pass that changes the count of an autoscaled Deployment.
"""

from typing import Any, Final

import pytest
from enginewright.manifests.field_managers import FIELD_MANAGER, HANDOVER_MANAGER
from enginewright.observed.deployments import count_managers

from tests.support.fake_kube import ANOTHER_CLIENT
from tests.support.plan_objects import OTHER, SECOND, Json, gpu_node
from tests.support.plan_world import World, serving
from tests.support.simulation import NO_DEVICE

AUTOSCALED: Final = {"autoscaling": {"minReplicas": 2, "maxReplicas": 8}}
NAME: Final = "resnet-cpu"
CPU: Final[Json] = {
    "type": "ContainerResource",
    "containerResource": {
        "name": "cpu",
        "container": "server",
        "target": {"type": "Utilization", "averageUtilization": 80},
    },
}
QUEUE: Final[Json] = {
    "type": "Pods",
    "pods": {
        "metric": {"name": "enginewright_queue_depth"},
        "target": {"type": "AverageValue", "averageValue": "1"},
    },
}


def serve_autoscaled(**spec: Any) -> World:
    return serving(**{"serving": AUTOSCALED, **spec})


def autoscalers(world: World) -> dict[str, Json]:
    return {
        entry["metadata"]["name"]: entry["spec"] for entry in world.all("HorizontalPodAutoscaler")
    }


def owners(world: World, name: str = NAME) -> set[str]:
    """Return who owns a Deployment's count."""
    return set(count_managers(world.get("Deployment", name)["metadata"]))


def test_each_class_has_an_autoscaler_of_its_deployment() -> None:
    world = World(
        "a", "b", accelerators=[{"class": "a"}, {"class": "b"}], replicas=4, serving=AUTOSCALED
    )
    world.settle().job_succeeds().all_available()
    assert list(autoscalers(world)) == ["resnet-a", "resnet-b"]
    assert autoscalers(world)["resnet-b"] == {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "resnet-b"},
        "minReplicas": 2,
        "maxReplicas": 8,
        "metrics": [CPU],
    }
    (owner,) = world.all("HorizontalPodAutoscaler")[0]["metadata"]["ownerReferences"]
    assert world.model
    assert owner["uid"] == world.model["metadata"]["uid"]


@pytest.mark.parametrize(
    ("resources", "metric"),
    [
        ({"requests": {"cpu": "2"}}, CPU),
        ({"limits": {"cpu": "2"}}, CPU),  # Kubernetes requests what is limited
        ({"requests": {"memory": "1Gi"}}, QUEUE),
    ],
)
def test_the_default_metric_is_one_that_the_pods_have(resources: Json, metric: Json) -> None:
    world = serve_autoscaled(podTemplate={"resources": resources})
    assert autoscalers(world)[NAME]["metrics"] == [metric]


def test_the_default_metric_on_devices_is_the_queue() -> None:
    world = World(backends=["cuda"], serving=AUTOSCALED).has_gpus()
    world.settle().job_succeeds().all_available()
    assert autoscalers(world)["resnet-l4"]["metrics"] == [QUEUE]


def test_metrics_of_the_spec_are_taken_as_they_are() -> None:
    metrics = [{"type": "External", "external": {"metric": {"name": "jobs"}}}]
    world = serve_autoscaled(serving={"autoscaling": {"maxReplicas": 3, "metrics": metrics}})
    spec = autoscalers(world)[NAME]
    assert (spec["minReplicas"], spec["maxReplicas"], spec["metrics"]) == (1, 3, metrics)


@pytest.mark.parametrize(("replicas", "start"), [(1, 2), (5, 5), (9, 8)])
def test_replicas_is_the_count_at_first_within_the_limits(replicas: int, start: int) -> None:
    assert serve_autoscaled(replicas=replicas).replicas() == {NAME: start}


def test_replicas_of_a_class_is_its_count_at_first() -> None:
    world = World(
        "a",
        "b",
        accelerators=[{"class": "a", "replicas": 5}, {"class": "b"}],
        replicas=3,
        serving=AUTOSCALED,
    )
    world.settle().job_succeeds()
    assert world.replicas() == {"resnet-a": 5, "resnet-b": 3}
    world.edit(accelerators=[{"class": "a", "replicas": 7}, {"class": "b"}], replicas=6)
    assert world.replicas() == {"resnet-a": 5, "resnet-b": 3}


# event: Classes | `serving.autoscaling` is set | each class keeps its pods and gets a
#   HorizontalPodAutoscaler; its count is no longer applied | `kubectl get hpa`
def test_there_is_no_autoscaler_before_the_count_is_handed_over() -> None:
    world = serving(replicas=5)
    world.spec["serving"] = AUTOSCALED
    seen = []
    while world.pass_once():
        seen.append((owners(world), bool(autoscalers(world))))
    handed_over = {HANDOVER_MANAGER}
    assert seen == [({FIELD_MANAGER, *handed_over}, False), (handed_over, True)]
    assert world.replicas() == {NAME: 5}


@pytest.mark.parametrize("writes", range(6))
@pytest.mark.parametrize("on", [True, False])
def test_a_write_that_fails_resets_no_count(writes: int, *, on: bool) -> None:
    world = serving(replicas=5) if on else serve_autoscaled(replicas=5).autoscale(cpu=7)
    world.kube.refused_after = writes
    world.edit(serving=AUTOSCALED if on else None).operator_restarts()
    assert world.replicas() == {NAME: 5}
    assert bool(autoscalers(world)) == on


def test_autoscaled_count_stays_and_is_waited_for() -> None:
    world = serve_autoscaled().autoscale(cpu=7)
    assert world.replicas() == {NAME: 7}
    assert owners(world) == {ANOTHER_CLIENT}
    assert world.conditions()["Reconciling"] == ("True", "Progressing")
    assert world.partly_available(NAME, 2).status["summary"]["classes"] == "cpu 2/7"
    assert world.all_available().conditions()["Ready"] == ("True", "Serving")
    assert world.status["summary"]["classes"] == "cpu 7/7"
    assert world.status["replicas"] == 7
    assert world.autoscale(cpu=2).all_available().replicas() == {NAME: 2}


def test_scaling_makes_no_revision_and_another_revision_keeps_the_live_count() -> None:
    world = serve_autoscaled().autoscale(cpu=7).all_available()
    before = world.status["revision"]
    assert world.edit(replicas=4).replicas() == {NAME: 7}
    assert world.edit(serving={"autoscaling": {"maxReplicas": 9}}).status["revision"] == before
    world.edit(podTemplate={"labels": {"team": "a"}})
    assert world.status["revision"] != before
    assert world.replicas() == {NAME: 7}
    assert world.rolling(7).autoscale(cpu=8).all_available().replicas() == {NAME: 8}
    assert world.status["serving"]["revision"] == world.status["revision"]


def test_autoscaling_that_is_set_does_not_end_a_rollout_that_an_obstacle_stops() -> None:
    world = serving().edit(podTemplate={"labels": {"team": "a"}})
    applied = world.status["applied"]["revision"]
    world.classes = []
    world.edit(serving=AUTOSCALED)
    assert world.status["applied"]["revision"] == applied


# event: Classes | `serving.autoscaling` is removed | the HorizontalPodAutoscaler is deleted, then
#   `replicas` applies | `kubectl get im`
def test_removed_the_count_is_the_specs_once_the_autoscaler_is_gone() -> None:
    world = serve_autoscaled(replicas=5).autoscale(cpu=7).all_available()
    world.spec["serving"] = {}
    assert world.pass_once()
    assert (world.replicas(), autoscalers(world)) == ({NAME: 7}, {})
    assert world.settle().replicas() == {NAME: 5}
    assert FIELD_MANAGER in owners(world)


def test_a_count_is_handed_over_again_after_it_was_taken_back() -> None:
    world = serve_autoscaled(replicas=5).edit(serving=None).edit(replicas=3)
    assert owners(world) == {FIELD_MANAGER}
    assert world.edit(serving=AUTOSCALED).replicas() == {NAME: 3}
    assert owners(world) == {HANDOVER_MANAGER}


def test_a_count_that_somebody_sets_between_observing_and_handing_over_stays() -> None:
    world = serving(replicas=5)
    world.spec["serving"] = AUTOSCALED
    assert world.pass_once()
    world.set_scale(NAME, 6)
    assert world.settle().replicas() == {NAME: 6}
    assert owners(world) == {ANOTHER_CLIENT}


def test_zero_suspends_and_the_count_at_first_is_where_it_goes_on() -> None:
    world = serve_autoscaled(replicas=3).autoscale(cpu=7).all_available().edit(replicas=0)
    assert (world.replicas(), autoscalers(world)) == ({NAME: 0}, {})
    assert world.all_available().condition("Ready")["reason"] == "ScaledToZero"
    assert world.edit(replicas=3).all_available().replicas() == {NAME: 3}
    assert owners(world) == {HANDOVER_MANAGER}
    assert list(autoscalers(world)) == [NAME]


def test_a_class_of_zero_has_no_autoscaler_and_keeps_no_pods() -> None:
    world = World(
        "a",
        "b",
        accelerators=[{"class": "a", "replicas": 0}, {"class": "b"}],
        replicas=4,
        serving=AUTOSCALED,
    )
    world.settle().job_succeeds().all_available().autoscale(b=2).all_available()
    assert world.replicas() == {"resnet-a": 0, "resnet-b": 2}
    assert list(autoscalers(world)) == ["resnet-b"]
    world.edit(accelerators=[{"class": "a", "replicas": 3}, {"class": "b"}]).all_available()
    assert world.replicas() == {"resnet-a": 3, "resnet-b": 2}
    world.edit(accelerators=[{"class": "a", "replicas": 0}, {"class": "b"}])
    assert world.replicas() == {"resnet-a": 0, "resnet-b": 2}, "b covers what it is to have"


def test_a_deployment_that_somebody_scales_to_zero_comes_back() -> None:
    world = serve_autoscaled().autoscale(cpu=7).all_available()
    world.set_scale(NAME, 0)
    assert world.settle().all_available().replicas() == {NAME: 7}
    assert owners(world) == {HANDOVER_MANAGER}


def test_a_deployment_that_is_deleted_comes_back_with_its_count() -> None:
    world = serve_autoscaled().autoscale(cpu=7).all_available()
    world.remove("Deployment", NAME)
    assert world.settle().replicas() == {NAME: 7}
    assert list(autoscalers(world)) == [NAME]


def test_pods_that_yield_to_a_build_have_no_autoscaler_until_they_are_back() -> None:
    world = World(rollout={"strategy": "Recreate"}, serving=AUTOSCALED).has_gpus(aheadOfTime=False)
    world.nodes.append(gpu_node("gpu-1"))
    world.settle().job_succeeds().engine_built().all_available().autoscale(l4=3).all_available()
    world.edit(source=OTHER).job_succeeds(SECOND).misses().unschedulable(NO_DEVICE, "engine")
    assert (world.replicas(), autoscalers(world)) == ({"resnet-l4": 0}, {})
    world.succeeds("engine", nodes_accelerated=415)
    assert world.replicas() == {"resnet-l4": 3}
    assert list(autoscalers(world)) == ["resnet-l4"]


def test_the_autoscaler_of_a_class_goes_with_it() -> None:
    world = World("a", "b", accelerators=[{"class": "a"}], replicas=3, serving=AUTOSCALED)
    world.settle().job_succeeds().all_available().autoscale(a=4).all_available()
    world.edit(accelerators=[{"class": "b"}])
    assert world.replicas()["resnet-a"] == 4, "it serves until the other class does"
    world.all_available()
    assert world.replicas() == {"resnet-b": 3}
    assert list(autoscalers(world)) == ["resnet-b"]


def test_an_autoscaler_that_is_deleted_comes_back_and_others_stay() -> None:
    world = serve_autoscaled().autoscale(cpu=7)
    world.remove("HorizontalPodAutoscaler", NAME)
    assert list(autoscalers(world.settle())) == [NAME]
    assert world.replicas() == {NAME: 7}


def updating(strategy: str, **spec: Any) -> World:
    """Return a model of which seven pods serve, and another revision."""
    rollout = {"strategy": strategy, "canary": {"replicas": 1, "steps": ["50%"]}}
    world = serving(rollout=rollout, replicas=5, **spec)
    if spec:
        world.autoscale(cpu=7).all_available()
    return world.edit(source=OTHER).job_succeeds(SECOND)


def test_a_canary_is_not_scaled_and_leaves_the_live_count() -> None:
    world = updating("Surge", serving=AUTOSCALED)
    (canary,) = world.canaries()
    assert world.replicas() == {NAME: 7, canary["metadata"]["name"]: 1}
    assert list(autoscalers(world)) == [NAME]
    world.autoscale(cpu=8).all_available().canary_available().later(minutes=1)
    assert world.canaries()[0]["spec"]["replicas"] == 8, "half of the requests, of what serves now"
    world.canary_available().later(minutes=1).all_available()
    assert world.replicas() == {NAME: 8}
    assert world.status["serving"]["revision"] == world.status["revision"]


def test_in_place_no_device_of_an_autoscaled_class_is_lent_to_a_canary() -> None:
    world = updating("InPlace", serving=AUTOSCALED)
    assert world.replicas() == {NAME: 7}
    assert world.all_available().status["serving"]["revision"] == world.status["revision"]


def test_autoscaling_that_is_set_during_a_canary_in_place_keeps_the_live_count() -> None:
    world = updating("InPlace")
    (canary,) = world.canaries()
    assert world.replicas() == {NAME: 4, canary["metadata"]["name"]: 1}
    assert world.edit(serving=AUTOSCALED).replicas()[NAME] == 4
    assert world.all_available().autoscale(cpu=6).all_available().replicas() == {NAME: 6}
