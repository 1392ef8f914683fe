"""Which pods are polled, for what, and which one may become unready. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, Self

from enginewright_contract.task import ENGINE_STAGES, SIDECAR, SIDECAR_PORT
from enginewright_contract.verdict import Verdict

from enginewright.kube.pod_http import PodAddress
from enginewright.manifests.labels import (
    CANARY,
    CLASS,
    COMPONENT,
    ENGINE,
    MODEL,
    REVISION,
    SERVE,
    model_value,
)
from enginewright.observed.pods import PodView

_BUILD: Final = ENGINE_STAGES[0]


@dataclass(frozen=True)
class PollTarget:
    """Address of a pod, and what to poll it for."""

    address: PodAddress
    kind: Literal["verdict", "progress"]


def poll_target(pod: PodView) -> PollTarget | None:
    """Return what the pod can be polled for now, or None while its polled container does not run."""
    if not pod.ip or pod.leaving:
        return None
    address = PodAddress(pod.namespace, pod.name, pod.ip, SIDECAR_PORT)
    component = pod.label(COMPONENT)
    if component in (SERVE, CANARY) and pod.label(MODEL) and _runs(pod, SIDECAR):
        return PollTarget(address, "verdict")
    if component == "engine" and pod.label(ENGINE) and _runs(pod, _BUILD):
        return PollTarget(address, "progress")
    return None


def is_verdict_of(verdict: Verdict, pod: PodView) -> bool:
    """Return whether the verdict is this pod's: its address may have been reused."""
    return (
        model_value(verdict.model) == pod.label(MODEL) and pod.label(REVISION) == verdict.revision
    )


@dataclass(frozen=True)
class ServingPod:
    """The facts about a serving pod that `releasable` needs."""

    uid: str
    name: str
    accelerator_class: str
    revision: str
    stays: bool  # it gets requests, and is no canary
    ready: bool
    verdict: Verdict | None  # once it is polled

    @classmethod
    def of(cls, pod: PodView, verdict: Verdict | None) -> Self:
        """Return the facts about `pod`."""
        return cls(
            uid=pod.uid,
            name=pod.name,
            accelerator_class=pod.label(CLASS),
            revision=pod.label(REVISION),
            stays=pod.label(COMPONENT) == SERVE and not pod.is_canary,
            ready=pod.ready,
            verdict=verdict,
        )

    @property
    def group(self) -> tuple[str, str]:
        """Return what pods have in common that can replace each other."""
        return self.accelerator_class, self.revision


def may_be_released(verdict: Verdict) -> bool:
    """Return whether the pod would become unready if it were released."""
    fallback = verdict.fallback
    return fallback is not None and fallback.broken and fallback.policy == "Forbid"


def releasable(pods: Iterable[ServingPod], before: str | None) -> str | None:
    """Return the pod of a model that may become unready for its broken promise, if any.

    At most one at a time, and only while another ready pod of its class and revision gets requests and keeps
    its promise: a canary may get none, or be rejected. The one released `before` stays released: else it
    would become ready again.
    """
    every = tuple(pods)
    compliant = {
        pod.group
        for pod in every
        if pod.ready
        and pod.stays
        and pod.verdict is not None
        and pod.verdict.ready
        and pod.verdict.fallback is not None
        and not pod.verdict.fallback.broken
    }
    broken = [
        pod
        for pod in every
        if pod.group in compliant
        and pod.verdict is not None
        and pod.verdict.admitted  # else it gets no requests anyway
        and may_be_released(pod.verdict)
    ]
    # After a restart `before` is not known: then an unready pod is preferred.
    broken.sort(key=lambda pod: (pod.uid != before, pod.ready, pod.name))
    return broken[0].uid if broken else None


def _runs(pod: PodView, container: str) -> bool:
    status = pod.container(container)
    return status is not None and status.running
