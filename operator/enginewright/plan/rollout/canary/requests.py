"""Which pods of a canary get requests, and for how long they serve beside, or instead of, those that will stay."""

from collections import Counter
from collections.abc import Iterable, Iterator

from enginewright.api.inference_model_status import TargetPhase
from enginewright.manifests.labels import CANARY, CLASS, COMPONENT, REVISION, SERVE
from enginewright.observed.pods import PodView
from enginewright.plan.rollout.canary.pods import canary_pods
from enginewright.plan.rollout.canary.transitions import Stage
from enginewright.plan.rollout.failures import pods_of
from enginewright.plan.types import Facts, MetadataIntent


def is_behind_service(facts: Facts, stage: Stage) -> bool:
    """Return whether the model's Service selects the canary's pods: with a route, once it is promoted."""
    if stage.phase is TargetPhase.ANALYZING:
        return facts.model.spec.serving.route is None
    return stage.phase is TargetPhase.PROMOTING


def service_labels(facts: Facts, revision: str) -> Iterator[MetadataIntent]:
    """Yield what has the model's Service select the ready canary pods of `revision`, and no others."""
    for pod in facts.pods:
        if not pod.is_canary or pod.leaving:
            continue
        gets_requests = pod.label(REVISION) == revision and (pod.ready or _serves(pod))
        component = SERVE if gets_requests else CANARY
        if pod.label(COMPONENT) != component:
            yield MetadataIntent(
                "v1", "Pod", pod.namespace, pod.name, pod.uid, labels={COMPONENT: component}
            )


def serving_canaries(facts: Facts, revision: str, pods: Iterable[PodView]) -> dict[str, int]:
    """Return the canaries whose `pods` may serve until others have replaced them.

    One that waits for a device would take it from those, and where they wait, it may make way for them.
    """
    ready = {pod.label(CLASS) for pod in pods if pod.ready or _serves(pod)}
    may_stay = ready - makes_way(facts, revision)
    return {
        each.accelerator_class: each.desired
        for each in facts.canaries
        if each.revision == revision and each.accelerator_class in may_stay
    }


def covering_canaries(facts: Facts, applied: str) -> set[str]:
    """Return the classes whose canary runs the revision that is applied, and serves while too few others do.

    A rollback after the promotion, whose trial is the only pod that serves, so outlives an edit, an
    obstacle and a lost status.
    """
    lacking = _lacks_serving(facts)
    serving = {pod.label(CLASS) for pod in canary_pods(facts, applied) if _serves(pod)}
    return {
        each.accelerator_class
        for each in facts.canaries
        if each.revision == applied and each.accelerator_class in serving & lacking
    }


def _lacks_serving(facts: Facts) -> set[str]:
    """Return the classes on which fewer pods serve than are asked for, without those of canaries."""
    ready = Counter(
        pod.label(CLASS)
        for pod in facts.pods
        if pod.label(COMPONENT) == SERVE and not pod.is_canary and pod.ready and not pod.leaving
    )
    return {
        each.accelerator_class
        for each in facts.deployments
        if ready[each.accelerator_class] < each.desired
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
        for pod in pods_of(facts, revision)
        if not pod.is_canary and pod.unschedulable
    }
    lacking = {
        each.accelerator_class
        for each in facts.deployments
        if each.revision == revision and each.refused
    }
    return (unschedulable | lacking) - _lacks_serving(facts)


def _serves(pod: PodView) -> bool:
    return pod.label(COMPONENT) == SERVE
