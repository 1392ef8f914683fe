"""What pods report: which stage runs, what failed and why, what they wait for.

Stages report their outcome in the termination message. Without one, because the process was killed,
the exit code and Kubernetes' reason are used. Texts name no pod and no time.
"""

import re
import signal
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from enginewright_contract.collection import COLLECT_STAGE
from enginewright_contract.reasons import ExitCode, Fault, Reason, Repeats
from enginewright_contract.report import Finding, StageReport, read_termination_message
from enginewright_contract.task import (
    ENGINE_STAGES,
    FETCH_ARTIFACT,
    LOOKUP_STAGE,
    PREPARE_STAGES,
    SIDECAR,
    SIDECAR_PORT,
)

from enginewright.api.conditions import StatusReason
from enginewright.manifests.labels import COMPONENT, REVISION, SERVE
from enginewright.manifests.probe_job import PROBE
from enginewright.manifests.serving_pod import SERVER
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
_REPEATED: Final = 2  # restarts of one container
# Only the last end of a container is known, but its last run began after the end before that.
CRASH_WINDOW: Final = timedelta(hours=1)
# others were injected, such as a mesh's proxy
_OWN: Final = frozenset(
    {
        *PREPARE_STAGES,
        LOOKUP_STAGE,
        *ENGINE_STAGES,
        PROBE,
        COLLECT_STAGE,
        FETCH_ARTIFACT,
        SIDECAR,
        SERVER,
    }
)
_BY_SIGNAL: Final = 128  # added to a signal's number in the exit code
# The kubelet alternates between these while it backs off, so messages do not contain the reason.
_IMAGE_ERRORS: Final = frozenset(
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
# of Events that client-go has combined, too
_REFUSED: Final = re.compile(
    r"^(\(combined from similar events\): )?(Error creating: )?"
    r'((pods|Pod) "[^"]*" is (forbidden|invalid): )?'
)
_NO_CLAIM: Final = re.compile(r'persistentvolumeclaim "[^"]*" (not found|is being deleted)')
_NO_VOLUME: Final = re.compile(  # of the scheduler's volume binding plugin
    r"unbound immediate PersistentVolumeClaims|available persistent volumes to bind"
    r"|bound to non-existent persistentvolume"
)
_CONFIG_ERRORS: Final = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)


@dataclass(frozen=True)
class Failure:
    """One failed container."""

    stage: str
    finding: Finding  # with the remedy of its container
    finished_at: str  # RFC 3339, as the kubelet wrote it
    exit_code: int

    @property
    def reason(self) -> Reason:
        """Return the finding's reason."""
        return self.finding.reason


@dataclass(frozen=True)
class CrashInterval:
    """How often a container crashes."""

    ran: timedelta  # from its last start to its end
    until: datetime  # counts as long


def reports(pod: PodView) -> Iterator[StageReport]:
    """Yield the reports of the terminated containers."""
    for container in pod.containers:
        if container.ended and (report := _report(container.ended)):
            yield report


def find_publication(pod: PodView) -> str:
    """Return when a stage of a prepare Job reported the prepared model, RFC 3339, or "" if none has."""
    ended = [container.ended for container in pod.containers if container.ended]
    times = (
        termination.finished_at
        for termination in ended
        if (report := _report(termination)) and report.published
    )
    return next(times, "")


def failure(pod: PodView) -> Failure | None:
    """Return the first container that failed, now or at its last start, and has not succeeded since."""
    if is_evicted(pod):
        return _explain_eviction(pod)
    for container in _own_containers(pod):
        ended = _last_end(container)
        if ended and ended.exit_code != 0:
            return _explain(container, ended, _list_proxies(pod))
    return None


def has_succeeded(pod: PodView, stage: str) -> bool:
    """Return whether a stage has ended well, also if other containers of the pod go on or have failed."""
    container = pod.container(stage)
    return bool(container and container.ended and container.ended.exit_code == 0)


def outlives(pod: PodView, stage: str) -> bool:
    """Return whether the last stage has ended, and what was injected beside it keeps the pod running."""
    container = pod.container(stage)
    return (
        not pod.leaving
        and bool(container and container.ended)
        and any(proxy.running for proxy in _list_proxies(pod))
    )


def explain_silence(silent: Iterable[PodView]) -> str:
    """Return what to check where the sidecars of pods do not respond to the operator."""
    text = (
        "check that they run and that no NetworkPolicy blocks the operator's access to port"
        f" {SIDECAR_PORT}"
    )
    running = (one.name for pod in silent for one in pod.containers if one.running)
    injected = set(running) - _OWN
    if not injected:
        return text
    return (
        f"{text}, nor {' or '.join(sorted(injected))}, which something has added to the pods: a mesh"
        " that requires mutual TLS must accept the operator's requests on this port (docs/access.md)"
    )


