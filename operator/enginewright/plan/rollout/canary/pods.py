"""Which pods a canary has at each step, which of them get requests, and whether they pass.

For as long as they get requests they serve beside, or instead of, those that will stay.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import ceil

from enginewright.api.inference_model import InferenceModelSpec
from enginewright.api.inference_model_status import TargetPhase
from enginewright.api.scalars import share
from enginewright.manifests.labels import CANARY, CLASS, COMPONENT, REVISION, SERVE
from enginewright.manifests.snapshot import Revision
from enginewright.observed.deployments import DeploymentView
from enginewright.observed.pods import PodView
from enginewright.plan.pods import Failure
from enginewright.plan.rollout.canary.transitions import Stage
from enginewright.plan.rollout.failures import pods_of, refusal_of
from enginewright.plan.rollout.pod_counts import live_counts, replicas_by_class
from enginewright.plan.types import Facts, MetadataIntent, ObjectRef


def canary_pods(pods: Collection[PodView], revision: str) -> list[PodView]:
    """Return the pods of a revision's canary, ready or not."""
    return [pod for pod in pods_of(pods, revision) if pod.is_canary]


def plan_counts(
    facts: Facts, revision: Revision, deployments: Iterable[DeploymentView], step: int
) -> dict[str, int]:
    """Return the canary's pods by class at a step: none on classes on which nothing serves yet.

    In place, they take devices of serving pods, of which one stays, and none from classes with an autoscaler.
    """
    spec = facts.model.spec
    serving = {deployment.accelerator_class: deployment for deployment in deployments}
    names = [device_class.name for device_class in revision.snapshot.classes]
    counts = replicas_by_class(
        spec, [accelerator.class_name for accelerator in spec.accelerators] or names
    )
    live = live_counts(facts, counts, serving)
    in_place = spec.rollout.strategy == "InPlace"
    planned = {}
    for name in names:
        if in_place and name in live:
            continue
        total = live.get(name, counts.get(name, 0))
        most = total - 1 if in_place else total
        count = min(_first_or_share(spec, total, step), most)
        if name in serving and count > 0:
            planned[name] = count
    return planned


def _first_or_share(spec: InferenceModelSpec, total: int, step: int) -> int:
    """Return the canary's pods beside `total` serving ones, or of them if the strategy is InPlace."""
    canary = spec.rollout.canary
    if step <= 1 or not canary.replicas or not canary.steps:
        return canary.replicas
    part = share(canary.steps[min(step, len(canary.steps) + 1) - 2]) or 0.0
    if spec.rollout.strategy == "InPlace":
        return ceil(total * part)
    return total if part >= 0.5 else ceil(total * part / (1 - part))


def is_available(
    facts: Facts, revision: str, pods: Iterable[PodView], planned: Mapping[str, int]
) -> bool:
    """Return whether every pod that the canary should have is ready, as its `pods` themselves show."""
    settled = {
        canary.accelerator_class
        for canary in facts.canaries
        if canary.revision == revision and canary.is_current
    }
    ready = Counter(pod.label(CLASS) for pod in pods if pod.ready)
    return all(name in settled and ready[name] >= count for name, count in planned.items())


def are_known(facts: Facts, pods: Iterable[PodView]) -> bool:
    """Return whether ready canary `pods` have current verdicts: the kubelet may reach sidecars that the operator cannot."""
    polled = facts.verdicts.keys() - facts.silent
    return all(pod.name in polled for pod in pods if pod.ready)


def first_refusal(facts: Facts, pods: Iterable[PodView]) -> Failure | None:
    """Return why a sidecar would not admit one of the canary's `pods` that is ready, unless all pass.

    An admitted pod stays ready when its promise breaks, and not every cause rejects the revision.
    """
    refusals = (refusal_of(facts, pod) for pod in pods if pod.ready)
    return next(filter(None, refusals), None)


def stop_canary(canaries: Collection[DeploymentView], keep: Collection[str]) -> Iterator[ObjectRef]:
    """Yield the canary's Deployments, except those of the classes in `keep`."""
    for canary in canaries:
        if canary.accelerator_class not in keep:
            yield ObjectRef("apps/v1", "Deployment", canary.namespace, canary.name)


def is_behind_service(spec: InferenceModelSpec, stage: Stage) -> bool:
    """Return whether the model's Service selects the canary's pods: with a route, once it is promoted."""
    if stage.phase is TargetPhase.ANALYZING:
        return spec.serving.route is None
    return stage.phase is TargetPhase.PROMOTING


def service_labels(
    pods: Collection[PodView], revision: str, *, admits: bool = True
) -> Iterator[MetadataIntent]:
    """Yield what has the model's Service select the ready canary pods of `revision`, and no others.

    Without `admits`, only those of them that it selects already.
    """
    for pod in pods:
        if not pod.is_canary or pod.leaving:
            continue
        gets_requests = pod.label(REVISION) == revision and (_serves(pod) or (admits and pod.ready))
        component = SERVE if gets_requests else CANARY
        if pod.label(COMPONENT) != component:
            yield MetadataIntent(
                "v1", "Pod", pod.namespace, pod.name, pod.uid, labels={COMPONENT: component}
            )


def serving_canaries(facts: Facts, revision: str, pods: Iterable[PodView]) -> dict[str, int]:
    """Return the canaries whose `pods` may serve until others have replaced them.

    One that waits for a device would take it from those; where they wait for it, a canary may make way for them.
    """
    ready = {pod.label(CLASS) for pod in pods if pod.ready or _serves(pod)}
    may_stay = ready - makes_way(facts, revision)
    return {
        canary.accelerator_class: canary.desired
        for canary in facts.canaries
        if canary.revision == revision and canary.accelerator_class in may_stay
    }


def covering_canaries(facts: Facts, applied: str) -> set[str]:
    """Return the classes whose canary runs the revision that is applied, and serves while too few others do.

    So the only serving pod of a rollback after the promotion outlives an edit, an obstacle and a lost status.
    """
    lacking = _lacks_serving(facts.pods, facts.deployments)
    serving = {pod.label(CLASS) for pod in canary_pods(facts.pods, applied) if _serves(pod)}
    return {
        canary.accelerator_class
        for canary in facts.canaries
        if canary.revision == applied and canary.accelerator_class in serving & lacking
    }


def _lacks_serving(pods: Collection[PodView], deployments: Collection[DeploymentView]) -> set[str]:
    """Return the classes on which fewer pods serve than are asked for, without those of canaries."""
    ready = Counter(
        pod.label(CLASS)
        for pod in pods
        if pod.label(COMPONENT) == SERVE and not pod.is_canary and pod.ready and not pod.leaving
    )
    return {
        deployment.accelerator_class
        for deployment in deployments
        if ready[deployment.accelerator_class] < deployment.desired
    }


def makes_way(facts: Facts, revision: str) -> set[str]:
    """Return the classes whose canary leaves its devices to the pods of `revision` that will stay.

    Those cannot start, perhaps because of it, and without it as many pods serve as are asked for. In
    place they get the devices of pods that end.
    """
    if facts.model.spec.rollout.strategy == "InPlace":
        return set()
    unschedulable = {
        pod.label(CLASS)
        for pod in pods_of(facts.pods, revision)
        if not pod.is_canary and pod.unschedulable
    }
    lacking = {
        deployment.accelerator_class
        for deployment in facts.deployments
        if deployment.revision == revision and deployment.refused
    }
    return (unschedulable | lacking) - _lacks_serving(facts.pods, facts.deployments)


def _serves(pod: PodView) -> bool:
    return pod.label(COMPONENT) == SERVE
