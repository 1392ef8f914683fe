"""What goes wrong in pods names the field that helps, stands in the conditions, and is not repeated for ever."""

from typing import Any

import pytest
from enginewright.observed.pods import pod_view
from enginewright.plan import pods
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding, StageReport, remedy
from enginewright_contract.task import ENGINE_STAGES, LOOKUP_STAGE, PREPARE_STAGES

from tests.support.plan_objects import accelerator_class, make_object
from tests.support.plan_world import World
from tests.support.simulation import report_end


def make_killed(container: str, message: str = "", reason: str = "OOMKilled") -> dict[str, Any]:
    ended = report_end(container, code=137, message=message, reason=reason)
    return make_object("Pod", "x", status={"containerStatuses": [ended]})


def failure(pod: dict[str, Any]) -> pods.Failure:
    result = pods.failure(pod_view(pod))
    assert result
    return result


@pytest.mark.parametrize(
    ("container", "field"),
    [
        *((stage, "spec.build.resources") for stage in (*PREPARE_STAGES, LOOKUP_STAGE)),
        *((stage, "spec.build.resources") for stage in ENGINE_STAGES),
        ("server", "spec.podTemplate.resources"),
        ("fetch-artifact", "spec.podTemplate.resources"),
        ("sidecar", "spec.serving.sidecar.resources"),
    ],
)
def test_memory_is_raised_where_it_ran_out(container: str, field: str) -> None:
    expected = f"; raise {field}.limits.memory"
    assert failure(make_killed(container)).finding.message.endswith(expected)
    own = Finding(reason=Reason.OUT_OF_MEMORY, cause="the model does not fit")
    termination_message = StageReport(stage=container, ok=False, failure=own).termination_message()
    assert (
        failure(make_killed(container, termination_message)).finding.message
        == f"the model does not fit{expected}"
    )


@pytest.mark.parametrize("stage", ["build", "golden"])
def test_a_driver_that_a_job_misses_is_a_runtime_class_of_the_job(stage: str) -> None:
    assert "spec.build.podTemplate.runtimeClassName" in remedy(Reason.DRIVER_MISSING, stage)
    assert "spec.podTemplate.runtimeClassName" in remedy(Reason.DRIVER_MISSING, "server")


def test_a_remedy_of_the_stages_own_is_left_as_it_is() -> None:
    own = Finding(reason=Reason.OUT_OF_MEMORY, cause="too much", remedy="buy a larger node")
    termination_message = StageReport(stage="build", ok=False, failure=own).termination_message()
    assert (
        failure(make_killed("build", termination_message)).finding.message
        == "too much; buy a larger node"
    )


LOW = "The node was low on resource: ephemeral-storage. Threshold quantity: 1, available: 0. "


def make_evicted(message: str = LOW) -> dict[str, Any]:
    conditions = [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}]
    done = {"name": "fetch", "state": report_end("fetch", code=137)["state"]}
    return {
        "phase": "Failed",
        "reason": "Evicted",
        "message": message,
        "conditions": conditions,
        "initContainerStatuses": [done],
    }


def test_an_eviction_has_the_kubelets_reason_and_no_figures() -> None:
    world = World().settle()
    world.job_pod_becomes(**make_evicted())
    assert world.conditions()["Ready"] == ("False", "Evicted")
    message = world.message()
    assert "The node was low on resource: ephemeral-storage;" in message
    assert "spec.build.resources.requests" in message
    assert "Threshold" not in message


# event: Jobs | the kubelet evicts a Job's pods repeatedly | the previous revision; the third
#   eviction ends the Job, the next one is at most an hour later | Ready `Evicted`, then `Stalled`
def test_a_job_that_is_evicted_again_and_again_is_ended_and_tried_hourly() -> None:
    world = World().settle()
    first = world.job()["metadata"]["name"]
    for _ in range(3):
        assert world.job()["metadata"]["name"] == first
        world.job_pod_becomes(**make_evicted())
    assert not world.all("Job"), "the Job controller would go on for ever"
    for _ in range(4):
        world.later(hours=2)
        for _ in range(3):
            world.job_pod_becomes(**make_evicted())
    assert not world.all("Job")
    assert world.conditions()["Stalled"] == ("True", "Evicted")
    assert "failed 5 times; the next attempt is at" in world.message()
    world.later(hours=1)
    assert len(world.running_jobs()) == 1


