"""A backend that nodes could not serve is tried again beside what serves, which nothing touches."""

import copy
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from enginewright.contract.reasons import Reason
from enginewright.manifests.labels import CLASS, MODEL, REFRESH
from enginewright.manifests.names import deployment_name, trial_name
from enginewright.plan.trials import delay

from tests.support.plan_objects import OTHER, RTX_IMAGE, SECOND, gpu_node, published
from tests.support.plan_world import World, serving
from tests.unit.test_plan_serving import crash, on_big, on_gpu, templates

Json = dict[str, Any]


def falls_back(replicas: int = 2) -> World:
    """Return a model whose first backend failed on its gpu_node, and that serves with its second."""
    world = crash(on_gpu(), 0, "node-1", 2).edit(replicas=replicas)
    return world.job_succeeds(SECOND).all_available().jobs_are_cleaned_away()


def untouched(world: World) -> tuple[Any, ...]:
    """Return all that a trial must not change."""
    (serving,) = world.serving_deployments()
    status = {
        name: world.status.get(name) for name in ("prepared", "serving", "applied", "engines")
    }
    services = [
        world.all(kind) for kind in ("Service", "PodDisruptionBudget", "ControllerRevision")
    ]
    return copy.deepcopy((serving, status, services, world.conditions()["Ready"]))


def rejected(world: World) -> Json:
    (found,) = world.status["rejectedBackends"]
    return dict(found)


def trial_pod_fails(world: World) -> World:
    (trial,) = world.trials()
    return crash(world, 0, "node-1", 2, trial["metadata"]["name"])


def trial_succeeds(world: World) -> World:
    (trial,) = world.trials()
    world.complete(trial["metadata"]["name"])
    return world.settle()


def test_it_is_tried_after_a_while_ever_more_rarely_and_what_serves_is_not_touched() -> None:
    world = falls_back()
    before = untouched(world)
    for failures, hours in enumerate((1, 2, 4, 8, 16, 24, 24), 1):
        assert rejected(world)["failures"] == failures
        world.later(hours=hours, minutes=-2)
        assert not world.trials()
        world.later(minutes=3)
        (trial,) = world.trials()
        assert trial["spec"]["replicas"] == 1
        assert untouched(world) == before
        trial_pod_fails(world)
        assert not world.trials()
        assert untouched(world) == before
    said = [each.message for each in world.events if each.reason == "TryingBackend"]
    assert len(said) == 2 * 7, "the beginning and the end of each"


def test_its_pods_are_nobodys_but_its_own() -> None:
    world = falls_back().later(hours=1)
    (trial,), (serving,) = world.trials(), world.serving_deployments()
    labels = trial["spec"]["template"]["metadata"]["labels"]
    assert trial["spec"]["selector"]["matchLabels"].items() <= labels.items()
    selectors = [
        world.the("Service")["spec"]["selector"],
        *(each["spec"]["selector"]["matchLabels"] for each in world.all("PodDisruptionBudget")),
        serving["spec"]["selector"]["matchLabels"],
    ]
    assert not any(each.items() <= labels.items() for each in selectors)
    scale = dict(each.split("=") for each in world.status["selector"].split(","))
    assert not scale.items() <= labels.items()
    assert labels[MODEL]
    assert labels[CLASS]


# event: Rollouts | a backend fails on several nodes, with `Allow`
def test_once_its_pod_is_available_the_backend_is_rolled_out_and_the_rejection_ends() -> None:
    world = falls_back().later(hours=1)
    trial_succeeds(world)
    assert not world.trials()
    assert "inputsHash" not in rejected(world), "a candidate again"
    assert world.status["serving"]["backend"] == "cuda", "which serves till then"
    assert not [job for job in world.all("Job") if "prepare" in job["metadata"]["name"]]
    world.all_available()
    assert world.status["serving"]["backend"] == "tensorrt-rtx"
    assert "rejectedBackends" not in world.status


