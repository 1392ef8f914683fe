"""A rejected backend is retried as a rollout when nodes join or its user asks, and never by the clock."""

import copy
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from enginewright.manifests.labels import COMPONENT, REFRESH, RETRY, REVISION, TRIAL
from enginewright_contract.reasons import Reason

from tests.support.plan_objects import OTHER, RTX_IMAGE, SECOND, gpu_node, publish_model
from tests.support.plan_world import World, serving
from tests.support.simulation import NO_DEVICE, unschedulable
from tests.unit.test_plan_serving import crash, on_big, on_gpu, templates

Json = dict[str, Any]


def falls_back(replicas: int = 2) -> World:
    """Return a model whose first backend failed on its node, and that serves with its second."""
    world = crash(on_gpu(), 0, "node-1", 2).edit(replicas=replicas)
    return world.job_succeeds(SECOND).all_available().jobs_are_cleaned_away()


def find_rejected(world: World) -> Json:
    (rejection,) = world.status["rejectedBackends"]
    return dict(rejection)


def is_tried(world: World) -> bool:
    """Return whether the rejected backend is a candidate again, beside another one that serves."""
    return "inputsHash" not in find_rejected(world)


def joining(world: World, name: str = "node-9", after: timedelta = timedelta()) -> Json:
    """Return a node of the class that joins now, or some time `after`."""
    node = gpu_node(name)
    node["metadata"]["creationTimestamp"] = (world.now + after).strftime("%Y-%m-%dT%H:%M:%SZ")
    return node


def node_joins(world: World) -> World:
    world.later(minutes=5)
    world.nodes = [*world.nodes, joining(world)]
    return world.settle()


# event: Rollouts | a backend fails on several nodes, with `Allow`
def test_once_a_node_joins_the_backend_is_rolled_out_and_the_rejection_ends() -> None:
    world = falls_back()
    world.later(minutes=1)
    node_joins(world)
    assert is_tried(world)
    assert world.status["serving"]["backend"] == "cuda", "which serves till then"
    assert not world.all("Job"), "it is prepared and built"
    (deployment,) = world.serving_deployments()
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    world.all_available()
    assert world.status["serving"]["backend"] == "tensorrt-rtx"
    assert "rejectedBackends" not in world.status


def test_its_revision_is_kept_however_many_others_are_rolled_out() -> None:
    world = falls_back()
    revision = find_rejected(world)["revision"]
    for number in range(7):
        world.edit(podTemplate={"labels": {"edit": str(number)}}).all_available()
    kept = {entry["metadata"]["labels"][REVISION] for entry in world.all("ControllerRevision")}
    assert revision in kept


def test_a_backend_that_fails_again_is_rejected_until_another_node_joins() -> None:
    world = node_joins(falls_back())
    crash(world, 0, "node-9", 2)
    rejection = find_rejected(world)
    assert rejection["inputsHash"]
    assert rejection["reason"] == "DriverMissing"
    world.all_available()
    assert world.status["serving"]["backend"] == "cuda"
    assert not world.all("Job"), "both are prepared, and need no source"
    assert not is_tried(world.later(days=30))
    world.nodes.append(joining(world, "node-10"))
    assert is_tried(world.settle())


def test_no_time_that_passes_tries_it_again() -> None:
    world = falls_back()
    before = copy.deepcopy((world.serving_deployments(), world.status["serving"]))
    for _ in range(5):
        world.later(days=9)
    assert (world.serving_deployments(), world.status["serving"]) == before
    assert not is_tried(world)
    assert world.last is not None
    assert world.last.requeue_after is None


def test_a_node_that_leaves_or_is_of_another_class_tries_nothing() -> None:
    world = falls_back().later(minutes=5)
    other = joining(world)
    other["metadata"]["labels"] = {"kubernetes.io/os": "linux"}
    world.nodes = [*world.nodes, other]
    assert not is_tried(world.settle())
    world.nodes = world.nodes[:1]
    assert not is_tried(world.settle())


# fault: Devices | a node joins, and gets the labels of its devices only after a backend was rejected | more nodes of the
#   class than when it was rejected: it is tried again | at once
def test_node_that_gets_its_labels_late_is_tried_once() -> None:
    world = on_gpu()
    late = joining(world)
    labels, late["metadata"]["labels"] = late["metadata"]["labels"], {}
    world.nodes = [*world.nodes, late]
    crash(world.later(minutes=5), 0, "node-1", 2).job_succeeds(SECOND).all_available()
    assert not is_tried(world)
    late["metadata"]["labels"] = labels
    assert is_tried(world.settle())
    crash(world, 0, "node-9", 2).all_available()
    assert not is_tried(world)
    late["metadata"]["labels"] = {}
    assert not is_tried(world.settle())