def serving_pods(observed: Iterable[PodView], revision: str) -> list[PodView]:
    """Return the serving pods of a revision, ready or not."""
    return [
        pod for pod in observed if pod.label(COMPONENT) == SERVE and pod.label(REVISION) == revision
    ]


def fetch_failure(observed: Iterable[PodView], since: str) -> Failure | None:
    """Return how one of the pods did not find its artefact intact after `since`.

    The server uses its own copy, not the store, so only the init container that fetches it counts.
    """
    failures = (
        item
        for item in map(failure, observed)
        if item is not None
        and item.stage == FETCH_ARTIFACT
        and item.reason.facets.fault is Fault.ARTIFACT
        and item.finished_at > since
    )
    return next(failures, None)


def running_stage(pod: PodView, stages: tuple[str, ...]) -> str:
    """Return the current or next stage."""
    done = {
        container.name
        for container in pod.containers
        if container.ended and container.ended.exit_code == 0
    }
    return next((stage for stage in stages if stage not in done), stages[-1])


def waiting_for(pod: PodView) -> str:
    """Return what prevents a pod from starting, as a sentence, if that is known."""
    if pod.unschedulable:
        return f"the pod is unschedulable: {scheduling_failure(pod)}"
    for container in pod.containers:
        if container.waiting_reason in _IMAGE_ERRORS:
            # the reason is that of the container, whose own image may be there
            if mounted := next(
                filter(container.waiting_message.__contains__, pod.volume_images), None
            ):
                return (
                    f"cannot pull the image {mounted} that a volume of the pod mounts; check that the"
                    " registry has it, and the pull secret (store.images.secretRef)"
                )
            return (
                f"cannot pull the image {container.image}; check its name in the chart's values"
                " and the pull secrets"
            )
        if container.waiting_reason in _CONFIG_ERRORS:
            return f"{container.name} cannot start: {container.waiting_message or container.waiting_reason}"
        if container.waiting_reason == "CrashLoopBackOff" and container.name not in _OWN:
            return (
                f"{container.name}, which something else has added to the pod, crashes: see its log"
            )
    return ""


def scheduling_failure(pod: PodView) -> str:
    """Return the scheduler's reasons without its counts of nodes, which change frequently."""
    text = _AFTERWARDS.split(pod.unschedulable)[0].rstrip(". ")
    match = _NO_NODE.match(text)
    if match is None:
        return text
    reasons = (_COUNT.sub("", part) for part in _NEXT_REASON.split(match[1]))
    return ", ".join(sorted(set(reasons)))


def missing_claim(pod: PodView) -> StatusReason | None:
    """Return why the scheduler finds no volume for the pod, if it reports that."""
    if _NO_CLAIM.search(pod.unschedulable):
        return StatusReason.CLAIM_NOT_FOUND
    return StatusReason.CLAIM_NOT_BOUND if _NO_VOLUME.search(pod.unschedulable) else None


def explain_refusal(message: str) -> str:
    """Return why the API server rejects a pod, without the pod's name, which differs with each attempt."""
    return _REFUSED.sub("", message)


def missing_room(pod: PodView) -> str:
    """Return as a reason what a pod waits for before it may start, a volume or a node, if anything."""
    return missing_claim(pod) or (Reason.CAPACITY_BLOCKED if pod.unschedulable else "")


def is_repeated(failed: Collection[PodView], now: datetime) -> bool:
    """Return whether pods failed on several nodes, or one pod several times of late: it is no accident."""
    return len({pod.node for pod in failed}) > 1 or any(crash_intervals(failed, now))


def crash_intervals(failed: Iterable[PodView], now: datetime) -> Iterator[CrashInterval]:
    """Yield how long containers ran that have crashed several times of late, one by one."""
    for pod in failed:
        for container in _own_containers(pod):
            last = _last_end(container)
            if last is None or last.exit_code == 0 or container.restarts < _REPEATED:
                continue
            if not last.finished_at:  # the kubelet does not know how it ended
                continue
            began = datetime.fromisoformat(_begin(pod, last))
            if began + CRASH_WINDOW > now:
                ended = datetime.fromisoformat(last.finished_at)
                yield CrashInterval(ran=ended - began, until=began + CRASH_WINDOW)


def has_failed_of_late(pod: PodView, now: datetime) -> bool:
    """Return whether a pod fails now, or has failed within the time in which crashes count."""
    failed = failure(pod)
    if failed is None or not pod.ready:
        return failed is not None
    if (
        not failed.finished_at
    ):  # as after a restart of its node: the kubelet does not know how it ended
        return False
    return datetime.fromisoformat(failed.finished_at) + CRASH_WINDOW > now


