"""What pods tell: which stage runs, what failed and why, what they wait for.

Stages herald their outcome in the termination message. Where none stands, because the process was
killed, the exit code and Kubernetes' own reason have to do. Texts name no pod and no time.
"""

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from enginewright.api.conditions import StatusReason
from enginewright.contract.reasons import REMEDIES, ExitCode, Reason, remedy
from enginewright.contract.report import StageReport, read_herald
from enginewright.observed.pods import Container, PodView, Termination

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
# The kubelet alternates between these while it backs off, so the reason itself is not reported.
_IMAGE_TROUBLE: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
    }
)
# of the scheduler's FitError: "0/5 nodes are available: 3 Insufficient cpu, 2 node(s) had ..."
_NO_NODE: Final = re.compile(r"0/\d+ nodes are available: (.+)", re.DOTALL)
_AFTERWARDS: Final = re.compile(r"\.? (?:no new claims to deallocate|preemption: )")
_NEXT_REASON: Final = re.compile(r", (?=\d)")
_COUNT: Final = re.compile(r"^\d+ ")
_NO_CLAIM: Final = re.compile(r'persistentvolumeclaim "[^"]*" (not found|is being deleted)')
_NO_VOLUME: Final = re.compile(  # of the scheduler's volume binding plugin
    r"unbound immediate PersistentVolumeClaims|available persistent volumes to bind"
    r"|bound to non-existent persistentvolume"
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


def reports(pod: PodView) -> Iterator[StageReport]:
    """Yield what the containers that ended reported."""
    for each in pod.containers:
        if each.ended and (report := _report(each.ended)):
            yield report


def failure(pod: PodView) -> Failure | None:
    """Return the first container that failed, now or at its last start, and has not succeeded since."""
    if is_evicted(pod):
        return _evicted(pod)
    for each in pod.containers:
        ended = each.ended or each.last
        if ended and ended.exit_code != 0:
            return _explain(each, ended)
    return None


def running_stage(pod: PodView, stages: tuple[str, ...]) -> str:
    """Return the stage that runs or comes next."""
    done = {each.name for each in pod.containers if each.ended and each.ended.exit_code == 0}
    return next((stage for stage in stages if stage not in done), stages[-1])


def waiting_for(pod: PodView) -> str:
    """Return what keeps a pod from starting, as a sentence; empty when nothing is known to be wrong."""
    if pod.unschedulable:
        return f"no node takes the pod: {scheduling_failure(pod)}"
    for each in pod.containers:
        if each.waiting_reason in _IMAGE_TROUBLE:
            return (
                f"the image {each.image} cannot be pulled; check its name in the chart's values"
                " and the pull secrets"
            )
        if each.waiting_reason in _CONFIG_TROUBLE:
            return f"{each.name} cannot start: {each.waiting_message or each.waiting_reason}"
    return ""


def scheduling_failure(pod: PodView) -> str:
    """Return the scheduler's reasons without its counts, which change with every node that comes or goes."""
    said = _AFTERWARDS.split(pod.unschedulable)[0].rstrip(". ")
    listed = _NO_NODE.match(said)
    if listed is None:
        return said
    reasons = (_COUNT.sub("", each) for each in _NEXT_REASON.split(listed[1]))
    return ", ".join(sorted(set(reasons)))


def missing_claim(pod: PodView) -> StatusReason | None:
    """Return why the scheduler finds no volume for the pod; None when it names none."""
    if _NO_CLAIM.search(pod.unschedulable):
        return StatusReason.CLAIM_NOT_FOUND
    return StatusReason.CLAIM_NOT_BOUND if _NO_VOLUME.search(pod.unschedulable) else None


def is_evicted(pod: PodView) -> bool:
    """Return whether the kubelet has ended the pod because disk or memory ran short."""
    return pod.phase == "Failed" and pod.reason == "Evicted"


def never_ran(pod: PodView) -> bool:
    """Return whether no container of the pod has ever been started."""
    return not any(each.running or each.ended or each.last for each in pod.containers)


def _evicted(pod: PodView) -> Failure:
    ended = [(each.name, each.ended) for each in pod.containers if each.ended]
    name, last = next(((name, one) for name, one in ended if one.exit_code != 0), ("the pod", None))
    said = pod.message.partition(". ")[0].rstrip(". ")  # what follows are figures of the moment
    cause = f"{name} was evicted by the kubelet: {said or 'the node ran short'}"
    reason = Reason.EVICTED
    finished_at, code = (last.finished_at, last.exit_code) if last else ("", ExitCode.TRANSIENT)
    return Failure(name, reason, f"{cause}; {remedy(reason, name)}", finished_at, code)


def _report(ended: Termination) -> StageReport | None:
    return read_herald(ended.message) if ended.message else None


def _explain(container: Container, ended: Termination) -> Failure:
    stage, code = container.name, ended.exit_code
    report = _report(ended)
    killed = ended.reason == "OOMKilled"
    # A server leaves word of a crash before it loads, in case it cannot afterwards: the kernel's
    # word is the later one.
    if report and report.reason and not (killed and report.reason is Reason.BACKEND_CRASHED):
        return Failure(stage, report.reason, _whole(report, stage), ended.finished_at, code)
    if killed:
        reason = Reason.OUT_OF_MEMORY
        limit = f" of {container.memory_limit}" if container.memory_limit else ""
        cause = f"{stage} was ended for using more memory than its limit{limit}"
    else:
        reason, cause = _without_report(stage, ended)
    return Failure(stage, reason, f"{cause}; {remedy(reason, stage)}", ended.finished_at, code)


def _without_report(stage: str, ended: Termination) -> tuple[Reason, str]:
    """Return what the exit code alone tells of a container that left no report."""
    number = ended.exit_code - _BY_SIGNAL
    if number not in set(signal.Signals):
        said = " ".join(ended.message.split())
        last = f": {said}" if said else " and said nothing"
        return Reason.INTERNAL_ERROR, f"{stage} ended with exit code {ended.exit_code}{last}"
    name = signal.Signals(number).name
    if number in _CRASHES:
        return Reason.BACKEND_CRASHED, f"{stage} crashed in native code ({name})"
    cause = (
        f"{stage} was ended from outside by {name} (exit code {ended.exit_code}): by the kubelet after its"
        " liveness probe had failed, because the node ran out of memory, or by a user"
    )
    return (Reason.SERVER_DOWN if stage == _SERVER else Reason.INTERNAL_ERROR), cause


def _whole(report: StageReport, container: str) -> str:
    """Return a report's message with the remedy, which a cut message has lost, for this container."""
    reason = report.reason or Reason.INTERNAL_ERROR
    cause = report.message.removesuffix(f"; {REMEDIES[reason]}")
    if cause == report.message and cause and not cause.endswith("…"):
        return cause  # with a remedy of its own
    return "; ".join(filter(None, (cause, remedy(reason, container))))