# event: Rollouts | a node joins that may run a rejected backend, while `rollout.paused` is true | what serves, Ready | it
#   is tried once the model is resumed
def test_node_that_joins_a_paused_model_leaves_it_ready_and_is_tried_once_it_is_resumed() -> None:
    world = falls_back()
    node_joins(world.edit(rollout={"paused": True}))
    assert not is_tried(world)
    assert world.conditions()["Ready"] == ("True", "Serving")
    assert is_tried(world.edit(rollout={"paused": False}))


def test_node_with_a_clock_ahead_is_tried_once() -> None:
    world = falls_back()
    world.nodes = [*world.nodes, joining(world, after=timedelta(hours=1))]
    assert is_tried(world.settle())
    crash(world, 0, "node-9", 2).all_available()
    assert not is_tried(world)
    assert not is_tried(world.later(hours=3))


@pytest.mark.parametrize("why", ["Recreate", "InPlace", "nothing serves"])
def test_node_stops_or_delays_no_pods(why: str) -> None:
    """But for Surge, pods would go first; without pods, others would have to wait for an attempt."""
    world = falls_back()
    if why == "nothing serves":
        world.edit(replicas=0).all_available()
    else:
        world.edit(rollout={"strategy": why}).all_available()
    if is_tried(world):  # another spec is another chance
        crash(world, 0, "node-1", 2)
        world.all_available()
    before = world.status["revision"]
    assert not is_tried(node_joins(world))
    assert world.status["revision"] == before


def test_backend_is_tried_once_scaled_up() -> None:
    world = node_joins(falls_back().edit(replicas=0).all_available())
    assert not is_tried(world.edit(replicas=2))
    assert is_tried(world.all_available().settle())
    assert world.status["serving"]["backend"] == "cuda"


# event: Rollouts | a user asks for a rejected backend by another value of the annotation `enginewright.dev/retry` | the
#   next backend, until pods of the first one are ready | `status.rejectedBackends` without `inputsHash`
@pytest.mark.parametrize("value", ["1", "x" * 300])
def test_it_is_tried_again_each_time_that_its_user_asks(value: str) -> None:
    world = falls_back().annotate(RETRY, value)
    assert is_tried(world)
    assert world.status["serving"]["backend"] == "cuda"
    crash(world, 0, "node-1", 2).all_available()
    assert not is_tried(world)
    assert world.status["serving"]["backend"] == "cuda"
    assert not is_tried(world.annotate(RETRY, None))
    assert not is_tried(world.annotate(RETRY, value)), "that value was acted on"
    assert is_tried(world.annotate(RETRY, "2"))
    world.all_available()
    assert world.status["serving"]["backend"] == "tensorrt-rtx"
    assert "rejectedBackends" not in world.status


def test_failure_of_no_node_waits_for_other_inputs_or_its_user() -> None:
    world = on_gpu().new_pod_fails(Reason.ENGINE_VERSION_MISMATCH)
    world.job_succeeds(SECOND).all_available()
    assert find_rejected(world)["reason"] == "EngineVersionMismatch"
    assert not is_tried(node_joins(world))
    assert is_tried(world.annotate(RETRY, "now"))


@pytest.mark.parametrize(
    ("reason", "differs"),
    [
        (Reason.PROVIDER_MISSING, True),
        (Reason.ENGINE_INCOMPATIBLE, True),
        (Reason.PARITY_FAILED, False),
    ],
)
def test_failure_of_a_node_is_retried_when_one_joins(reason: Reason, *, differs: bool) -> None:
    world = on_gpu()
    for index, node in enumerate(("node-1", "node-2")):
        world.crash(
            world.serving_deployments()[0]["metadata"]["name"],
            reason,
            index=index,
            restarts=2,
            node=node,
        )
    world.settle().job_succeeds(SECOND).all_available()
    assert find_rejected(world)["reason"] == reason
    assert is_tried(node_joins(world)) is differs


@pytest.mark.parametrize("passes", [True, False])
def test_it_is_tried_as_a_canary_where_the_spec_says_so(passes: bool) -> None:
    world = falls_back()
    world.edit(rollout={"canary": {"replicas": 1}}).all_available()
    assert not is_tried(world)
    node_joins(world)
    (canary,) = world.canaries()
    (stable,) = copy.deepcopy(world.serving_deployments())
    if passes:
        world.canary_available().later(hours=1).all_available()
        assert world.status["serving"]["backend"] == "tensorrt-rtx"
        return
    world.crash(canary["metadata"]["name"], Reason.DRIVER_MISSING, index=0, restarts=2)
    world.settle()
    assert find_rejected(world)["inputsHash"]
    assert not world.canaries()
    assert world.serving_deployments() == [stable]
    assert world.status["serving"]["backend"] == "cuda"
    assert world.annotate(RETRY, "now").canaries(), (
        "also the revision that was rejected as a canary"
    )
    assert world.status["serving"]["backend"] == "cuda"