def test_an_engine_job_that_is_evicted_again_and_again_holds_no_device() -> None:
    world = World.of_engine().settle().misses()
    for _ in range(3):
        world.job_pod_becomes(**make_evicted() | {"initContainerStatuses": []})
    assert all(job["status"].get("conditions") for job in world.all("Job"))
    assert world.conditions()["Ready"] == ("False", "Evicted")


# event: Rollouts | an update's pods fail as every other pod would | the previous revision |
#   `Stalled` at once
@pytest.mark.parametrize(
    ("reason", "stalls"),
    [
        (Reason.NODE_FALLBACK, True),
        (Reason.FALLBACK_OVER_BUDGET, True),
        (Reason.UNSUPPORTED_OPERATOR, True),
        (Reason.DRIVER_MISSING, False),  # another node may not find it
        (Reason.OUT_OF_MEMORY, False),
    ],
)
def test_failure_of_every_pod_stalls_at_once(reason: Reason, *, stalls: bool) -> None:
    world = World().settle().job_succeeds().rolling(0).new_pod_fails(reason)
    assert world.conditions()["Ready"] == ("False", reason)
    assert world.conditions()["Stalled"][0] == str(stalls)
    assert world.conditions()["Reconciling"][0] == str(not stalls)


@pytest.mark.parametrize(
    ("backends", "reason", "stalls"),
    [
        (["openvino", "cpu"], Reason.UNSUPPORTED_OPERATOR, False),
        (["openvino", "cpu"], Reason.EXTENSION_FAILED, True),  # no backend's fault
        (["cpu"], Reason.UNSUPPORTED_OPERATOR, True),
        (["cpu"], Reason.EXTENSION_FAILED, True),
    ],
)
def test_nothing_stalls_while_another_backend_is_left(
    backends: list[str], reason: Reason, *, stalls: bool
) -> None:
    world = World(accelerator_class("cpus", *backends), fallback={"policy": "Allow"})
    world.settle().job_succeeds().rolling(0)
    (deployment,) = world.serving_deployments()
    world.crash(deployment["metadata"]["name"], reason, restarts=0)
    world.settle()
    assert world.conditions()["Ready"] == ("False", reason)
    assert world.conditions()["Stalled"][0] == str(stalls)
    assert "rejectedBackends" not in world.status, "it has not failed repeatedly"


# event: Rollouts | a claim that pods mount is missing or not bound | the previous revision |
#   Ready `ClaimNotFound` or `ClaimNotBound`, a Warning
@pytest.mark.parametrize(
    ("message", "reason", "wording"),
    [
        (
            (
                '0/3 nodes are available: persistentvolumeclaim "models" not found. preemption: 0/3 nodes'
                " are available: 3 Preemption is not helpful for scheduling."
            ),
            "ClaimNotFound",
            'persistentvolumeclaim "models" not found',
        ),
        (
            "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found",
            "ClaimNotBound",
            "unbound immediate PersistentVolumeClaims",
        ),
        (
            "0/3 nodes are available: 3 node(s) didn't find available persistent volumes to bind.",
            "ClaimNotBound",
            "didn't find available persistent volumes to bind",
        ),
        (
            (
                '0/3 nodes are available: persistentvolumeclaim "models" bound to non-existent'
                ' persistentvolume "pv-1".'
            ),
            "ClaimNotBound",
            "non-existent",
        ),
    ],
)
def test_missing_claim_is_a_warning(message: str, reason: str, wording: str) -> None:
    world = World(source={"uri": "pvc://models/m.onnx"}).settle()
    world.unschedulable(message)
    assert world.conditions()["Ready"] == ("False", reason)
    assert world.conditions()["Reconciling"] == ("True", reason)
    assert wording in world.message()
    (event,) = [intent for intent in world.events if intent.reason == reason]
    assert event.type == "Warning"


def test_an_engine_job_without_its_claim_says_so() -> None:
    world = World.of_engine().settle()
    message = '0/3 nodes are available: persistentvolumeclaim "enginewright-store" not found.'
    world.unschedulable(message)
    assert world.conditions()["Ready"] == ("False", "ClaimNotFound")
    assert any(event.type == "Warning" for event in world.events)