def test_failures_after_a_trial_that_succeeded_are_counted_on() -> None:
    world = falls_back().later(hours=1)
    trial_succeeds(world)
    crash(world, 0, "node-1", 2)
    found = rejected(world)
    assert (found["failures"], found["reason"]) == (2, "DriverMissing")
    assert found["inputsHash"]
    world.all_available()
    assert world.status["serving"]["backend"] == "cuda"
    assert not world.all("Job"), "both are prepared, and need their source no more"
    world.later(hours=1, minutes=30)
    assert not world.trials()
    world.later(hours=1)
    assert world.trials()


def test_one_that_never_starts_ends_with_its_time() -> None:
    world = falls_back().later(hours=1)
    assert world.last is not None
    assert world.last.requeue_after == pytest.approx(600)
    world.later(seconds=599)
    assert world.trials()
    world.later(seconds=2)
    assert not world.trials()
    assert rejected(world)["failures"] == 2


@pytest.mark.parametrize(
    ("stops", "goes_on"),
    [
        (lambda world: world.edit(replicas=0), lambda world: world.edit(replicas=1)),
        (
            lambda world: world.edit(rollout={"paused": True}),
            lambda world: world.edit(rollout=None),
        ),
    ],
    ids=["no replicas", "paused"],
)
def test_nothing_is_tried_while_it_would_prove_nothing(
    stops: Callable[[World], World], goes_on: Callable[[World], World]
) -> None:
    world = falls_back()
    stops(world).all_available().later(days=3)
    assert not world.trials()
    assert not world.pass_once()
    goes_on(world).all_available()
    assert world.trials(), "it was due all the while"
    stops(world)
    assert not world.trials()
    goes_on(world).all_available()
    assert not world.trials(), "it is not begun again at once"
    assert rejected(world)["failures"] == 1, "one that was stopped proves nothing"


def test_nothing_is_tried_while_pods_are_being_replaced() -> None:
    world = falls_back().edit(replicas=3)
    world.later(hours=9)
    assert not world.trials()
    world.all_available()
    assert world.trials()
    world.edit(replicas=4)
    assert world.trials(), "an autoscaler ends none"


def test_a_change_of_what_is_asked_for_ends_it() -> None:
    world = falls_back().later(hours=1)
    world.edit(backends=["cuda"])
    assert not world.trials()
    assert not world.later(days=9).trials()


def test_a_node_that_joins_is_tried_soon() -> None:
    world = falls_back().later(minutes=5)
    new = gpu_node("node-9")
    new["metadata"]["creationTimestamp"] = world.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    other = copy.deepcopy(new)
    other["metadata"] |= {"name": "node-8", "labels": {"kubernetes.io/os": "linux"}}
    world.nodes = [*world.nodes, other]
    assert not world.settle().trials(), "of another class"
    world.nodes = [*world.nodes, new]
    assert not world.settle().trials(), "others may join"
    assert world.last is not None
    assert world.last.requeue_after == pytest.approx(300)
    assert world.later(minutes=5).trials()
    trial_pod_fails(world)
    assert not world.later(minutes=20).trials(), "it has been tried"


def test_what_no_node_is_at_fault_for_waits_for_other_inputs() -> None:
    world = on_gpu().new_pod_fails(Reason.ENGINE_VERSION_MISMATCH)
    world.job_succeeds(SECOND).all_available()
    assert rejected(world)["reason"] == "EngineVersionMismatch"
    assert "retryAt" not in rejected(world)
    world.later(days=30)
    assert not world.trials()


def test_a_status_that_cannot_be_written_begins_none() -> None:
    world = falls_back()
    before = copy.deepcopy(world.status)
    world.now += timedelta(hours=1)
    for _ in range(3):
        world.pass_once()
        world.status = copy.deepcopy(before)
    assert not world.trials()


def test_the_revision_to_try_is_kept_however_many_come_after_it() -> None:
    world = falls_back()
    revision = rejected(world)["revision"]
    for number in range(9):
        world.edit(podTemplate={"labels": {"number": str(number)}}).all_available()
    kept = {
        each["metadata"]["labels"]["enginewright.dev/revision"]
        for each in world.all("ControllerRevision")
    }
    assert revision in kept


