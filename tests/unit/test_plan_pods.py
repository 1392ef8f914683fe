"""Reading what pods tell."""

from typing import Any

import pytest
from enginewright.controller.slim import slim
from enginewright.kube.resources import PODS
from enginewright.observed.pods import pod_view
from enginewright.plan import pods
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding, StageReport

from tests.support.optional import present
from tests.support.plan_objects import make_object
from tests.support.simulation import unschedulable


def test_an_out_of_memory_kill_outweighs_the_message_written_before_loading() -> None:
    termination_message = StageReport(
        stage="serve",
        ok=False,
        failure=Finding(reason=Reason.BACKEND_CRASHED, cause="the backend crashed"),
    ).termination_message()
    ended = {"exitCode": 137, "reason": "OOMKilled", "message": termination_message}
    state = {"name": "server", "state": {}, "lastState": {"terminated": ended}}
    pod = make_object("Pod", "x", status={"containerStatuses": [state]})
    failure = present(pods.failure(pod_view(pod)))
    assert failure.reason is Reason.OUT_OF_MEMORY
    ended["reason"] = "Error"
    failure = present(pods.failure(pod_view(pod)))
    assert failure.reason is Reason.BACKEND_CRASHED


def make_ended_server(**ended: object) -> dict[str, Any]:
    """Return a pod as the kubelet reports it whose server was restarted, and is not ready again."""
    limits = {"resources": {"limits": {"memory": "256Mi"}}}
    state = {
        "name": "server",
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"message": "", **ended}},
    }
    spec = {"containers": [{"name": "server", **limits}]}
    return make_object("Pod", "x", spec=spec, status={"containerStatuses": [state]})


# fault: Reports | a killed server reported as an internal error | `OutOfMemory` with the limit,
#   else the signal, from the container's last state | the pod's next status
@pytest.mark.parametrize(
    ("code", "kubernetes", "reason", "wording"),
    [
        (
            137,
            "OOMKilled",
            Reason.OUT_OF_MEMORY,
            "exceeded its memory limit of 256Mi and was killed",
        ),
        (137, "Error", Reason.SERVER_DOWN, "was killed by SIGKILL (exit code 137)"),
        (143, "Error", Reason.SERVER_DOWN, "was killed by SIGTERM (exit code 143)"),
        (139, "Error", Reason.BACKEND_CRASHED, "crashed in native code (SIGSEGV)"),
        (136, "Error", Reason.BACKEND_CRASHED, "crashed in native code (SIGFPE)"),
        (159, "Error", Reason.BACKEND_CRASHED, "crashed in native code (SIGSYS)"),
        (1, "Error", Reason.INTERNAL_ERROR, "exit code 1 without a message"),
        (255, "Error", Reason.INTERNAL_ERROR, "exit code 255 without a message"),
    ],
)
def test_signal_explains_a_killed_server(
    code: int, kubernetes: str, reason: Reason, wording: str
) -> None:
    pod = slim(PODS, make_ended_server(exitCode=code, reason=kubernetes))
    failure = present(pods.failure(pod_view(pod)))
    assert failure.reason is reason
    assert wording in failure.finding.cause
    assert failure.finding.advice == reason.remedy


def test_without_a_limit_none_is_named() -> None:
    pod = make_ended_server(exitCode=137, reason="OOMKilled")
    del pod["spec"]["containers"][0]["resources"]
    failure = present(pods.failure(pod_view(slim(PODS, pod))))
    assert "exceeded its memory limit and was killed; raise" in failure.finding.message


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff"])
def test_an_image_that_a_volume_mounts_is_named_where_it_cannot_be_pulled(reason: str) -> None:
    """The kubelet reports it as the reason of the container that mounts it, whose own image is there."""
    mounted, other = (f"registry.example/images@sha256:{item * 64}" for item in "12")
    waits = {"reason": reason, "message": f'Back-off pulling image "{mounted}": not found'}
    status = {
        "phase": "Pending",
        "initContainerStatuses": [
            {"name": "fetch-artifact", "image": "runtime:1", "state": {"waiting": waits}}
        ],
    }
    spec = {
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            *({"name": item[-1], "image": {"reference": item}} for item in (other, mounted)),
        ]
    }
    whole = make_object("Pod", "p", "n", spec=spec, status=status)
    for obj in (whole, slim(PODS, whole)):
        reported = pods.waiting_for(pod_view(obj))
        assert reported.startswith(
            f"cannot pull the image {mounted} that a volume of the pod mounts"
        )
    waits["message"] = 'Back-off pulling image "runtime:1": not found'
    assert pods.waiting_for(pod_view(whole)).startswith("cannot pull the image runtime:1;")


@pytest.mark.parametrize(
    ("said", "reported"),
    [
        (
            (
                "0/5 nodes are available: 3 Insufficient cpu, 2 node(s) had untolerated taint {a: b, c}."
                " preemption: 0/5 nodes are available: 5 No preemption victims found."
            ),
            "Insufficient cpu, node(s) had untolerated taint {a: b, c}",
        ),
        (
            "0/9 nodes are available: 1 node(s) had untolerated taint {a: b, c}, 8 Insufficient cpu.",
            "Insufficient cpu, node(s) had untolerated taint {a: b, c}",
        ),
        (
            (
                "0/2 nodes are available: 2 Insufficient cpu. no new claims to deallocate, preemption: 0/2"
                " nodes are available: 2 Preemption is not helpful for scheduling."
            ),
            "Insufficient cpu",
        ),
        ("no nodes available to schedule pods", "no nodes available to schedule pods"),
        (
            '0/1 nodes are available: persistentvolumeclaim "models" not found. not found',
            'persistentvolumeclaim "models" not found',
        ),
    ],
)
def test_scheduler_reasons_do_not_depend_on_the_node_count(said: str, reported: str) -> None:
    status = {"phase": "Pending", "conditions": [unschedulable(said)]}
    pod = pod_view(make_object("Pod", "p", "n", status=status))
    assert pods.waiting_for(pod) == f"the pod is unschedulable: {reported}"


@pytest.mark.parametrize(
    "said",
    [
        'Error creating: pods "m-x2x9k" is forbidden: exceeded quota: gpus',
        '(combined from similar events): Error creating: pods "m-x2x9k" is forbidden: exceeded quota: gpus',
        'Error creating: Pod "m-x2x9k" is invalid: exceeded quota: gpus',
        'Pod "m-x2x9k" is invalid: exceeded quota: gpus',
        "exceeded quota: gpus",
    ],
)
def test_a_refusal_is_the_same_for_each_attempt(said: str) -> None:
    assert pods.explain_refusal(said) == "exceeded quota: gpus"
