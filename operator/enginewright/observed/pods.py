"""Pods: their nodes, and the states of their containers."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from enginewright.observed.base import Json, ObservedObject, conditions, identity, spec, status

JOB_NAME: Final = "batch.kubernetes.io/job-name"


@dataclass(frozen=True)
class Termination:
    """How a container terminated."""

    exit_code: int
    reason: str  # set by Kubernetes, such as OOMKilled
    message: str  # the termination message
    started_at: str  # RFC 3339, as the next one; empty or long before the pod where it never ran
    finished_at: str


@dataclass(frozen=True)
class Container:
    """One init container or container."""

    name: str
    image: str
    memory_limit: str  # as in the spec, if any
    running: bool
    ended: Termination | None
    last: Termination | None  # of its previous run, if it was restarted
    waiting_reason: str
    waiting_message: str
    restarts: int
    init: (
        bool  # an init container: also a native sidecar, which ends with the pod's other containers
    )


@dataclass(frozen=True, kw_only=True)
class PodView(ObservedObject):
    """A pod."""

    phase: str  # Pending | Running | Succeeded | Failed | Unknown
    reason: str  # why the pod failed, such as DeadlineExceeded
    message: str
    node: str  # once scheduled
    scheduled_at: str  # RFC 3339, once scheduled
    unschedulable: str  # the scheduler's message, if it could not schedule it
    ready: bool
    ready_changed: str  # RFC 3339, when it became ready or unready, once a kubelet has it
    was_ready: bool  # since its init containers have ended
    ip: str
    annotations: Json
    volume_images: tuple[str, ...]  # references of the images that its volumes mount
    containers: tuple[Container, ...]  # init containers first, in the order in which they run

    @property
    def job(self) -> str:
        """Name of the Job that created it, if one did."""
        return self.label(JOB_NAME)

    @property
    def finished(self) -> bool:
        """Whether its containers will never run again."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def leaving(self) -> bool:
        """Whether it has finished or is being deleted."""
        return self.finished or self.deleting

    def container(self, name: str) -> Container | None:
        """Return the container of this name."""
        return next((item for item in self.containers if item.name == name), None)


def pod_view(obj: Json) -> PodView:
    """Return the view of a Pod (core/v1)."""
    by_type = {condition.type: condition for condition in conditions(obj)}
    scheduled, ready = by_type.get("PodScheduled"), by_type.get("Ready")
    initialized = by_type.get("Initialized")  # later than the unreadiness of a pod that starts
    refused = scheduled is not None and scheduled.status == "False"
    return PodView(
        **identity(obj),
        phase=str(status(obj).get("phase") or ""),
        reason=str(status(obj).get("reason") or ""),
        message=str(status(obj).get("message") or ""),
        node=str(spec(obj).get("nodeName") or ""),
        scheduled_at=scheduled.since if scheduled and not refused else "",
        unschedulable=(scheduled.message or scheduled.reason) if scheduled and refused else "",
        ready=ready is not None and ready.status == "True",
        ready_changed=ready.since if ready is not None else "",
        was_ready=ready is not None
        and (ready.status == "True" or initialized is None or ready.since > initialized.since),
        ip=str(status(obj).get("podIP") or ""),
        annotations=obj["metadata"].get("annotations") or {},
        volume_images=tuple(
            str(item["image"].get("reference") or "")
            for item in spec(obj).get("volumes") or ()
            if item.get("image")
        ),
        containers=tuple(_containers(obj)),
    )


def of_job(pods: Iterable[PodView], job: str) -> tuple[PodView, ...]:
    """Return a Job's pods, oldest first."""
    return tuple(
        sorted((pod for pod in pods if pod.job == job), key=lambda pod: (pod.created, pod.name))
    )


def _containers(obj: Json) -> Iterable[Container]:
    limits = {
        item["name"]: ((item.get("resources") or {}).get("limits") or {}).get("memory")
        for kind in ("initContainers", "containers")
        for item in spec(obj).get(kind) or ()
    }
    for kind in ("initContainerStatuses", "containerStatuses"):
        for item in status(obj).get(kind) or ():
            state = item.get("state") or {}
            waiting = state.get("waiting") or {}
            yield Container(
                name=item["name"],
                image=str(item.get("image") or ""),
                memory_limit=str(limits.get(item["name"]) or ""),
                running="running" in state,
                ended=_termination(state.get("terminated")),
                last=_termination((item.get("lastState") or {}).get("terminated")),
                waiting_reason=str(waiting.get("reason") or ""),
                waiting_message=str(waiting.get("message") or ""),
                restarts=int(item.get("restartCount") or 0),
                init=kind == "initContainerStatuses",
            )


def _termination(state: Json | None) -> Termination | None:
    if not state:
        return None
    return Termination(
        exit_code=int(state.get("exitCode") or 0),
        reason=str(state.get("reason") or ""),
        message=str(state.get("message") or ""),
        started_at=str(state.get("startedAt") or ""),
        finished_at=str(state.get("finishedAt") or ""),
    )
