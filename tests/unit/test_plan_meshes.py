"""Proxies that a service mesh adds to Jobs' pods: the last stage's report decides, and the Job does not outlive it."""

from typing import Final

import pytest
from enginewright.observed.pods import JOB_NAME
from enginewright_contract.reasons import Reason
from enginewright_contract.report import StageReport

from tests.support.plan_objects import publish_engine
from tests.support.plan_world import World
from tests.support.simulation import report_end, statuses

PROXY: Final = "istio-proxy"


def prepare_in_mesh() -> World:
    world = World()
    world.proxy = PROXY
    return world.settle()


def build_in_mesh() -> World:
    world = World.of_engine()
    world.proxy = PROXY
    return world.settle()


# event: Jobs | a service mesh adds a proxy to a Job's pod, which runs on after the last stage | the previous revision |
#   what the last stage reported; the Job is deleted, so that the proxy ends
def test_a_model_is_prepared_although_a_proxy_runs_on() -> None:
    world = prepare_in_mesh()
    job = world.job("prepare")["metadata"]["name"]
    world.job_succeeds()
    assert world.conditions()["Validated"][0] == "True"
    assert world.find("Job", job) is None
    assert world.all_available().conditions()["Ready"][0] == "True"
    assert len(world.made) == 1


# event: Jobs | a service mesh adds a proxy to a Job's pod, which runs on after the last stage
def test_an_engine_is_built_although_a_proxy_runs_on() -> None:
    world = build_in_mesh().misses()
    assert world.conditions()["Ready"][1] == "Queued"
    assert len(world.running_jobs()) == 1, "the lookup is over"
    world.succeeds()
    assert world.conditions()["Ready"] == ("True", "Built")
    assert not world.all("Job")
    assert len(world.made) == 2


def test_a_proxy_that_is_killed_at_the_deadline_fails_no_job() -> None:
    world = build_in_mesh().misses()
    key = world.the("InferenceEngine")["spec"]["key"]
    report = StageReport(stage="publish-engine", ok=True, engine=publish_engine(key))
    last = report_end("publish-engine", message=report.termination_message())
    ended = statuses(world.stages(), "publish-engine", last)
    world.job_pod_becomes(phase="Failed", reason="DeadlineExceeded", **ended)
    assert world.conditions()["Ready"] == ("True", "Built")


def test_a_build_that_takes_too_long_beside_a_proxy_is_overdue() -> None:
    world = build_in_mesh().misses().is_too_late()
    assert world.conditions()["Stalled"] == ("True", "Timeout")


# event: Jobs | a Job's last stage fails, and a mesh's proxy keeps its pod running | the previous revision | the stage's
#   failure; the Job is deleted, and tried again like any other
@pytest.mark.parametrize("reason", [Reason.STORE_UNAVAILABLE, Reason.INTERNAL_ERROR])
def test_a_last_stage_that_fails_beside_a_proxy_is_tried_again(reason: Reason) -> None:
    world = prepare_in_mesh()
    job = world.job("prepare")["metadata"]["name"]
    world.job_fails(reason, "publish")
    assert world.conditions()["Ready"] == ("False", reason)
    assert world.find("Job", job) is None
    world.later(minutes=2)
    assert len(world.running_jobs()) == 1
    world.job_succeeds()
    assert world.conditions()["Validated"][0] == "True"


def test_a_crash_of_a_proxy_beside_a_stage_is_no_failure_of_the_job() -> None:
    world = prepare_in_mesh()
    status = statuses(world.stages(), "convert")
    crashed = {"name": PROXY, "restartCount": 1, "state": {"running": {}}}
    crashed["lastState"] = report_end(PROXY, code=137)["state"]
    status["initContainerStatuses"].insert(0, crashed)
    world.proxy = ""
    world.job_pod_becomes(phase="Pending", **status)
    assert world.conditions()["Ready"] == ("False", "Preparing")


def test_a_job_that_a_native_sidecar_ends_with_is_kept() -> None:
    world = World().settle()
    job = world.job()["metadata"]["name"]
    sidecar = {"name": PROXY, "state": {"running": {}}}
    report = StageReport(stage="validate", ok=True)
    status = statuses(
        world.stages(), "validate", report_end("validate", message=report.termination_message())
    )
    status["initContainerStatuses"].insert(0, sidecar)
    world.job_pod_becomes(phase="Pending", **status)
    world.job_succeeds()
    assert world.find("Job", job)


# event: Jobs | a mesh's proxy is to carry a stage's requests and has not begun, so that connections are refused | the
#   previous revision | `SourceUnreachable` or `StoreUnavailable`, which names the proxy; tried again
def test_a_source_that_is_refused_before_a_proxy_begins_names_the_proxy() -> None:
    world = prepare_in_mesh()
    world.job_fails(Reason.SOURCE_UNREACHABLE, "fetch", "cannot connect: Connection refused")
    assert world.conditions()["Ready"] == ("False", Reason.SOURCE_UNREACHABLE)
    assert world.conditions()["Stalled"][0] == "False"
    assert PROXY in world.message()
    world.later(minutes=2)
    assert len(world.running_jobs()) == 1
    assert len(world.pods_of(JOB_NAME, world.job()["metadata"]["name"])) == 0


@pytest.mark.parametrize("proxy", ["", PROXY])
def test_silent_sidecars_beside_a_proxy_name_the_mesh(proxy: str) -> None:
    world = World().settle().job_succeeds().all_available()
    for pod in world.all("Pod"):
        if proxy and "containerStatuses" in pod["status"]:
            beside = {"name": proxy, "ready": True, "state": {"running": {}}}
            pod["status"]["containerStatuses"].append(beside)
    world.silent = {pod["metadata"]["name"] for pod in world.all("Pod")}
    world.settle()
    said = world.condition("PlacementVerified")
    assert said["reason"] == "SidecarUnreachable"
    assert (f"{PROXY}" in said["message"]) == bool(proxy)
