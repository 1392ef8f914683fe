"""Which pods can be asked, about what, and which one may give up its place. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from enginewright.contract.task import ENGINE_STAGES, SIDECAR_PORT
from enginewright.contract.verdict import Verdict
from enginewright.kube.pod_http import PodAddress
from enginewright.manifests.deployment import SIDECAR
from enginewright.manifests.labels import COMPONENT, ENGINE, MODEL, REVISION, model_value

JOB_NAME: Final = "batch.kubernetes.io/job-name"

_BUILD: Final = ENGINE_STAGES[0]
_ENDED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True)
class Question:
    """Where a pod is asked for what."""

    address: PodAddress
    about: Literal["verdict", "progress"]


def question(pod: Mapping[str, Any]) -> Question | None:
    """Return what the pod can be asked now; None while the container that answers does not run."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels = metadata.get("labels") or {}
    ip = status.get("podIP")
    if not ip or metadata.get("deletionTimestamp") or status.get("phase") in _ENDED:
        return None
    address = PodAddress(metadata["namespace"], metadata["name"], ip, SIDECAR_PORT)
    component = labels.get(COMPONENT)
    if component == "serve" and labels.get(MODEL) and _runs(status, SIDECAR):
        return Question(address, "verdict")
    if component == "engine" and labels.get(ENGINE) and _runs(status, _BUILD):
        return Question(address, "progress")
    return None


def rolling_out(deployment: Mapping[str, Any]) -> bool:
    """Tell whether a Deployment replaces its pods and has not given up."""
    status = deployment.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("type") == "Progressing" and condition.get("status") == "False":
            return False
    wanted = (deployment.get("spec") or {}).get("replicas", 1)
    counts = (status.get(name) or 0 for name in ("replicas", "updatedReplicas"))
    return status.get("observedGeneration", 0) < deployment["metadata"].get("generation", 0) or any(
        count != wanted for count in counts
    )


def speaks_for(verdict: Verdict, pod: Mapping[str, Any]) -> bool:
    """Tell whether the verdict is this pod's: its address may have been another one's before."""
    labels = pod["metadata"].get("labels") or {}
    return (
        model_value(verdict.model) == labels.get(MODEL) and labels.get(REVISION) == verdict.revision
    )


@dataclass(frozen=True)
class Served:
    """One serving pod of a model, as the choice of `releasable` sees it."""

    uid: str
    name: str
    accelerator_class: str
    ready: bool
    verdict: Verdict | None  # None: not known


def releasable(pods: Iterable[Served], before: str | None) -> str | None:
    """Return the pod of a model that may become unready for its broken promise; None: none may.

    Design 7: never the last good one. At most one at a time, and only while another ready pod of its
    class keeps its promise. The one that was released `before` stays so: it would come back else.
    """
    every = tuple(pods)
    good = {
        pod.accelerator_class
        for pod in every
        if pod.ready
        and pod.verdict is not None
        and pod.verdict.ready
        and pod.verdict.fallback is not None
        and not pod.verdict.fallback.broken
    }
    broken = [
        pod
        for pod in every
        if pod.accelerator_class in good
        and pod.verdict is not None
        and pod.verdict.admitted  # one that never was has no place to give up
        and pod.verdict.fallback is not None
        and pod.verdict.fallback.broken
    ]
    # After a restart nothing is known of before; then it is the one that is unready already.
    broken.sort(key=lambda pod: (pod.uid != before, pod.ready, pod.name))
    return broken[0].uid if broken else None


def _runs(status: Mapping[str, Any], container: str) -> bool:
    statuses = (
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    )
    return any(
        each.get("name") == container and "running" in (each.get("state") or {})
        for each in statuses
    )