def test_its_name_is_no_serving_deployments() -> None:
    for model, name in (("a", "b-trial"), ("a-b", "trial"), ("a", "b"), ("x" * 60, "c" * 60)):
        for other, another in (("a", "b"), ("a-b", "trial"), ("x" * 60, "c" * 60)):
            assert trial_name(model, name, "r1") != deployment_name(other, another)
        assert len(trial_name(model, name, "r1")) <= 46
    assert trial_name("a", "b", "r1") != trial_name("a", "b", "r2")


def test_a_revision_that_had_no_pods_has_not_served() -> None:
    world = on_gpu().edit(replicas=0).all_available()
    assert world.conditions()["Ready"] == ("True", "ScaledToZero")
    assert "serving" not in world.status
    crash(world.edit(replicas=2), 0, "node-1", 2)
    assert rejected(world)["backend"] == "tensorrt-rtx"
    world.job_succeeds(SECOND).all_available()
    assert world.status["serving"]["backend"] == "cuda"


def test_delays() -> None:
    hours = [delay(each) / timedelta(hours=1) for each in (1, 2, 3, 4, 5, 6, 99)]
    assert hours == [1, 2, 4, 8, 16, 24, 24]


# what serves, and all others, come first


def test_a_trial_gives_its_device_to_a_serving_pod_that_finds_none() -> None:
    world = falls_back().later(hours=1)
    name = world.serving_deployments()[0]["metadata"]["name"]
    no_node = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}
    world.serving_pod(name, index=7, status={"phase": "Pending", "conditions": [no_node]})
    assert not world.settle().trials()


@pytest.mark.parametrize("of_jobs", [None, "enginewright-jobs"])
def test_a_trial_preempts_nobody(of_jobs: str | None) -> None:
    """Builds neither: it has their class, without which it has that of the cluster."""
    world = on_gpu(podTemplate={"priorityClassName": "production"})
    jobs = world.config.jobs.model_copy(update={"priority_class_name": of_jobs})
    world.config = replace(world.config, jobs=jobs)
    crash(world, 0, "node-1", 2).job_succeeds(SECOND).all_available().later(hours=1)
    (trial,) = world.trials()
    assert trial["spec"]["template"]["spec"].get("priorityClassName") == of_jobs


def test_a_pod_template_that_may_mend_it_makes_it_a_candidate_again() -> None:
    world = falls_back().edit(podTemplate={"labels": {"team": "vision"}})
    assert rejected(world)["inputsHash"]
    world.edit(podTemplate={"runtimeClassName": "nvidia"})
    assert "inputsHash" not in rejected(world)


@pytest.mark.parametrize(
    "cut",
    [
        lambda world: world.image_failures.update({world.config.images["gpu"]: "no registry"}),
        lambda world: world.classes.clear(),
    ],
    ids=["obstacle", "class"],
)
def test_a_trial_that_was_cut_short_is_no_failure(cut: Callable[[World], None]) -> None:
    world = falls_back().later(hours=1)
    cut(world)
    assert not world.settle().trials()
    assert rejected(world)["failures"] == 1


def test_a_clock_that_went_back_ends_a_trial_and_delays_none_by_more_than_its_wait() -> None:
    assert not falls_back().later(hours=1).later(days=-1).trials()
    assert falls_back().later(days=-30).trials()


# whatever the status says


def test_a_trial_whose_time_is_not_known_ends() -> None:
    world = falls_back()
    del world.status["rejectedBackends"][0]["retryAt"]
    world.status["rejectedBackends"][0]["triedSince"] = "2026-11-21T12:00:00Z"
    assert not world.later(hours=1).trials()
    assert world.last is not None
    assert world.last.requeue_after is None


def test_any_time_can_be_read() -> None:
    world = falls_back()
    world.status["rejectedBackends"][0]["retryAt"] = "0001-01-01T00:00:00Z"
    assert world.settle().trials()


