"""Preparing: which Job is made when, what came of it, and that nothing becomes a storm."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

import pytest
from enginewright.manifests.store_access import StoreBucket
from enginewright_contract.reasons import Reason, exit_code
from enginewright_contract.report import Finding, StageReport, remedy
from enginewright_contract.task import PREPARE_STAGES, PrepareTask

from tests.support.fake_kube import timestamp
from tests.support.plan_objects import (
    CPU_IMAGE,
    NAMESPACE,
    OTHER,
    Json,
    image_facts,
    make_object,
    publish_model,
)
from tests.support.plan_world import World, serving
from tests.support.simulation import (
    LACKING_ROOM,
    PASSING,
    PERMANENT,
    RARELY_PASSING,
    report_end,
    statuses,
)


def jobs(world: World) -> list[str]:
    return [job["metadata"]["name"] for job in world.all("Job")]


def finds_it(world: World) -> World:
    """Have stage `fetch` of the running Job find the artefact in the store."""
    stored = publish_model().model_copy(update={"cached": True})
    report = StageReport(stage="fetch", ok=True, published=stored).termination_message()
    fetch_status = report_end("fetch", message=report)
    fetch_status["state"]["terminated"]["finishedAt"] = timestamp(world.now)
    status = statuses(PREPARE_STAGES, "validate")
    status["initContainerStatuses"][0] = fetch_status
    return world.job_pod_becomes(phase="Pending", **status)


# progress


def test_the_claim_comes_before_the_job() -> None:
    world = World()
    world.pass_once()
    assert world.last
    kinds = [entry["kind"] for entry in world.last.apply]
    assert kinds == ["PersistentVolumeClaim", "Job"]


@pytest.mark.parametrize(("number", "stage"), [*enumerate(PREPARE_STAGES, 1)])
def test_the_running_stage_is_reported(number: int, stage: str) -> None:
    world = World().settle().stage_runs(stage)
    assert world.status["preparation"]["stage"] == stage
    assert world.message() == f"preparing the model: {stage} ({number}/6)"


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"initContainerStatuses": [{"name": "fetch", "image": CPU_IMAGE, "state": state}]}


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (waiting("ImagePullBackOff"), f"cannot pull the image {CPU_IMAGE}"),
        (waiting("ErrImagePull"), f"cannot pull the image {CPU_IMAGE}"),
        (waiting("CreateContainerConfigError", 'secret "s" not found'), 'secret "s" not found'),
    ],
)
def test_a_pod_that_cannot_start_says_why(status: dict[str, Any], text: str) -> None:
    world = World().settle()
    world.job_pod_becomes(**status)
    assert text in world.message()
    assert world.conditions()["Reconciling"] == ("True", "Preparing")


def test_result_is_remembered_without_its_job() -> None:
    world = World().settle().job_succeeds()
    prepared = world.status["prepared"]
    assert prepared["key"] == "a" * 64
    assert (prepared["opset"], prepared["irVersion"], prepared["nodes"]) == (17, 8, 105)
    assert "preparation" not in world.status
    world.jobs_are_cleaned_away()
    assert world.status["prepared"] == prepared
    assert jobs(world) == []


def test_a_pod_that_succeeded_is_enough_and_its_job_is_kept() -> None:
    world = World().settle()
    report = StageReport(stage="publish", ok=True, published=publish_model())
    done = [report_end(stage) for stage in PREPARE_STAGES[:-1]]
    last = [report_end("publish", message=report.termination_message())]
    world.job_pod_becomes(phase="Succeeded", initContainerStatuses=done, containerStatuses=last)
    assert world.conditions()["Validated"] == ("True", "Prepared")
    assert len(jobs(world)) == 1, "the Job controller is about to count it"


def test_stored_artefact_rolls_out_once_fetch_has_ended() -> None:
    world = finds_it(World().settle())
    stored = publish_model()
    assert world.status["prepared"]["key"] == stored.key
    assert world.conditions()["Validated"] == ("True", "Prepared")
    assert world.the("Deployment")
    assert "preparation" not in world.status
    assert jobs(world) == [], "the stages that follow have nothing to do"
    world.later(minutes=1)
    assert world.status["prepared"]["key"] == stored.key
    assert len(world.made) == 1


def test_job_that_finds_a_lost_artefact_is_kept_until_no_pod_reports_the_loss() -> None:
    world = lose_artifact()
    finds_it(world)
    assert len(world.running_jobs()) == 1, "it says that the loss is older"
    assert len(world.made) == 2
    world.all_available()
    assert world.running_jobs() == []
    assert len(world.made) == 2


def test_job_has_the_pipeline_of_its_image() -> None:
    world = World()
    world.images[CPU_IMAGE] = image_facts("cpu").model_copy(update={"pipeline": "5" * 64})
    task = PrepareTask.model_validate_json(world.settle().task())
    assert task.pipeline == "5" * 64


# failures


@pytest.mark.parametrize("reason", PERMANENT)
def test_permanent_failure_is_not_retried(reason: Reason) -> None:
    world = World().settle().job_fails(reason, message="the thing, the cause")
    assert world.conditions()["Stalled"] == ("True", reason)
    assert world.last
    assert world.last.requeue_after is None
    before = jobs(world)
    world.later(days=2)
    assert jobs(world) == before
    world.jobs_are_cleaned_away().later(days=2)
    assert jobs(world) == []
    assert world.conditions()["Stalled"] == ("True", reason)
    assert world.message() == "the thing, the cause"


@pytest.mark.parametrize("reason", PASSING)
def test_passing_failure_is_retried_with_growing_waits(reason: Reason) -> None:
    world = World().settle()
    waits = []
    for attempt in range(1, 10):
        assert world.job()["metadata"]["name"].endswith(f"-{attempt}")
        world.job_fails(reason, "fetch")
        assert world.conditions()["Reconciling"] == ("True", reason)
        assert world.last
        assert world.last.requeue_after
        waits.append(timedelta(seconds=world.last.requeue_after))
        world.now += waits[-1] - timedelta(seconds=1)
        world.settle()
        assert all(job.get("status") for job in world.all("Job")), "not before its time"
        world.later(seconds=1)
        assert len(jobs(world)) == 1, "the Job of the earlier attempt goes"
    assert [int(wait.total_seconds() // 60) for wait in waits] == [1, 2, 4, 8, 16, 32, 60, 60, 60]


# fault: Store | the store's volume is full | the failed stage | Jobs at most an hour apart, or as soon as the claim or the
#   store's settings change; `Stalled` from the fifth on, with the time of the next one
@pytest.mark.parametrize("reason", LACKING_ROOM)
def test_lack_of_room_is_tried_again_hourly_and_says_when(reason: Reason) -> None:
    world = World().settle()
    for _ in range(4):
        world.job_fails(reason, "publish")
        assert world.conditions()["Reconciling"] == ("True", reason)
        world.later(hours=1)
    for _ in range(4):
        world.job_fails(reason, "publish")
        assert world.conditions()["Stalled"] == ("True", reason)
        due = f"{world.now + timedelta(hours=1):%Y-%m-%d %H:%M} UTC"
        assert (due in world.message()) == (len(world.made) > 6), "after doubling"
        assert "refresh" not in world.message()
        assert not world.running_jobs()
        world.later(hours=1)
        assert len(world.running_jobs()) == 1
    world.job_succeeds()
    assert world.conditions()["Validated"][0] == "True"


@pytest.mark.parametrize("stalled", [False, True])
def test_a_claim_that_has_grown_is_tried_at_once(stalled: bool) -> None:
    world = World().settle().claim_has("20Gi")
    for _ in range(6 if stalled else 0):
        world.job_fails(Reason.STORAGE_FULL, "publish").later(hours=1)
    world.job_fails(Reason.STORAGE_FULL, "publish").later(seconds=1)
    assert not world.running_jobs()
    world.claim_has("40Gi")
    assert len(world.running_jobs()) == 1
    world.job_fails(Reason.STORAGE_FULL, "publish").later(seconds=1)
    assert not world.running_jobs()


def test_an_engine_is_tried_at_once_too_when_the_claim_has_grown() -> None:
    world = World.of_engine(ahead_of_time=True).settle()
    for _ in range(6):
        world.job_fails(Reason.STORAGE_FULL, "publish-engine").later(hours=1)
    world.job_fails(Reason.STORAGE_FULL, "publish-engine").later(seconds=1)
    assert world.conditions()["Stalled"] == ("True", Reason.STORAGE_FULL)
    assert "the next attempt is at" in world.message()
    assert not world.running_jobs()
    world.kube.put(make_object("PersistentVolumeClaim", world.config.store.claim, NAMESPACE))
    world.claim_has("40Gi")
    assert len(world.running_jobs()) == 1
    world.succeeds()
    assert world.conditions()["Ready"][0] == "True"


def test_another_store_is_tried_at_once() -> None:
    world = World().settle().job_fails(Reason.STORE_UNAVAILABLE, "publish")
    assert not world.running_jobs()
    store = replace(world.config.store, bucket=StoreBucket(uri="s3://models/a"))
    world.config = replace(world.config, store=store)
    world.settle()
    assert len(world.running_jobs()) == 1


def test_a_pod_that_its_node_rejects_is_not_given_up() -> None:
    world = World().settle()
    for _ in range(7):
        message = "Pod was rejected: Allocate failed due to no healthy devices present"
        world.job_pod_becomes(phase="Failed", reason="UnexpectedAdmissionError", message=message)
        world.job_ends("Failed", reason="BackoffLimitExceeded")
        assert world.conditions()["Reconciling"] == ("True", Reason.POD_NOT_STARTED)
        assert "no healthy devices" in world.message()
        world.later(hours=1)
    assert len(world.running_jobs()) == 1


@pytest.mark.parametrize("reason", RARELY_PASSING)
def test_rarely_passing_failure_is_given_up(reason: Reason) -> None:
    world = World().settle()
    for _ in range(4):
        world.job_fails(reason, "convert")
        assert world.conditions()["Reconciling"] == ("True", reason)
        world.later(hours=1)
    world.job_fails(reason, "convert")
    assert world.conditions()["Stalled"] == ("True", reason)
    assert world.message() == "convert!; given up after 5 attempts"
    world.later(days=2)
    assert all(job.get("status") for job in world.all("Job"))
    world.edit(build={"resources": {"limits": {"memory": "8Gi"}}})
    assert world.job()["metadata"]["name"].endswith("-1"), "the remedy is tried at once"


# event: Jobs | a Job waits for a node, a device or an image | the previous revision | what is
#   missing; never `Timeout`
def test_waiting_for_a_node_is_no_timeout() -> None:
    world = World().settle().unschedulable("0/2 nodes are available: 2 Insufficient cpu.")
    world.later(days=3)
    assert world.conditions()["Reconciling"] == ("True", "CapacityBlocked")
    assert "the pod is unschedulable: Insufficient cpu" in world.message()


# event: Jobs | a Job waits for a node, a device or an image
def test_an_image_that_cannot_be_pulled_until_the_deadline_is_no_timeout() -> None:
    world = World().settle()
    world.job_pod(**waiting("ImagePullBackOff"))
    world.later(minutes=59)
    assert world.conditions()["Ready"] == ("False", "Preparing")
    pod = world.job_pod(**waiting("ImagePullBackOff"))
    pod["status"] |= {"phase": "Failed", "reason": "DeadlineExceeded"}
    world.settle()
    assert world.conditions()["Reconciling"] == ("True", "PodNotStarted")
    assert f"cannot pull the image {CPU_IMAGE}" in world.message()
    assert jobs(world) == [], "the Job controller would make another pod at once"
    world.later(minutes=1)
    assert world.job()["metadata"]["name"].endswith("-2")


def test_a_result_counts_though_an_earlier_pod_ran_out_of_time() -> None:
    """The Job controller makes another pod while the operator is down."""
    world = World().settle().stage_runs("golden")
    world.the("Pod")["status"] |= {"phase": "Failed", "reason": "DeadlineExceeded"}
    report = StageReport(stage="publish", ok=True, published=publish_model())
    done = [report_end(stage) for stage in PREPARE_STAGES[:-1]]
    last = [report_end("publish", message=report.termination_message())]
    world.job_pod(phase="Succeeded", initContainerStatuses=done, containerStatuses=last)
    world.job_ends("Complete")
    assert world.conditions()["Validated"] == ("True", "Prepared")


# event: Jobs | a Job's node dies | the previous revision; a new Job after five minutes | the
#   stage that runs
def test_a_pod_on_a_node_that_died_is_replaced_elsewhere() -> None:
    world = World().settle().stage_runs("convert")
    pod = world.the("Pod")
    pod["spec"] = {"nodeName": "node-1"}
    pod["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    world.settle()
    assert world.last
    assert world.last.requeue_after == 300
    world.later(minutes=4)
    assert world.job()["metadata"]["name"].endswith("-1")
    world.later(minutes=2)
    assert world.job()["metadata"]["name"].endswith("-2")
    assert len(jobs(world)) == 1


def test_a_failed_pod_is_reported_while_its_job_retries() -> None:
    world = World().settle().pod_fails(Reason.STORE_UNAVAILABLE, "golden", "the disk is full")
    assert world.conditions()["Validated"] == ("False", "StoreUnavailable")
    assert world.conditions()["Reconciling"] == ("True", "StoreUnavailable")
    world.stage_runs("fetch")
    assert world.message() == "the disk is full; retrying: fetch (1/6)"
    world.job_succeeds()
    assert world.conditions()["Validated"] == ("True", "Prepared")
    assert "preparation" not in world.status


def test_permanent_pod_failure_promises_no_retry() -> None:
    world = World().settle().pod_fails(Reason.INVALID_MODEL, "validate", "not a model")
    assert world.conditions()["Stalled"] == ("True", "InvalidModel")
    assert world.message() == "not a model"
    assert world.event_reasons() == ["Preparing", "InvalidModel"]
    world.job_ends("Failed", reason="PodFailurePolicy")
    assert world.event_reasons() == ["Preparing", "InvalidModel"]


@pytest.mark.parametrize(
    ("code", "kubernetes", "reason", "text"),
    [
        (137, "OOMKilled", Reason.OUT_OF_MEMORY, "exceeded its memory limit"),
        (139, "Error", Reason.BACKEND_CRASHED, "SIGSEGV"),
        (134, "Error", Reason.BACKEND_CRASHED, "SIGABRT"),
        (132, "Error", Reason.BACKEND_CRASHED, "SIGILL"),
        (137, "Error", Reason.INTERNAL_ERROR, "by SIGKILL (exit code 137)"),
        (70, "Error", Reason.INTERNAL_ERROR, "exit code 70"),
        (128, "StartError", Reason.INTERNAL_ERROR, "exit code 128"),
    ],
)
def test_stage_without_a_report_is_explained(
    code: int, kubernetes: str, reason: Reason, text: str
) -> None:
    world = World().settle()
    died = report_end("golden", code=code, reason=kubernetes)
    world.job_pod(phase="Failed", initContainerStatuses=[report_end("fetch"), died])
    world.job_ends("Failed", reason="BackoffLimitExceeded")
    failure = world.status["preparation"]["failure"]
    assert (failure["stage"], failure["reason"]) == ("golden", reason)
    assert text in failure["message"]
    assert failure["remedy"] == remedy(reason, "golden")


def test_a_pod_that_takes_too_long_names_the_stage_and_the_field() -> None:
    world = World().settle().stage_runs("golden")
    world.the("Pod")["status"] |= {"phase": "Failed", "reason": "DeadlineExceeded"}
    world.settle()
    assert world.conditions()["Stalled"] == ("True", "Timeout")
    assert world.status["preparation"]["failure"]["stage"] == "golden"
    assert "spec.build.timeout" in world.message()
    assert jobs(world) == [], "the Job controller would make another pod"
    world.edit(build={"timeout": "2h"})
    pod = world.job()["spec"]["template"]["spec"]
    assert pod["activeDeadlineSeconds"] == 7200, "the remedy takes effect at once"


@pytest.mark.parametrize(("pod", "stage"), [(False, "fetch"), (True, "golden")])
def test_job_that_takes_too_long_names_its_stage(pod: bool, stage: str) -> None:
    world = World().settle()
    if pod:  # of a Job of an earlier version, which has the deadline itself
        world.stage_runs("golden")
        world.the("Pod")["metadata"]["deletionTimestamp"] = "2026-11-21T13:00:00Z"
    world.job_ends("Failed", reason="DeadlineExceeded")
    assert world.conditions()["Stalled"] == ("True", "Timeout")
    assert world.status["preparation"]["failure"]["stage"] == stage


# what is seen late, or never


def test_a_job_seen_to_end_before_its_pod_is_not_judged_yet() -> None:
    for kind in ("Complete", "Failed"):
        world = World().settle().stage_runs("publish")
        world.job_ends(kind)
        assert world.conditions()["Reconciling"] == ("True", "Preparing")
        assert len(jobs(world)) == 1
        assert "failure" not in world.status["preparation"]


def test_job_without_a_pod_or_that_is_deleted_is_made_again() -> None:
    world = World().settle()
    name = world.job()["metadata"]["name"]
    world.remove("Job", name)
    assert world.settle().job()["metadata"]["name"] == name
    world.job_ends("Complete")
    assert world.job()["metadata"]["name"].endswith("-2")
    world.job_ends("Failed", reason="BackoffLimitExceeded")
    assert world.conditions()["Validated"] == ("False", "PodNotStarted")
    world.later(hours=1).job_succeeds()
    assert world.conditions()["Validated"] == ("True", "Prepared")


def test_unreadable_report_is_no_endless_loop() -> None:
    world = World().settle()
    for _ in range(3):
        world.job_pod(phase="Succeeded", containerStatuses=[report_end("publish", message="?")])
        world.job_ends("Complete")
        assert world.conditions()["Reconciling"] == ("True", "InternalError")
        assert all(job.get("status") for job in world.all("Job")), "it waits"
        world.later(hours=1)


# changes


def refuses(world: World, *networks: str) -> World:
    world.config = replace(world.config, refused_networks=networks)
    return world.operator_restarts()


def test_a_refused_source_is_read_again_once_the_administrator_refuses_other_networks() -> None:
    world = refuses(World(), "10.0.0.0/8").job_fails(Reason.SOURCE_REFUSED, "fetch")
    refuses(world, "10.0.0.0/8")
    assert world.conditions()["Stalled"] == ("True", "SourceRefused")
    refuses(world)
    assert world.conditions()["Reconciling"] == ("True", "Preparing")
    assert "failure" not in world.status["preparation"]


def test_what_was_read_is_not_read_again_where_other_networks_are_refused() -> None:
    world = serving()
    before = (world.status, jobs(world))
    refuses(world, "10.0.0.0/8")
    assert (world.status, jobs(world)) == before


def test_a_corrected_spec_is_tried_at_once_and_the_running_job_goes() -> None:
    world = World().settle()
    first = world.job()["metadata"]["name"]
    world.edit(source=OTHER)
    assert first not in jobs(world)
    world.job_fails(Reason.DIGEST_MISMATCH, "fetch")
    world.edit(source={**OTHER, "sha256": "f" * 64})
    assert world.conditions()["Reconciling"] == ("True", "Preparing")
    assert "failure" not in world.status["preparation"]


@pytest.mark.parametrize(
    "spec",
    [
        {"source": {**OTHER, "secretRef": {"name": "token"}}},
        {"build": {"resources": {"limits": {"memory": "8Gi"}}}},
        {"podTemplate": {"imagePullSecrets": [{"name": "mine"}]}},
        {"shapes": [{"input": "x", "min": [1], "opt": [2], "max": [4]}]},
        {"parity": {"atol": "0.5"}},
    ],
)
def test_every_remedy_leads_to_a_new_job(spec: dict[str, Any]) -> None:
    world = World(source=OTHER).settle().job_fails(Reason.OUT_OF_MEMORY, "golden")
    world.edit(**spec)
    assert world.conditions()["Reconciling"] == ("True", "Preparing")
    world.job()


UNJUDGED: Final = "3 of 84 indices of axis 1 (4, 7, 9) of output 'dets' do not vary enough for INT8"


def refuse_precision() -> World:
    """Return a model that serves, and that is not brought to INT8 since its samples do not judge parts of an output."""
    world = World().settle().job_succeeds().all_available().jobs_are_cleaned_away()
    world.edit(precision="INT8", quantization={"perChannel": False})
    name = world.job()["metadata"]["name"]
    failure = Finding(reason=Reason.PARITY_UNKNOWN, cause=UNJUDGED)
    report = StageReport(stage="quantize", ok=False, failure=failure).termination_message()
    last = report_end("quantize", code=int(exit_code(failure.reason)), message=report)
    world.job_pod_becomes(phase="Failed", **statuses(PREPARE_STAGES, "quantize", last))
    return world.job_ends("Failed", name, reason="PodFailurePolicy")


# event: Sources | a precision is requested in which samples do not judge parts of an output | the serving revision |
#   Ready `ParityUnknown` with the parts, until samples show them or the spec accepts them
def test_precision_in_which_parts_are_not_judged_is_refused_once_and_the_old_one_serves() -> None:
    world = refuse_precision()
    revision = world.status["serving"]["revision"]
    assert world.conditions()["Ready"] == ("False", "ParityUnknown")
    assert world.conditions()["Stalled"] == ("True", "ParityUnknown")
    remedy = Reason.PARITY_UNKNOWN.remedy
    assert world.message() == f"{UNJUDGED}; {remedy}; revision {revision} keeps serving"
    assert world.conditions()["ParityVerified"] == ("True", "GoldenMatches"), "of what serves"
    world.later(days=2).operator_restarts()
    assert world.running_jobs() == []
    assert world.status["serving"]["revision"] == revision
    assert world.the("Deployment")["status"]["availableReplicas"] == 1


@pytest.mark.parametrize(
    "spec",
    [
        {"parity": {"samples": {"uri": "s3://models/samples.npz"}}},
        {"quantization": {"calibration": {"uri": "s3://models/calibration.npz"}}},
        {"parity": {"outputs": [{"name": "dets", "acceptUnjudged": True}]}},
        {"precision": "FP32"},
    ],
    ids=["samples", "calibration data", "accepted", "another precision"],
)
def test_precision_that_was_refused_is_tried_again_with_what_may_mend_it(spec: Json) -> None:
    world = refuse_precision().edit(**spec)
    assert world.conditions()["Ready"] == ("False", "Preparing")
    world.job_succeeds(publish_model("b" * 64)).all_available()
    assert world.conditions()["Ready"] == ("True", "Serving")


def test_without_the_precision_that_was_refused_what_was_prepared_serves_again() -> None:
    world = refuse_precision().edit(precision=None, quantization=None)
    assert world.running_jobs() == []
    assert world.conditions()["Ready"] == ("True", "Serving")


def test_another_onnx_runtime_prepares_again_while_the_old_revision_serves() -> None:
    world = World().settle().job_succeeds().all_available()
    before = world.the("Deployment")
    world.images = {CPU_IMAGE: image_facts("cpu", "1.32.0", 27)}
    world.settle()
    assert world.conditions()["Ready"] == ("False", "Preparing")
    assert world.conditions()["Available"] == ("True", "Serving")
    assert world.the("Deployment") == before


def test_another_image_prepares_again_since_the_one_that_serves_must_have_prepared() -> None:
    world = World().settle().job_succeeds().all_available()
    world.new_runtime_image()
    world.images["registry.example/cpu:2"] = image_facts("cpu")
    world.settle()
    (container,) = world.job()["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example/cpu:2"


def test_going_back_takes_the_report_of_the_job_that_is_still_there() -> None:
    world = World().settle().job_succeeds().edit(source=OTHER).job_succeeds(publish_model("b" * 64))
    world.edit(source={"uri": "https://models.example/resnet.onnx"})
    assert world.status["prepared"]["key"] == "a" * 64
    assert len(jobs(world)) == 2


def test_of_many_jobs_that_ended_the_last_two_are_kept() -> None:
    world = World().settle().job_succeeds()
    for index in range(5):
        world.later(minutes=1)
        world.edit(source={"uri": f"https://models.example/{index}.onnx"})
        world.job_succeeds(publish_model(f"{index}" * 64))
    assert jobs(world) == world.made[-2:]


# the artefact gets lost


def lose_artifact(
    reason: Reason = Reason.ARTIFACT_MISSING, container: str = "fetch-artifact", message: str = ""
) -> World:
    world = World().settle().job_succeeds().all_available()
    world.now += timedelta(hours=1)
    return world.new_pod_fails(reason, container, message)


@pytest.mark.parametrize("reason", [Reason.ARTIFACT_MISSING, Reason.ARTIFACT_CORRUPT])
def test_an_artefact_that_the_store_lost_is_prepared_again(reason: Reason) -> None:
    world = lose_artifact(reason, message="prepared model ab is not what it was")
    assert world.job()["metadata"]["name"].endswith("-2")
    messages = [event.message for event in world.events]
    assert any(
        "fetch (1/6), again: prepared model ab is not what it was" in message
        for message in messages
    )
    assert world.conditions()["Available"] == ("True", "Serving")
    world.now += timedelta(minutes=1)
    world.job_succeeds().all_available()
    assert world.conditions()["Ready"] == ("True", "Serving")
    assert all(job.get("status") for job in world.all("Job"))


def test_artefact_that_fetch_finds_again_is_not_lost() -> None:
    world = lose_artifact().later(minutes=1)
    finds_it(world)
    made = jobs(world)
    world.edit(build={"timeout": "2h"})
    assert jobs(world) == made
    assert world.status["prepared"]["key"] == "a" * 64


def test_artefact_that_is_lost_again_is_prepared_again() -> None:
    world = lose_artifact().later(minutes=1)
    finds_it(world).job_ends("Failed", reason="BackoffLimitExceeded")
    assert len(jobs(world)) == 2
    world.later(minutes=1).new_pod_fails(Reason.ARTIFACT_MISSING, "fetch-artifact")
    assert len(jobs(world)) == 3
    world.job_succeeds()
    assert world.status["prepared"]["key"] == "a" * 64


def test_what_a_pod_missed_before_the_repair_is_no_news_after_it() -> None:
    world = serving()
    world.partly_available("resnet-cpu", 1)
    world.later(minutes=10)
    world.crash("resnet-cpu", Reason.ARTIFACT_CORRUPT, "fetch-artifact", index=1, restarts=0)
    assert world.settle().conditions()["Ready"] == ("False", "Preparing")
    world.now += timedelta(minutes=2)
    world.job_succeeds()
    assert world.conditions()["Ready"] == ("False", "Progressing"), "its pod waits to start again"
    assert "ArtifactCorrupt" not in world.event_reasons()


def test_a_damaged_copy_in_a_pod_says_nothing_of_the_store() -> None:
    world = lose_artifact(Reason.ARTIFACT_CORRUPT, container="server")
    assert len(jobs(world)) == 1


GONE = StageReport(
    stage="fetch-artifact",
    ok=False,
    failure=Finding(reason=Reason.ARTIFACT_MISSING, cause="gone"),
).termination_message()


def test_a_pod_that_has_fetched_since_complains_no_more() -> None:
    world = World().settle().job_succeeds().all_available().jobs_are_cleaned_away()
    again = {
        **report_end("fetch-artifact"),
        "lastState": report_end("fetch-artifact", code=75, message=GONE)["state"],
    }
    name = world.the("Deployment")["metadata"]["name"]
    world.serving_pod(name, index=7, status={"initContainerStatuses": [again]})
    world.settle()
    assert jobs(world) == []


def test_an_old_revision_that_lost_its_artefact_does_not_hold_up_the_new_one() -> None:
    world = World().settle().job_succeeds().all_available()
    world.edit(source=OTHER)
    old = world.serving_pod(world.the("Deployment")["metadata"]["name"], index=8)
    world.job_succeeds(publish_model("b" * 64))
    failed = report_end("fetch-artifact", code=75, message=GONE)
    failed["state"]["terminated"]["finishedAt"] = "2026-11-21T23:00:00Z"
    old["status"] = {"initContainerStatuses": [failed]}
    world.settle()
    assert world.conditions()["Ready"] == ("False", "RollingOut")
    assert all(job.get("status") for job in world.all("Job"))


# memory


@pytest.mark.parametrize("fails", [False, True])
def test_a_refusal_in_between_forgets_no_result_and_no_failure(fails: bool) -> None:
    world = World().settle()
    if fails:
        world.job_fails(Reason.DIGEST_MISMATCH, "fetch")
    else:
        world.job_succeeds()
    world.jobs_are_cleaned_away().edit(backends=["openvino"]).edit(backends=None)
    validated = ("False", "DigestMismatch") if fails else ("True", "Prepared")
    assert world.conditions()["Validated"] == validated
    assert jobs(world) == []


def test_the_time_of_a_failure_is_when_it_was_first_seen() -> None:
    world = World().settle().job_fails(Reason.SOURCE_UNREACHABLE, "fetch")
    seen = world.status["preparation"]["failure"]["time"]
    assert datetime.fromisoformat(seen) == world.now
    world.later(seconds=20)
    assert world.status["preparation"]["failure"]["time"] == seen
