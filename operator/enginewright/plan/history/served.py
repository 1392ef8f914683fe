"""Which revision serves, and which one has last served with all its pods: the one to which a failed rollout returns.

The status says so. If it was lost, or names a revision that is unknown, the outcomes that are kept with
the revisions do.
"""

from collections.abc import Iterable, Mapping

from enginewright.api.inference_model_status import ServingClass, ServingState
from enginewright.manifests.labels import COMPONENT, REVISION, SERVE
from enginewright.manifests.snapshot import ClassSnapshot, Revision
from enginewright.observed.deployments import DeploymentView
from enginewright.observed.pods import PodView
from enginewright.plan.history.outcomes import promoted
from enginewright.plan.types import Facts


def served_before(facts: Facts) -> ServingState | None:
    """Return what has served until now; None: nothing has, also if its pods have never served."""
    serving = facts.model.status.serving
    if serving is None:
        return _recovered(facts)
    if serving.unproven:
        return None
    is_known = any(each.kept and each.revision == serving.last_complete for each in facts.revisions)
    return serving if is_known else _recovered(facts) or serving


def serving_now(
    facts: Facts,
    applied: Revision,
    rolled_out: bool,
    known: Mapping[str, Revision],
    deployments: Mapping[str, DeploymentView],
    counts: Mapping[str, int],
) -> ServingState | None:
    """Return the serving revision: the last complete one, unless only pods of another one are ready."""
    before = served_before(facts)
    if before is None and not rolled_out:
        return None
    last_complete = applied.name if rolled_out or before is None else before.last_complete
    name = last_complete
    if before and not rolled_out:
        ready = ready_revisions(facts.pods)
        others = sorted(ready & known.keys())  # of a class that moved, and is not applied any more
        candidates = (last_complete, before.revision, applied.name, *others)
        name = next((each for each in candidates if each in ready), before.revision)
    revision = applied if name == applied.name else known.get(name)
    if revision is None:
        return before
    return _state(
        revision,
        last_rolled_out="" if name == last_complete else last_complete,
        classes=tuple(
            _serving_class(each, deployments.get(each.name), counts)
            for each in revision.snapshot.classes
        ),
    )


def ready_revisions(pods: Iterable[PodView]) -> set[str]:
    """Return the revisions of the ready pods."""
    return {
        pod.label(REVISION)
        for pod in pods
        if pod.label(COMPONENT) == SERVE and pod.ready and not pod.leaving
    }


def _recovered(facts: Facts) -> ServingState | None:
    """Return the revision that was promoted last, of those whose pods serve; of all, if no pods serve.

    Those that no Deployment has any more are being replaced, and come first. What a Deployment has is no
    evidence: a revision that served earlier may be returning, and has not served with all its pods yet.
    """
    known = {each.revision: each.kept for each in facts.revisions if each.kept}
    names = [name for name in promoted(facts.revisions) if name in known]
    carried = {each.revision for each in facts.deployments}
    ready = ready_revisions(pod for pod in facts.pods if not pod.is_canary)
    for there in (ready - carried, ready, set(names)):
        for name in names:
            if name in there:
                return _state(known[name])
    return None


def _state(
    revision: Revision, *, last_rolled_out: str = "", classes: tuple[ServingClass, ...] = ()
) -> ServingState:
    snapshot = revision.snapshot
    return ServingState(
        revision=revision.name,
        prepared_key=snapshot.prepared_key,
        model_digest=snapshot.model_digest,
        backend=snapshot.classes[0].backend,
        last_rolled_out=last_rolled_out,
        classes=classes,
    )


def _serving_class(
    accelerator: ClassSnapshot, existing: DeploymentView | None, counts: Mapping[str, int]
) -> ServingClass:
    return ServingClass(
        class_name=accelerator.name,
        backend=accelerator.backend,
        interim=accelerator.interim,
        replicas=counts.get(accelerator.name, existing.desired if existing else 0),
        ready_replicas=existing.ready_pods if existing else 0,
    )


def serving_keys(facts: Facts) -> set[str | None]:
    """Return the keys of engines that new pods load: without them they could not start."""
    status = facts.model.status
    known = (status.serving, status.applied)
    names = {each.revision for each in known if each}
    kept = [each.kept for each in facts.revisions if each.kept and each.revision in names]
    return {one.engine_key for each in kept for one in each.snapshot.classes}
