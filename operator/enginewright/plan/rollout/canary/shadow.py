"""A share of the clients' requests that a canary answers too, while it is verified and gets no others.

The serving pods' sidecars send them, as annotations of the pods order. These expire, and are removed
once the verification ends.
"""

from collections.abc import Collection, Iterator
from typing import Final

from enginewright_contract.shadow import (
    SHADOW_ANNOTATION,
    read_order,
    shadow_order,
    shadow_token,
)

from enginewright.api.inference_model import InferenceModelSpec
from enginewright.api.scalars import share
from enginewright.manifests.labels import CLASS, COMPONENT, REVISION, SERVE
from enginewright.manifests.serving_pod import takes_shadow_orders
from enginewright.manifests.snapshot import Revision
from enginewright.observed.pods import PodView
from enginewright.plan.pods import serving_pods
from enginewright.plan.rollout.failures import pods_of
from enginewright.plan.types import Facts, MetadataIntent

WAITS: Final = "shadow: answers of both revisions to clients' requests"


def unavailable(spec: InferenceModelSpec, stable: Revision | None) -> str:
    """Return why no requests can be compared although the spec asks for it, as a sentence, if so."""
    if (
        not _share(spec)
        or stable is None
        or any(map(takes_shadow_orders, stable.templates.values()))
    ):
        return ""
    return (
        f"canary.shadow has no effect: revision {stable.name} was created by an earlier version"
        " of the operator"
    )


def is_compared(facts: Facts, stable: Revision | None, revision: str) -> bool:
    """Return whether enough requests were compared with `revision`, or none can or should be."""
    if not _share(facts.model.spec) or stable is None or unavailable(facts.model.spec, stable):
        return True
    measured = (facts.measurements.get(pod.name) for pod in serving_pods(facts.pods, stable.name))
    shadows = (
        measurements.shadow for measurements in measured if measurements and measurements.shadow
    )
    compared = sum(shadow.compared for shadow in shadows if shadow.revision == revision)
    return compared >= facts.model.spec.rollout.canary.min_samples


def orders(facts: Facts, stable: Revision | None, revision: str) -> Iterator[MetadataIntent]:
    """Yield the annotations by which serving pods send requests to ready canary pods of `revision`, or to none for ""."""
    sent, now = _share(facts.model.spec), facts.now.timestamp()
    token = shadow_token(facts.model.metadata.uid)
    for pod in facts.pods:
        if pod.label(COMPONENT) != SERVE or pod.is_canary or pod.leaving:
            continue
        before = str(pod.annotations.get(SHADOW_ANNOTATION) or "")
        addresses = _addresses(facts.pods, revision, pod.label(CLASS)) if revision and sent else []
        annotation = ""
        if addresses and stable is not None and _sends(stable, pod):
            order = shadow_order(sent, now, revision, addresses, read_order(before), token=token)
            annotation = order.annotation()
        if annotation != before:
            yield MetadataIntent(
                "v1",
                "Pod",
                pod.namespace,
                pod.name,
                pod.uid,
                annotations={SHADOW_ANNOTATION: annotation},
            )


def _share(spec: InferenceModelSpec) -> float:
    return share(spec.rollout.canary.shadow) or 0.0


def _addresses(pods: Collection[PodView], revision: str, accelerator: str) -> list[str]:
    return [
        pod.ip
        for pod in pods_of(pods, revision)
        if pod.is_canary and pod.label(CLASS) == accelerator and pod.ready and pod.ip
    ]


def _sends(stable: Revision, pod: PodView) -> bool:
    """Return whether the pod's sidecar reads the annotation."""
    template = stable.templates.get(pod.label(CLASS))
    return (
        pod.label(REVISION) == stable.name
        and template is not None
        and takes_shadow_orders(template)
    )
