"""What pods tell: which stage runs, what failed and why, what they wait for.

Stages herald their outcome in the termination message. Where none stands, because the process was
killed, the exit code and Kubernetes' own reason have to do. Texts name no pod and no time.
"""

import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from enginewright.contract.reasons import REMEDIES, Reason
from enginewright.contract.report import StageReport, read_herald
from enginewright.plan.types import Object

_CRASHES: Final = frozenset(
    {
        signal.SIGILL,
        signal.SIGTRAP,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGSEGV,
        signal.SIGSYS,
    }
)
_BY_SIGNAL: Final = 128  # what the kubelet adds to the number of the signal that ended a process
_SERVER: Final = "server"  # name of the container
_IMAGE_TROUBLE: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
)
_CONFIG_TROUBLE: Final = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)


@dataclass(frozen=True)
class Failure:
    """One failed container."""

    stage: str
    reason: Reason
    message: str
    finished_at: str  # RFC 3339, as the kubelet wrote it
    exit_code: int


def container_statuses(pod: Object) -> Iterator[Mapping[str, Any]]:
    """Yield the statuses of init containers and containers, in the order in which they run."""
    status = pod.get("status") or {}
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def of_job(pods: Iterable[Object], job: str) -> list[Object]:
    """Return a Job's pods, oldest first."""
    mine = [
        pod
        for pod in pods
        if (pod["metadata"].get("labels") or {}).get("batch.kubernetes.io/job-name") == job
    ]
    return sorted(mine, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))


def heralds(pod: Object) -> Iterator[StageReport]:
    """Yield what the containers that ended said."""
    for status in container_statuses(pod):
        ended = (status.get("state") or {}).get("terminated") or {}
        if ended.get("message") and (report := read_herald(ended["message"])):
            yield report


def failure(pod: Object) -> Failure | None:
    """Return the first container that failed, now or at its last start, and has not succeeded since."""
    for status in container_statuses(pod):
        now = (status.get("state") or {}).get("terminated")
        ended = now or (status.get("lastState") or {}).get("terminated")
        if ended and ended.get("exitCode", 0) != 0:
            return _explain(status["name"], ended, _memory_limit(pod, status["name"]))
    return None


def is_ready(pod: Object) -> bool:
    """Tell whether Kubernetes sends the pod requests."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def ended(pod: Object) -> bool:
    """Tell whether all that the pod will ever say is known."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def leaving(pod: Object) -> bool:
    """Tell whether the pod ended or ends because somebody wanted so, not for what it holds."""
    return ended(pod) or bool(pod["metadata"].get("deletionTimestamp"))


def _memory_limit(pod: Object, container: str) -> str:
    """Return a container's limit of memory as the spec has it; empty where it has none."""
    spec = pod.get("spec") or {}
    containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    found: Mapping[str, Any] = next(
        (each for each in containers if each.get("name") == container), {}
    )
    limits = (found.get("resources") or {}).get("limits") or {}
    return str(limits.get("memory") or "")


def _explain(stage: str, ended: Mapping[str, Any], memory: str) -> Failure:
    finished_at = str(ended.get("finishedAt") or "")
    code = int(ended.get("exitCode", 0))
    report = read_herald(ended["message"]) if ended.get("message") else None
    killed = ended.get("reason") == "OOMKilled"
    # A server leaves word of a crash before it loads, in case it cannot afterwards: the kernel's
    # word is the later one.
    if report and report.reason and not (killed and report.reason is Reason.BACKEND_CRASHED):
        return Failure(stage, report.reason, _whole(report), finished_at, code)
    if killed:
        reason = Reason.OUT_OF_MEMORY
        limit = f" of {memory}" if memory else ""
        cause = f"{stage} was ended for using more memory than its limit{limit}"
    else:
        reason, cause = _without_a_word(stage, code)
    return Failure(stage, reason, f"{cause}; {REMEDIES[reason]}", finished_at, code)


def _without_a_word(stage: str, code: int) -> tuple[Reason, str]:
    """Return what the exit code alone tells of a container that left no report."""
    number = code - _BY_SIGNAL
    if number not in set(signal.Signals):
        return Reason.INTERNAL_ERROR, f"{stage} ended with exit code {code} and said nothing"
    name = signal.Signals(number).name
    if number in _CRASHES:
        return Reason.BACKEND_CRASHED, f"{stage} crashed in native code ({name})"
    cause = (
        f"{stage} was ended from outside by {name} (exit code {code}): by the kubelet after its"
        " liveness probe had failed, because the node ran out of memory, or by somebody"
    )
    return (Reason.SERVER_DOWN if stage == _SERVER else Reason.INTERNAL_ERROR), cause


def _whole(report: StageReport) -> str:
    """Return a report's message with the remedy, which a cut message has lost."""
    if report.message and not report.message.endswith("…"):
        return report.message
    return "; ".join(
        filter(None, (report.message, REMEDIES[report.reason or Reason.INTERNAL_ERROR]))
    )


def running_stage(pod: Object, stages: tuple[str, ...]) -> str:
    """Return the stage that runs or comes next."""
    ended = {
        status["name"]
        for status in container_statuses(pod)
        if ((status.get("state") or {}).get("terminated") or {}).get("exitCode") == 0
    }
    return next((stage for stage in stages if stage not in ended), stages[-1])


def trouble(pod: Object) -> str:
    """Return why a pod cannot start, as a sentence; empty when nothing is known to be wrong."""
    status = pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"no node takes the pod: {condition.get('message') or condition.get('reason')}"
    for each in container_statuses(pod):
        waiting = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _IMAGE_TROUBLE:
            return (
                f"the image {each.get('image')} cannot be pulled; check its name in the chart's values"
                " and the pull secrets"
            )
        if waiting.get("reason") in _CONFIG_TROUBLE:
            return f"{each['name']} cannot start: {waiting.get('message') or waiting['reason']}"
    return ""
