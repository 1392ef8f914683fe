"""What became of a model's revisions: kept with them, so that it outlives the operator and the spec."""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Final

from enginewright.api.conditions import StatusReason
from enginewright.api.inference_model_status import RolloutFailure
from enginewright.api.scalars import whole_second
from enginewright.manifests.labels import PROMOTE, ROLLBACK
from enginewright.manifests.outcome import RevisionOutcome
from enginewright.observed.revisions import RevisionView
from enginewright.plan.types import Facts, MetadataIntent

PROVEN_WINDOW: Final = timedelta(hours=24)  # after a revision has served


def recorded_rejection(facts: Facts, revision: str) -> RolloutFailure | None:
    """Return why a revision was rejected for the current spec; None: it was not."""
    outcome = _outcomes(facts).get(revision)
    if outcome is None or outcome.state != "Rejected":
        return None
    return RolloutFailure(
        revision=revision,
        stage=outcome.stage,
        reason=outcome.reason,
        message=outcome.message,
        exit_code=outcome.exit_code,
    )


def rejection_by_user(facts: Facts, revision: str) -> RolloutFailure | None:
    """Return the rejection of a revision that a user has rolled back; None: none has, or it is to be promoted."""
    annotations = facts.model.metadata.annotations
    if annotations.get(ROLLBACK, "").partition(" ")[0] == revision:
        return RolloutFailure(
            revision=revision,
            reason=StatusReason.ROLLED_BACK_BY_USER,
            message=f"the annotation {ROLLBACK} rejects it",
        )
    if annotations.get(PROMOTE) == revision:
        return None
    known = recorded_rejection(facts, revision)
    return known if known and known.reason == StatusReason.ROLLED_BACK_BY_USER else None


def promoted(revisions: Iterable[RevisionView]) -> list[str]:
    """Return the revisions that have served with all their pods, the latest first."""
    found = [
        (each.outcome.at, each.number, each.revision)
        for each in revisions
        if each.outcome and each.outcome.state == "Promoted"
    ]
    return [revision for _, _, revision in sorted(found, reverse=True)]


def was_proven(facts: Facts, revision: str) -> bool:
    """Return whether a revision has served with all its pods until recently."""
    outcome = _outcomes(facts).get(revision)
    return (
        outcome is not None
        and outcome.state == "Promoted"
        and timedelta() <= facts.now - outcome.at <= PROVEN_WINDOW
    )


def outcomes(
    facts: Facts,
    wanted: str | None,
    active: str,
    before: str,
    rejection: RolloutFailure | None,
) -> Iterator[MetadataIntent]:
    """Yield the outcomes to record now.

    Args:
        facts: the model and its cluster.
        wanted: the revision that the spec requests; None: not known.
        active: the last one that was rolled out with all its pods, from now on; empty: none.
        before: the same until now.
        rejection: why `wanted` is not rolled out.
    """
    now = whole_second(facts.now)
    for each in facts.revisions:
        known = each.outcome
        state = known.state if known else None
        new = None
        if rejection is not None and each.revision == wanted:
            if state != "Rejected":
                new = RevisionOutcome(
                    state="Rejected",
                    at=now,
                    stage=rejection.stage,
                    reason=rejection.reason,
                    message=rejection.message,
                    exit_code=rejection.exit_code,
                )
        elif each.revision == active:
            # one that was rejected while it served is not, until it is rolled out again
            if state != "Promoted" and (state != "Rejected" or wanted == active):
                new = RevisionOutcome(state="Promoted", at=now)
        elif each.revision == before:  # it has served until now
            if state != "Rejected":  # else it is replaced because it failed
                new = RevisionOutcome(state="Promoted", at=now)
        elif known and state == "Rejected" and wanted is not None:
            new = known.model_copy(update={"state": "Superseded"})
        if new is not None and new != known:
            yield _intent(each, new)


def _outcomes(facts: Facts) -> dict[str, RevisionOutcome]:
    return {each.revision: each.outcome for each in facts.revisions if each.outcome}


def _intent(revision: RevisionView, outcome: RevisionOutcome) -> MetadataIntent:
    return MetadataIntent(
        "apps/v1",
        "ControllerRevision",
        revision.namespace,
        revision.name,
        revision.uid,
        annotations=outcome.annotations(),
    )