def finds_no_node(world: World, *, stuck: bool) -> World:
    """Have no node take the new pods, for longer than they may take to start if `stuck`."""
    for entry in (*world.canaries(), *world.serving_deployments()):
        if entry["metadata"]["labels"]["enginewright.dev/revision"] == world.status["revision"]:
            name = entry["metadata"]["name"]
            pod = world.serving_pod(
                name, index=7, status={"conditions": [unschedulable(NO_DEVICE)]}
            )
            pod["spec"], pod["status"]["phase"] = {}, "Pending"
            seen = {"observedGeneration": entry["metadata"]["generation"], "replicas": 3}
            seen |= {"availableReplicas": 0 if entry in world.canaries() else 2}
            world.set_status(entry, seen)
    return world.later(minutes=11) if stuck else world.settle()


@pytest.mark.parametrize("rollout", [None, {"canary": {"replicas": 1}}], ids=["rolling", "canary"])
@pytest.mark.parametrize("asked", [False, True], ids=["node", "user"])
def test_an_attempt_that_finds_no_spare_device_ends(rollout: Json | None, asked: bool) -> None:
    world = falls_back().edit(rollout=rollout).all_available()
    world = world.annotate(RETRY, "1") if asked else node_joins(world)
    finds_no_node(world, stuck=False)
    assert is_tried(world)
    finds_no_node(world, stuck=True)
    assert not is_tried(world)
    assert find_rejected(world)["reason"] == "DriverMissing", "as before"
    assert world.status["serving"]["backend"] == "cuda"
    world.all_available()
    assert world.conditions()["Ready"][0] == "True"
    assert not is_tried(world.later(days=3))


def test_a_change_by_its_user_waits_for_a_device() -> None:
    world = falls_back().edit(podTemplate={"runtimeClassName": "nvidia"})
    assert is_tried(world)
    finds_no_node(world, stuck=True)
    assert is_tried(world)


# of earlier releases, which tried rejected backends by the clock in pods of their own


def put_left_trial(world: World) -> Json:
    (serves,) = copy.deepcopy(world.serving_deployments())
    serves["metadata"]["name"] += "---0123456789"
    for labels in (serves["metadata"]["labels"], serves["spec"]["template"]["metadata"]["labels"]):
        labels[COMPONENT] = TRIAL
    serves["spec"]["selector"]["matchLabels"][COMPONENT] = TRIAL
    serves["spec"]["replicas"] = 1
    world.kube.put(serves)
    return serves


@pytest.mark.parametrize("obstacle", [False, True])
def test_pods_that_tried_a_backend_in_an_earlier_release_are_deleted(obstacle: bool) -> None:
    world = falls_back()
    before = copy.deepcopy((world.serving_deployments(), world.status["serving"]))
    world.status["rejectedBackends"][0]["triedSince"] = "2026-03-01T12:00:00Z"
    put_left_trial(world)
    if obstacle:
        world.classes.clear()
    world.settle()
    assert world.trials() == []
    assert (world.serving_deployments(), world.status["serving"]) == before


def test_a_rejection_of_an_earlier_release_holds_until_something_changes() -> None:
    world = falls_back()
    earlier = world.status["rejectedBackends"][0]
    del earlier["rejectedAt"]
    earlier |= {"failures": 3, "retryAt": "2026-01-01T00:00:00Z"}
    world.nodes = [*world.nodes, joining(world, after=timedelta(days=-1))]
    serves = copy.deepcopy(world.serving_deployments())
    world.annotate(RETRY, "of another time")
    assert not is_tried(world.later(days=2))
    assert world.serving_deployments() == serves
    assert not {"failures", "retryAt"} & find_rejected(world).keys()
    assert is_tried(node_joins(world))


def test_a_revision_that_had_no_pods_has_not_served() -> None:
    world = on_gpu().edit(replicas=0).all_available()
    assert world.conditions()["Ready"] == ("True", "ScaledToZero")
    assert "serving" not in world.status
    crash(world.edit(replicas=2), 0, "node-1", 2)
    assert find_rejected(world)["backend"] == "tensorrt-rtx"
    world.job_succeeds(SECOND).all_available()
    assert world.status["serving"]["backend"] == "cuda"