def test_a_revision_that_is_gone_is_not_tried_and_one_of_an_earlier_version_is() -> None:
    world = falls_back()
    world.status["rejectedBackends"][0]["revision"] = "nosuch"
    assert "retryAt" not in rejected(world.settle())
    world = falls_back()
    for each in world.all("ControllerRevision"):
        del each["data"]["templates"]
    assert world.later(hours=1).trials()


# at 0 replicas


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


def test_a_class_of_no_pods_is_not_tried() -> None:
    classes = [{"class": "l4"}, {"class": "spot", "replicas": 0}]
    world = World(
        fallback={"policy": "Allow"}, backends=["tensorrt-rtx", "cuda"], accelerators=classes
    ).has_gpus()
    (gpus,) = world.classes
    spot = gpus.metadata.model_copy(update={"name": "spot"})
    world.classes.append(gpus.model_copy(update={"metadata": spot}))
    world.settle().job_succeeds().engine_built()
    crash(world, 0, "node-1", 2, "resnet-l4")
    world.job_succeeds(SECOND).all_available().later(hours=1)
    (trial,) = world.trials()
    assert trial["metadata"]["labels"][CLASS] == "l4"
    assert "inputsHash" not in rejected(trial_succeeds(world))


def test_a_rejection_keeps_what_was_prepared_last() -> None:
    world = trial_succeeds(falls_back().later(hours=1))
    world.edit(source=OTHER).job_succeeds(published("c" * 64, "f" * 64)).engine_built()
    crash(world, 0, "node-1", 2)
    assert rejected(world)["prepared"]["key"] == "c" * 64
    world.job_succeeds(published("d" * 64, "f" * 64)).all_available().jobs_are_cleaned_away()
    trial_succeeds(world.later(hours=3))
    assert not world.all("Job"), "both are prepared"


def test_another_image_of_the_rejected_backend_costs_no_prepared_model() -> None:
    world = falls_back()
    known = world.images[RTX_IMAGE].model_copy(update={"pipeline": "as before"})
    for image in (RTX_IMAGE, "registry.example/rtx:2"):  # the first one says now what made it
        world.images[image] = known
    world.settle().job_succeeds().engine_built()
    crash(world, 0, "node-1", 2)
    world.all_available().jobs_are_cleaned_away()
    cuda = world.status["serving"]["revision"]
    world.config = replace(
        world.config, images={**world.config.images, "rtx": "registry.example/rtx:2"}
    )
    world.settle()
    assert "inputsHash" not in rejected(world), "a candidate again"
    assert world.status["serving"]["revision"] == cuda, "which serves till then"
    crash(world, 0, "node-1", 2)
    assert rejected(world)["failures"] == 1, "of this image"
    assert not world.all("Job"), "both are prepared, by the same code"
    assert world.all_available().status["serving"]["revision"] == cuda


def test_what_serves_stays_known_while_a_rejected_backend_is_prepared_again() -> None:
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


def test_what_is_gone_back_to_stays_known_while_pods_of_its_successor_serve() -> None:
    world = falls_back().all_available().jobs_are_cleaned_away()
    cuda = world.status["serving"]["revision"]
    trial_succeeds(world.later(hours=2)).settle().partly_available("resnet-l4", 1)
    assert world.status["serving"]["lastRolledOut"] == cuda
    assert world.status["serving"]["prepared"]["key"] == SECOND.key
    crash(world, 0, "node-1", 2)
    assert not world.running_jobs(), "the artefact is in the store"
    assert world.all_available().status["serving"]["revision"] == cuda


def test_a_source_that_is_gone_takes_nothing_away_after_a_trial() -> None:
    world = falls_back().all_available().jobs_are_cleaned_away()
    refreshed = published("d" * 64, "f" * 64)
    world.annotate(REFRESH, "1").job_succeeds(refreshed).all_available().jobs_are_cleaned_away()
    trial_succeeds(world.later(hours=2)).settle()
    world.job_fails(Reason.SOURCE_CHANGED, "fetch").later(hours=100)
    assert world.conditions()["Ready"] == ("True", "Serving")
    assert world.status["prepared"]["key"] == "d" * 64
    assert rejected(world)["reason"] == Reason.SOURCE_CHANGED
