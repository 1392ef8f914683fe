"""Engines: looked for before a device is asked for, built once, failures remembered, waits reported."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import pytest
from enginewright.plan.engines.engine import Ended, plan_engine
from enginewright.plan.quantities import format_duration, format_size
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Progress
from enginewright_contract.task import ENGINE_STAGES, TASK_VARIABLE, EngineTask

from tests.support.plan_objects import RESOURCE, publish_engine
from tests.support.plan_world import World
from tests.support.simulation import NO_DEVICE, PASSING, PERMANENT

NO_NODE: Final = "3 node(s) didn't match Pod's node affinity/selector"


def on_device() -> World:
    """Return a world in which the Job that builds has just been made."""
    return World.of_engine().settle().misses()


def ahead() -> World:
    return World.of_engine(ahead_of_time=True).settle()


def look_up() -> World:
    return World.of_engine().settle()


# looking first


def test_a_build_that_takes_a_device_is_preceded_by_a_look_into_the_store() -> None:
    world = look_up()
    assert world.stages() == ("lookup",)
    assert world.conditions() == {
        "Ready": ("False", "LookingUp"),
        "Reconciling": ("True", "LookingUp"),
        "Stalled": ("False", "LookingUp"),
    }
    assert world.status["summary"] == {"capability": "8.9"}
    world.misses()
    assert world.stages() == ENGINE_STAGES
    assert world.conditions()["Ready"] == ("False", "Queued")
    assert len(world.made) == 2


def test_a_hit_takes_no_device() -> None:
    world = look_up().succeeds(cached=True)
    assert world.conditions()["Ready"] == ("True", "Built")
    assert "found in the store: 3.5 MB for compute capability 8.9" in world.message()
    assert len(world.made) == 1
    assert world.counted == [Ended("", cached=True, build_seconds=0.512)]


@pytest.mark.parametrize("build", [{}, {"resourceName": RESOURCE}])
def test_a_build_without_a_device_looks_by_itself(build: dict[str, Any]) -> None:
    world = World.of_engine(ahead_of_time=True, **build).settle()
    assert world.stages() == ENGINE_STAGES
    world.succeeds(cached=True)
    assert "found in the store" in world.message()


def test_lost_reports_are_looked_up_again() -> None:
    world = look_up().job_ends("Complete")
    assert world.stages() == ("lookup",)
    assert world.job()["metadata"]["name"].endswith("-2")
    world.misses().job_ends("Complete")
    assert world.stages() == ("lookup",), "no device is taken for an engine that may be stored"
    world.misses().remove("Job", world.job()["metadata"]["name"])
    assert world.settle().stages() == ENGINE_STAGES, "its build stage looks first, too"
    world.succeeds(cached=True)
    assert world.conditions()["Ready"] == ("True", "Built")


def test_only_the_look_that_was_made_counts_for_the_stages_after_it() -> None:
    world = on_device().job_fails(Reason.DRIVER_MISSING, "verify").later(minutes=1)
    assert world.stages() == ENGINE_STAGES, "no second lookup"
    assert len(world.made) == 3


# what is made


def test_the_task_says_all_that_decides_the_engine() -> None:
    world = on_device()
    job = world.job()
    texts = {
        item["env"][0]["value"]
        for item in job["spec"]["template"]["spec"]["initContainers"]
        if item["env"][0]["name"] == TASK_VARIABLE
    }
    (text,) = texts
    task = EngineTask.model_validate_json(text)
    assert task.job == job["metadata"]["name"]
    assert task.engine_key == world.spec["key"]
    assert task.prepared_key == world.spec["preparedKey"]
    assert task.recipe.backend == "tensorrt"
    assert task.recipe.accelerator_class == "l4"
    assert task.recipe.compute_capability == "8.9"


def test_a_key_that_is_not_of_this_recipe_is_not_built() -> None:
    world = World.of_engine()
    world.spec["key"] = "b" * 64
    world.settle()
    assert world.conditions()["Stalled"] == ("True", "InvalidSpec")
    assert "spec.key does not match" in world.message()
    assert world.made == []


# progress


@pytest.mark.parametrize(("number", "stage"), [*enumerate(ENGINE_STAGES, 1)])
def test_the_running_stage_is_reported(number: int, stage: str) -> None:
    world = on_device().stage_runs(stage)
    assert world.status["stage"] == stage
    assert world.conditions()["Ready"] == ("False", "Building")
    assert world.message() == f"{stage} ({number}/4)"


def test_build_progress_is_reported_in_tens() -> None:
    world = on_device().stage_runs("build")
    job = world.job()["metadata"]["name"]
    before = world.kube.writes
    for percent in range(101):
        world.progress[job] = Progress(stage="build", percent=percent, phase="tactics")
        world.settle()
        assert world.status["percent"] == percent // 10 * 10
    assert world.kube.writes - before <= 11
    assert world.message() == "build (1/4), 100%"
    world.stage_runs("verify")
    assert "percent" not in world.status
    assert world.message() == "verify (2/4)"


def test_missing_progress_after_a_restart_changes_nothing() -> None:
    world = on_device().stage_runs("build")
    world.progress[world.job()["metadata"]["name"]] = Progress(stage="build", percent=47)
    world.settle()
    before = world.kube.writes
    world.progress.clear()
    world.settle()
    assert world.kube.writes == before
    assert world.message() == "build (1/4), 40%"


# waiting for a device


def test_a_device_that_is_not_free_is_reported_and_waited_for() -> None:
    world = on_device().unschedulable(NO_DEVICE)
    assert world.conditions()["Ready"] == ("False", "CapacityBlocked")
    assert world.conditions()["Reconciling"] == ("True", "CapacityBlocked")
    assert world.conditions()["Stalled"] == ("False", "CapacityBlocked")
    assert world.message() == (
        "no nvidia.com/gpu is free: Insufficient nvidia.com/gpu, node(s) didn't match Pod's node"
        f" affinity/selector; {Reason.CAPACITY_BLOCKED.remedy}"
    )
    assert world.events[-1].type == "Warning"
    made = list(world.made)
    world.later(days=3)
    assert world.conditions()["Ready"] == ("False", "CapacityBlocked")
    world.stage_runs("build")
    assert world.conditions()["Ready"] == ("False", "Building")
    world.succeeds()
    assert world.conditions()["Ready"] == ("True", "Built")
    assert world.made == made


def test_the_schedulers_attempts_at_preemption_are_no_news() -> None:
    world = on_device().unschedulable(NO_DEVICE)
    before = world.kube.writes
    world.unschedulable(f"{NO_DEVICE} preemption: 0/2 nodes are available: 2 No victims found.")
    assert world.kube.writes == before


@pytest.mark.parametrize(
    ("start", "wording", "reason", "expected"),
    [
        (
            ahead,
            "2 Insufficient memory",
            "Queued",
            "waiting for a node: the pod is unschedulable: I",
        ),
        (
            on_device,
            "2 Insufficient memory",
            "Queued",
            "waiting for a node: the pod is unschedulable: I",
        ),
        (on_device, NO_NODE, "CapacityBlocked", "no node of class l4 exists: node(s) didn't match"),
        (look_up, "1 Too many pods", "LookingUp", "Too many pods"),
    ],
)
def test_scheduler_message_is_reported(
    start: Callable[[], World], wording: str, reason: str, expected: str
) -> None:
    world = start().unschedulable(f"0/3 nodes are available: {wording}.")
    assert world.conditions()["Ready"] == ("False", reason)
    assert expected in world.message()


def test_an_image_that_cannot_be_pulled_is_reported() -> None:
    world = on_device()
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
    world.job_pod_becomes(
        initContainerStatuses=[{"name": "build", "image": "i:1", "state": waiting}]
    )
    assert "cannot pull the image i:1" in world.message()


# the engine


def test_engine_is_reported_in_the_apis_units() -> None:
    world = on_device().succeeds()
    assert world.status["engine"] == {
        "sha256": "e" * 64,
        "sizeBytes": 3_450_000,
        "buildMilliseconds": 512,
        "computeCapabilities": ["8.9"],
        "nodesTotal": 415,
        "nodesAccelerated": 412,
        "computeBillionthsElsewhere": 2_100_000,
        "elsewhere": ["volume (Det)"],
        "p99Microseconds": 1234,
    }
    assert world.status["summary"] == {
        "capability": "8.9",
        "size": "3.5MB",
        "build": "0.5s",
        "nodes": "412/415",
    }
    assert world.conditions() == {
        "Ready": ("True", "Built"),
        "Reconciling": ("False", "Built"),
        "Stalled": ("False", "Built"),
    }
    assert world.message() == (
        "built: 3.5 MB for compute capability 8.9, 412 of 415 nodes, built in 0.5s"
    )
    assert [event.reason for event in world.events] == ["Queued", "Built"]
    assert world.counted == [Ended("", cached=False, build_seconds=0.512)]


@pytest.mark.parametrize(
    ("share", "kept"), [(None, None), (0.0, 0), (0.02, 20_000_000), (0.1 + 0.2, 300_000_000)]
)
def test_shares_are_kept_in_billionths(share: float | None, kept: int | None) -> None:
    world = on_device().succeeds(compute_share_elsewhere=share)
    assert world.status["engine"].get("computeBillionthsElsewhere") == kept


def test_an_engine_that_is_there_is_never_built_again() -> None:
    world = on_device().succeeds()
    made, writes = list(world.made), world.kube.writes
    world.jobs_are_cleaned_away().later(days=400)
    assert (world.made, world.kube.writes) == (made, writes)
    world.build_changes(image="registry.example/gpu:2")
    assert world.made == made
    assert world.status["observedGeneration"] == 2
    assert world.conditions()["Ready"] == ("True", "Built")


def test_an_engine_of_another_key_is_not_believed() -> None:
    world = on_device().job_publishes(publish_engine("f" * 64))
    assert world.conditions()["Ready"] == ("False", "InternalError")
    assert "engine" not in world.status


# failures


@pytest.mark.parametrize("reason", PERMANENT)
def test_permanent_failure_is_remembered_without_its_job(reason: Reason) -> None:
    world = on_device().job_fails(reason, message="the thing, the cause")
    assert world.conditions()["Stalled"] == ("True", reason)
    assert world.conditions()["Reconciling"] == ("False", reason)
    assert world.last
    assert world.last.requeue_after is None
    assert world.status["failedBuilds"] == [world.status["buildHash"]]
    made, writes = list(world.made), world.kube.writes
    world.later(days=2).jobs_are_cleaned_away().later(days=2)
    assert (world.made, world.kube.writes) == (made, writes)
    assert world.message() == "the thing, the cause"
    assert world.counted == [Ended(reason)]


@pytest.mark.parametrize("reason", PASSING)
def test_passing_failure_is_retried_with_growing_waits(reason: Reason) -> None:
    world = on_device()
    waits = []
    for attempt in range(1, 10):
        assert world.job()["metadata"]["name"].endswith(f"-{attempt}")
        world.job_fails(reason)
        assert world.conditions()["Reconciling"] == ("True", reason)
        assert world.message().count("retrying") == 1
        assert world.last
        assert world.last.requeue_after
        waits.append(timedelta(seconds=world.last.requeue_after))
        made = len(world.made)
        world.now += waits[-1] - timedelta(seconds=1)
        world.settle()
        assert len(world.made) == made, "not before its time"
        world.later(seconds=1)
        assert len(world.made) == made + 1
        assert len(world.all("Job")) == 1, "those of earlier attempts go"
    assert [int(wait.total_seconds() // 60) for wait in waits] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert [ended.reason for ended in world.counted] == [reason] * 9


@pytest.mark.parametrize(
    "fail",
    [
        lambda world: world.job_fails(Reason.STORE_UNAVAILABLE, "lookup", "no space"),
        lambda world: world.is_too_late("lookup"),
    ],
    ids=["the store fails", "too late"],
)
def test_failed_lookup_is_repeated(fail: Callable[[World], World]) -> None:
    world = fail(look_up())
    assert world.conditions()["Ready"] == ("False", "StoreUnavailable")
    assert world.conditions()["Reconciling"][0] == "True"
    world.later(minutes=1)
    assert world.stages() == ("lookup",)
    assert world.message().endswith("; retrying: looking for the engine in the store")
    assert world.misses().stages() == ENGINE_STAGES


def test_a_retry_that_succeeds_forgets_the_failure() -> None:
    world = on_device().job_fails(Reason.BUILD_OUT_OF_MEMORY).later(minutes=1)
    assert world.message() == "build!; retrying: waiting for a node"
    world.succeeds()
    assert "failure" not in world.status
    assert "failedBuilds" not in world.status


def test_a_failed_pod_is_reported_while_its_job_retries() -> None:
    world = on_device().pod_fails(Reason.DRIVER_MISSING, "verify", "no libcuda.so.1")
    assert world.conditions()["Ready"] == ("False", "DriverMissing")
    assert world.conditions()["Reconciling"] == ("True", "DriverMissing")
    assert "failure" not in world.status
    world.stage_runs("build")
    assert world.message() == "no libcuda.so.1; retrying: build (1/4)"
    world.succeeds()
    assert world.conditions()["Ready"] == ("True", "Built")
    assert world.counted == [Ended("", cached=False, build_seconds=0.512)]


def test_bad_exit_code_is_remembered_before_its_job_ends() -> None:
    world = on_device().pod_fails(Reason.BUILD_FAILED, message="no Det")
    assert world.conditions()["Stalled"] == ("True", "BuildFailed")
    assert len(world.all("Job")) == 2, "the Job stays, for its log"
    writes = world.kube.writes
    world.job_ends("Failed", world.made[-1])
    assert world.kube.writes == writes
    assert [event.reason for event in world.events][-1] == "BuildFailed"


def test_another_build_is_tried_and_none_twice() -> None:
    world = on_device().job_fails(Reason.BUILD_FAILED, message="no Det")
    first = world.spec["build"]
    world.build_changes(image="registry.example/gpu:2")
    assert world.stages() == ("lookup",)
    assert world.status["failedBuilds"]
    assert "failure" not in world.status
    world.misses().job_fails(Reason.PRECISION_UNSUPPORTED, message="no FP8")
    assert len(world.status["failedBuilds"]) == 2
    made = list(world.made)
    world.build_changes(**first)
    assert world.made == made
    assert world.conditions()["Stalled"] == ("True", "PrecisionUnsupported")
    assert "failed before" in world.message()
    assert "no FP8" in world.message()
    assert len(world.counted) == 2
    writes = world.kube.writes
    world.later(days=1)
    assert (world.made, world.kube.writes) == (made, writes)


def test_many_failed_builds_are_remembered_as_far_as_there_is_room() -> None:
    world = on_device()
    for number in range(20):
        world.job_fails(Reason.BUILD_FAILED)
        world.build_changes(image=f"registry.example/gpu:{number + 2}").misses()
    assert len(world.status["failedBuilds"]) == 16


def test_a_changed_build_ends_the_one_that_runs() -> None:
    world = on_device().stage_runs("build")
    old = world.job()["metadata"]["name"]
    world.build_changes(timeoutSeconds=7200)
    assert not world.find("Job", old)
    assert world.stages() == ("lookup",)


def test_the_engine_may_be_made_again_by_its_model() -> None:
    """As after `kubectl delete ieng`: a new object, and what it is named after is in the store."""
    world = on_device().job_fails(Reason.BUILD_FAILED)
    again = look_up()
    assert again.made[0] == world.made[0], "its name is the same, its owner is not"
    again.succeeds(cached=True)
    assert again.conditions()["Ready"] == ("True", "Built")


# time


def test_a_build_that_takes_too_long_is_ended_and_not_repeated() -> None:
    world = on_device().is_too_late()
    assert world.conditions()["Stalled"] == ("True", "Timeout")
    assert world.message() == f"build timed out after 3600 s; {Reason.TIMEOUT.remedy}"
    assert not world.find("Job", world.made[-1]), "it would start again"
    made = list(world.made)
    world.later(days=1)
    assert world.made == made
    world.build_changes(timeoutSeconds=7200)
    assert len(world.made) == len(made) + 1


def test_a_pod_that_no_kubelet_would_run_says_why() -> None:
    world = on_device()
    world.job_pod(phase="Failed", reason="UnexpectedAdmissionError", message="Allocate failed")
    world.job_ends("Failed")
    assert world.conditions()["Ready"] == ("False", "PodNotStarted")
    assert "the Job failed before a stage began: Allocate failed" in world.message()


# a pass may be cut off anywhere


def test_a_job_made_just_before_the_operator_ended_is_found() -> None:
    world = look_up()
    before = dict(world.status)
    world.misses()
    made = list(world.made)
    world.status = before  # the Job was made, its status was not written
    world.settle()
    assert world.made == made
    assert world.conditions()["Ready"] == ("False", "Queued")
    world.status = before
    world.jobs_are_cleaned_away()  # and the look is gone, too
    assert world.made == made
    assert world.stages() == ENGINE_STAGES


def test_an_engine_that_is_being_deleted_is_left_alone() -> None:
    world = look_up()
    world.subject["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    plan = plan_engine(world.build_facts(world.subject))
    assert (plan.apply, plan.delete, plan.events) == ((), (), ())


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (9949, "9.9 kB"),
        (9950, "10 kB"),
        (3_450_000, "3.5 MB"),
        (999_499_999, "999 MB"),
        (999_500_000, "1.0 GB"),
        (81_000_000_000, "81 GB"),
        (2_000_000_000_000, "2000 GB"),
    ],
)
def test_sizes_are_readable(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0s"), (0.512, "0.5s"), (9.96, "10s"), (61, "1m1s"), (200, "3m20s"), (3900, "1h5m")],
)
def test_times_are_readable(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