def test_a_pod_template_that_may_mend_it_makes_it_a_candidate_again() -> None:
    world = falls_back().edit(podTemplate={"labels": {"team": "vision"}})
    assert find_rejected(world)["inputsHash"]
    world.edit(podTemplate={"runtimeClassName": "nvidia"})
    assert "inputsHash" not in find_rejected(world)


def test_a_model_that_moved_at_zero_is_scaled_up_while_another_update_is_prepared() -> None:
    world = on_big(accelerators=[{"class": "big"}], replicas=2)
    world.edit(replicas=0).all_available()
    world.edit(accelerators=[{"class": "small"}]).all_available()
    world.edit(source=OTHER)
    assert world.edit(replicas=2).replicas() == {"resnet-small": 2}


def test_pausing_at_zero_changes_nothing() -> None:
    world = serving().edit(replicas=0).all_available()
    world.edit(podTemplate={"labels": {"a": "b"}}).all_available()
    before = copy.deepcopy(templates(world))
    assert templates(world.edit(rollout={"paused": True})) == before


def test_rejection_keeps_the_last_prepared_model() -> None:
    world = node_joins(falls_back())
    world.edit(source=OTHER).job_succeeds(publish_model("c" * 64, "f" * 64)).engine_built()
    crash(world, 0, "node-1", 2)
    assert find_rejected(world)["prepared"]["key"] == "c" * 64
    world.job_succeeds(publish_model("d" * 64, "f" * 64)).all_available().jobs_are_cleaned_away()
    world.annotate(RETRY, "again")
    assert not world.all("Job"), "both are prepared"


def test_another_image_of_the_rejected_backend_costs_no_prepared_model() -> None:
    world = falls_back()
    same_pipeline = world.images[RTX_IMAGE].model_copy(update={"pipeline": "as before"})
    for image in (RTX_IMAGE, "registry.example/rtx:2"):  # the first one says now what made it
        world.images[image] = same_pipeline
    world.settle().job_succeeds().engine_built()
    crash(world, 0, "node-1", 2)
    world.all_available().jobs_are_cleaned_away()
    cuda = world.status["serving"]["revision"]
    world.config = replace(
        world.config, images={**world.config.images, "rtx": "registry.example/rtx:2"}
    )
    world.settle()
    assert "inputsHash" not in find_rejected(world), "a candidate again"
    assert world.status["serving"]["revision"] == cuda, "which serves till then"
    crash(world, 0, "node-1", 2)
    assert not world.all("Job"), "both are prepared, by the same code"
    assert world.all_available().status["serving"]["revision"] == cuda


def test_serving_model_stays_known_while_preparing_again() -> None:
    world = falls_back().all_available().jobs_are_cleaned_away()
    cuda = world.status["serving"]["revision"]
    world.new_runtime_image("registry.example/rtx:2", "rtx", like=world.images[RTX_IMAGE])
    assert world.running_jobs(), "other artefacts"
    assert world.status["serving"]["prepared"]["key"] == SECOND.key
    world.job_fails(Reason.UNSUPPORTED_OPERATOR)
    assert not world.running_jobs(), "of the backend that serves: its artefact is in the store"
    assert world.conditions()["Ready"] == ("True", "Serving")
    assert world.status["serving"]["revision"] == cuda
    assert "prepared" not in world.status["serving"]


def test_previous_revision_stays_known_while_successor_serves() -> None:
    world = falls_back().all_available().jobs_are_cleaned_away()
    cuda = world.status["serving"]["revision"]
    node_joins(world).partly_available("resnet-l4", 1)
    assert world.status["serving"]["lastRolledOut"] == cuda
    assert world.status["serving"]["prepared"]["key"] == SECOND.key
    crash(world, 0, "node-1", 2)
    assert not world.running_jobs(), "the artefact is in the store"
    assert world.all_available().status["serving"]["revision"] == cuda


@pytest.mark.parametrize("reason", [Reason.SOURCE_CHANGED, Reason.DIGEST_MISMATCH])
def test_a_source_that_is_gone_takes_nothing_away(reason: Reason) -> None:
    world = falls_back().all_available().jobs_are_cleaned_away()
    refreshed = publish_model("d" * 64, "f" * 64)
    world.annotate(REFRESH, "1").job_succeeds(refreshed).all_available().jobs_are_cleaned_away()
    node_joins(world)
    world.job_fails(reason, "fetch").later(hours=100)
    assert world.conditions()["Ready"] == ("True", "Serving")
    assert world.status["prepared"]["key"] == "d" * 64
    assert find_rejected(world)["reason"] == reason
