"""What became of a model's revisions, kept with them so that it outlives the operator and the spec; and which one serves.

The status says which one serves, and which has last served with all its pods, to which a failed rollout returns.
If the status was lost, or names a revision that is unknown, the outcomes that are kept with the revisions say it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

from enginewright_contract.task import Promise

from enginewright.api.conditions import ConditionType, StatusReason
from enginewright.api.inference_model_status import RolloutFailure, ServingClass, ServingState
from enginewright.api.scalars import whole_second
from enginewright.manifests.labels import COMPONENT, PROMOTE, REVISION, ROLLBACK, SERVE
from enginewright.manifests.outcome import RevisionOutcome
from enginewright.manifests.snapshot import Revision, Snapshot
from enginewright.observed.deployments import DeploymentView
from enginewright.observed.pods import PodView
from enginewright.observed.revisions import RevisionView
from enginewright.plan.history.spec_hash import is_of_spec, spec_hash
from enginewright.plan.types import Facts, MetadataIntent

PROVEN_WINDOW: Final = timedelta(hours=24)  # after a revision has served
_BEFORE: Final = timedelta(seconds=1)  # by which a revision ends before the next one is active


def find_rejection(facts: Facts, revision: str) -> RolloutFailure | None:
    """Return why a revision was rejected for the current spec, if it was."""
    outcome = _outcomes(facts).get(revision)
    return _failure(revision, outcome) if outcome and outcome.state == "Rejected" else None


def find_reported_rejection(facts: Facts, revision: str) -> RolloutFailure | None:
    """Return the same, also as the status reports it: the API server may have refused the record in the revision."""
    status = facts.model.status
    is_rolled_back = any(
        condition.type == ConditionType.ROLLED_BACK and condition.status == "True"
        for condition in status.conditions
    )
    last = status.last_failure if is_rolled_back else None
    return find_rejection(facts, revision) or (last if last and last.revision == revision else None)


def is_rejected_for_spec(facts: Facts, revision: RevisionView) -> bool:
    """Return whether a revision was rejected for the current spec, with any images."""
    outcome = revision.outcome
    if outcome is None or outcome.state != "Rejected":
        return False
    return is_of_spec(facts, revision.revision, outcome.spec_hash)


def rejections_of(facts: Facts, matches: Callable[[Snapshot], bool]) -> Iterator[RolloutFailure]:
    """Yield why revisions of the current spec were rejected that match."""
    for revision in facts.revisions:
        if (
            revision.outcome
            and is_rejected_for_spec(facts, revision)
            and revision.kept
            and matches(revision.kept.snapshot)
        ):
            yield _failure(revision.revision, revision.outcome)


def rejection_by_user(facts: Facts, revision: str) -> RolloutFailure | None:
    """Return the rejection of a revision that a user has rolled back, unless it is to be promoted."""
    annotations = facts.model.metadata.annotations
    if annotations.get(ROLLBACK, "").partition(" ")[0] == revision:
        return RolloutFailure(
            revision=revision,
            reason=StatusReason.ROLLED_BACK_BY_USER,
            message=f"the annotation {ROLLBACK} rejects it",
        )
    if annotations.get(PROMOTE) == revision:
        return None
    rejection = find_rejection(facts, revision)
    by_user = rejection and rejection.reason == StatusReason.ROLLED_BACK_BY_USER
    return rejection if by_user else None


def rejection_of_spec_by_user(facts: Facts, revision: str, active: str) -> RolloutFailure | None:
    """Return the rejection by a user that holds for `revision` as well, if there is one.

    A user who went back to an active revision of another spec rejected the spec, with any images and classes.
    """
    serves = _outcomes(facts).get(active)
    hashed = serves.spec_hash if serves else ""
    of_another_spec = hashed and not is_of_spec(facts, active, hashed)
    if not of_another_spec or facts.model.metadata.annotations.get(PROMOTE) == revision:
        return None
    others = (view for view in facts.revisions if _has_other_inputs(facts, view))
    failures = (_failure(view.revision, view.outcome) for view in others if view.outcome)
    by_user = StatusReason.ROLLED_BACK_BY_USER
    return next((failure for failure in failures if failure.reason == by_user), None)


def list_promoted(revisions: Iterable[RevisionView]) -> list[str]:
    """Return the revisions that have served with all their pods, the latest first."""
    served = [
        (view.outcome.at, view.number, view.revision)
        for view in revisions
        if view.outcome and view.outcome.state == "Promoted"
    ]
    return [revision for _, _, revision in sorted(served, reverse=True)]


def was_proven(facts: Facts, revision: str) -> bool:
    """Return whether a revision has served with all its pods until recently."""
    outcome = _outcomes(facts).get(revision)
    if outcome is None or outcome.state != "Promoted":
        return False
    return timedelta() <= facts.now - outcome.at <= PROVEN_WINDOW


def outcomes(
    facts: Facts, requested: str | None, active: str, before: str, rejection: RolloutFailure | None
) -> Iterator[MetadataIntent]:
    """Yield the outcomes to record now.

    `requested` is the revision that the spec requests, if known, and `rejection` why it is not rolled out; `active` the
    last one that was rolled out with all its pods, from now on, and `before` the same until now, if any.
    """
    now, hashed = whole_second(facts.now), spec_hash(facts.model.spec)
    target = facts.model.status.target
    replaces = before not in ("", active)
    begun = (_find_begin(facts, active, before) or now) if replaces else now
    # the active one first, so that its time remains the same if the other is not written
    for revision in sorted(facts.revisions, key=lambda view: view.revision != active):
        old = revision.outcome
        state = old.state if old else None
        answers = target.answers if target and target.revision == revision.revision else ""
        new = None
        if rejection is not None and revision.revision == requested:
            if state != "Rejected":
                new = RevisionOutcome(
                    state="Rejected",
                    at=now,
                    stage=rejection.stage,
                    reason=rejection.reason,
                    message=rejection.message,
                    exit_code=rejection.exit_code,
                    spec_hash=hashed,
                )
            # the spec may have lost removed fields
            elif old and is_rejected_for_spec(facts, revision):
                new = old.model_copy(update={"spec_hash": hashed})
        elif revision.revision == active:
            requested_by = hashed if requested == active else ""
            new = _of_active(old, begun, requested_by, answers, begins=replaces)
        elif revision.revision == before:  # it has served until now
            if state != "Rejected":  # else it is replaced because it failed
                requested_by = old.spec_hash if old else ""
                kept = old.answers if old else ""
                new = RevisionOutcome(
                    state="Promoted",
                    at=begun - _BEFORE,
                    spec_hash=requested_by,
                    answers=kept,
                )
        elif old and state == "Rejected" and requested and not _has_other_inputs(facts, revision):
            new = old.model_copy(update={"state": "Superseded"})
        if new is not None and new != old:
            yield MetadataIntent(
                "apps/v1",
                "ControllerRevision",
                revision.namespace,
                revision.name,
                revision.uid,
                annotations=new.annotations(),
            )


def _find_begin(facts: Facts, active: str, before: str) -> datetime | None:
    """Return since when `active` is recorded to serve instead of `before`, if it is.

    The status, which is written later, may not have it: the operator was stopped in between.
    """
    begins, ended = (_outcomes(facts).get(item) for item in (active, before))
    if begins is None or ended is None or begins.state != "Promoted":
        return None
    return begins.at if begins.at > ended.at else None


def _of_active(
    outcome: RevisionOutcome | None,
    begun: datetime,
    requested_by: str,
    answers: str,
    *,
    begins: bool,
) -> RevisionOutcome | None:
    """Return the outcome of the active revision; `requested_by` is the hash of the spec if that requests it.

    It `begins` if another one was active until now, so that the latest is the active one.
    """
    if outcome and outcome.state == "Rejected" and not requested_by:
        return outcome  # while it served; it is not until it is rolled out again
    if outcome is None or outcome.state != "Promoted":
        outcome = RevisionOutcome(state="Promoted", at=begun)
    elif begins:
        outcome = outcome.model_copy(update={"at": begun})
    if answers:
        outcome = outcome.model_copy(update={"answers": answers})
    return outcome.model_copy(update={"spec_hash": requested_by}) if requested_by else outcome


def _has_other_inputs(facts: Facts, revision: RevisionView) -> bool:
    """Return whether the current spec was rejected with images or classes that it is not planned with now."""
    if revision.kept is None or not is_rejected_for_spec(facts, revision):
        return False
    classes = revision.kept.snapshot.classes
    if not {one.image for one in classes} <= {*facts.config.images.values()}:
        return True
    specs = {device_class.metadata.name: device_class.spec for device_class in facts.classes}
    there = ((one, specs[one.name]) for one in classes if one.name in specs)
    return any(one.restore(spec) != spec for one, spec in there)


def _failure(revision: str, outcome: RevisionOutcome) -> RolloutFailure:
    return RolloutFailure(
        revision=revision,
        stage=outcome.stage,
        reason=outcome.reason,
        message=outcome.message,
        exit_code=outcome.exit_code,
    )


def promise_of(facts: Facts, revision: str) -> Promise | None:
    """Return where the nodes of a revision may run, if its ControllerRevision is known."""
    kept = facts.kept.get(revision)
    return kept.snapshot.promise if kept else None


def _outcomes(facts: Facts) -> dict[str, RevisionOutcome]:
    return {view.revision: view.outcome for view in facts.revisions if view.outcome}


def find_serving(facts: Facts) -> ServingState | None:
    """Return what has served until now, if the pods of any revision have."""
    serving = facts.model.status.serving
    if serving is None:
        return _recover_serving(facts)
    if serving.unproven:
        return None
    return serving if serving.last_complete in facts.kept else _recover_serving(facts) or serving


def active_snapshot(facts: Facts, serving: ServingState | None) -> Snapshot | None:
    """Return the active revision, or if that is not known, the one that has available pods."""
    carried = (deployment.revision for deployment in facts.deployments if deployment.available)
    names = carried if serving is None else (serving.last_complete,)
    return next((facts.kept[name].snapshot for name in names if name in facts.kept), None)


def serving_now(
    facts: Facts,
    applied: Revision,
    rolled_out: bool,
    stored: Mapping[str, Revision],
    deployments: Mapping[str, DeploymentView],
    counts: Mapping[str, int],
) -> ServingState | None:
    """Return the serving revision: the last complete one, unless only pods of another one are ready."""
    before = find_serving(facts)
    if before is None and not rolled_out:
        return None
    last_complete = applied.name if rolled_out or before is None else before.last_complete
    name = last_complete
    if before and not rolled_out:
        ready = ready_revisions(facts.pods)
        others = sorted(ready & stored.keys())  # of a class that moved, and is not applied any more
        candidates = (last_complete, before.revision, applied.name, *others)
        name = next((candidate for candidate in candidates if candidate in ready), before.revision)
    revision = applied if name == applied.name else stored.get(name)
    if revision is None:
        return before
    return _state(
        revision,
        last_rolled_out="" if name == last_complete else last_complete,
        classes=tuple(
            ServingClass(
                class_name=device_class.name,
                backend=device_class.backend,
                interim=device_class.interim,
                replicas=counts.get(device_class.name, existing.desired if existing else 0),
                ready_replicas=existing.ready_pods if existing else 0,
            )
            for device_class in revision.snapshot.classes
            for existing in (deployments.get(device_class.name),)
        ),
    )


def ready_revisions(pods: Iterable[PodView]) -> set[str]:
    """Return the revisions of the ready pods."""
    return {
        pod.label(REVISION)
        for pod in pods
        if pod.label(COMPONENT) == SERVE and pod.ready and not pod.leaving
    }


def _recover_serving(facts: Facts) -> ServingState | None:
    """Return the revision that was promoted last, of those whose pods serve; of all, if no pods serve.

    Those that no Deployment has any more are being replaced, and come first. What a Deployment has is no
    evidence: a revision that served earlier may be returning, and has not served with all its pods yet.
    """
    names = [name for name in list_promoted(facts.revisions) if name in facts.kept]
    carried = {deployment.revision for deployment in facts.deployments}
    ready = ready_revisions(pod for pod in facts.pods if not pod.is_canary)
    for there in (ready - carried, ready, set(names)):
        for name in names:
            if name in there:
                return _state(facts.kept[name])
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


def serving_keys(facts: Facts) -> set[str | None]:
    """Return the keys of engines that new pods load: without them they could not start."""
    status, kept = facts.model.status, facts.kept
    names = {item.revision for item in (status.serving, status.applied) if item} & kept.keys()
    return {one.engine_key for name in names for one in kept[name].snapshot.classes}