def is_evicted(pod: PodView) -> bool:
    """Return whether the kubelet evicted the pod because disk or memory ran low."""
    return pod.phase == "Failed" and pod.reason == "Evicted"


def never_ran(pod: PodView) -> bool:
    """Return whether none of our containers of the pod has ever been started."""
    return not any(
        container.running or container.ended or container.last for container in _own_containers(pod)
    )


def has_begun(pod: PodView) -> bool:
    """Return whether a container has been started, and the pod has not finished."""
    return not pod.finished and not never_ran(pod)


def _own_containers(pod: PodView) -> Iterator[Container]:
    """Yield a pod's containers without what others have injected, such as a mesh's proxy."""
    return (container for container in pod.containers if container.name in _OWN)


def _list_proxies(pod: PodView) -> tuple[Container, ...]:
    """Return what was injected beside the server or the last stage: it begins and ends for itself."""
    others = (container for container in pod.containers if container.name not in _OWN)
    return tuple(container for container in others if not container.init)


def _last_end(container: Container) -> Termination | None:
    return container.ended or container.last


def _begin(pod: PodView, last: Termination) -> str:
    """Return when a container's run began, RFC 3339, or when it ended if it never ran."""
    return last.started_at if last.started_at >= pod.created else last.finished_at


def _explain_eviction(pod: PodView) -> Failure:
    ended = [(container.name, container.ended) for container in pod.containers if container.ended]
    failed = ((name, one) for name, one in ended if one.exit_code != 0)
    name, last = next(failed, ("the pod", None))
    text = pod.message.partition(". ")[0].rstrip(". ")  # the rest are current measurements
    cause = f"{name} was evicted by the kubelet: {text or 'the node was low on resources'}"
    finished_at, code = (last.finished_at, last.exit_code) if last else ("", ExitCode.TRANSIENT)
    finding = Finding(reason=Reason.EVICTED, cause=cause).of_container(name)
    return Failure(name, finding, finished_at, code)


def _report(ended: Termination) -> StageReport | None:
    return read_termination_message(ended.message) if ended.message else None


def _explain(container: Container, ended: Termination, proxies: Collection[Container]) -> Failure:
    stage, code = container.name, ended.exit_code
    report = _report(ended)
    killed = ended.reason == "OOMKilled"
    # A server writes a report of a crash before it loads, in case it cannot afterwards: an OOM kill
    # is more recent than that.
    finding = report.failure if report else None
    if killed and (finding is None or finding.reason is Reason.BACKEND_CRASHED):
        limit = f" of {container.memory_limit}" if container.memory_limit else ""
        cause = f"{stage} exceeded its memory limit{limit} and was killed"
        finding = Finding(reason=Reason.OUT_OF_MEMORY, cause=cause)
    elif finding is None:
        reason, cause = _without_report(stage, ended)
        finding = Finding(reason=reason, cause=cause)
    finding = finding.of_container(stage)
    if proxies and container.init and _is_unreachable(finding.reason):
        finding = _blame_proxies(finding, stage, proxies)
    return Failure(stage, finding, ended.finished_at, code)


def _is_unreachable(reason: Reason) -> bool:
    facets = reason.facets
    return facets.fault in (Fault.SOURCE, Fault.STORE) and facets.repeats is Repeats.NO


def _blame_proxies(finding: Finding, stage: str, proxies: Collection[Container]) -> Finding:
    """Return a finding that names what may refuse a stage's connections, as it begins after the stage."""
    names = " and ".join(proxy.name for proxy in proxies)
    why = f"{names}, which something has added to the pod, begins only after {stage}"
    remedy = (
        "if that is a mesh's proxy, leave the pod out of the mesh or have proxies added as native"
        f" sidecars, which begin first (docs/access.md); else {finding.advice}"
    )
    return finding.model_copy(update={"cause": f"{finding.cause}; {why}", "remedy": remedy})


def _without_report(stage: str, ended: Termination) -> tuple[Reason, str]:
    """Return reason and cause for a container without a report, from its exit code."""
    number = ended.exit_code - _BY_SIGNAL
    if number not in set(signal.Signals):
        text = " ".join(ended.message.split())
        last = f": {text}" if text else " without a message"
        return Reason.INTERNAL_ERROR, f"{stage} ended with exit code {ended.exit_code}{last}"
    name = signal.Signals(number).name
    if number in _CRASHES:
        return Reason.BACKEND_CRASHED, f"{stage} crashed in native code ({name})"
    cause = (
        f"{stage} was killed by {name} (exit code {ended.exit_code}): by the kubelet after its"
        " liveness probe failed, because the node ran out of memory, or by a user"
    )
    return (Reason.SERVER_DOWN if stage == SERVER else Reason.INTERNAL_ERROR), cause
