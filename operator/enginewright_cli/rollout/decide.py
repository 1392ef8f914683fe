"""What a user's rollback or promotion writes into a model, and why it is refused."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from enginewright.api.conditions import StatusReason
from enginewright.api.inference_model import InferenceModel
from enginewright.api.inference_model_status import TargetPhase
from enginewright.manifests.labels import PROMOTE, ROLLBACK
from enginewright.observed.revisions import RevisionView
from enginewright.plan.history.outcomes import list_promoted

from enginewright_cli.reporting import Refused

_DIGEST: Final = 12  # characters


@dataclass(frozen=True)
class Decision:
    """Annotations to set, or with None to remove, and a sentence about them."""

    annotations: Mapping[str, str | None]
    message: str
    notes: tuple[str, ...] = ()


def rollback(
    model: InferenceModel, revisions: Sequence[RevisionView], to: str | None, now: datetime
) -> Decision:
    """Return the rollback of the new revision, else of the active one, by default to the last good. Raises Refused."""
    _refuse_unseen(model)
    status = model.status
    target = status.target.revision if status.target else ""
    active = status.active.revision if status.active else ""
    leaves = target or status.revision or active
    if not leaves:
        raise Refused("no revision serves, and none is being brought up")
    readable = [revision.revision for revision in revisions if revision.kept]
    if to is not None:
        _refuse_target(to, leaves, "" if target else active, readable, revisions, now)
    elif not target or not active:
        earlier = (item for item in list_promoted(revisions) if item in readable)
        to = next((item for item in earlier if item not in (leaves, active)), None)
        if to is None:
            raise Refused(f"there is no earlier good revision; {_list_revisions(revisions, now)}")
    goes_to = to or active
    return Decision(
        {ROLLBACK: f"{leaves} {to}" if to else leaves, PROMOTE: None},
        f"revision {leaves} is rejected, and {goes_to} "
        + ("keeps serving" if goes_to == active else "replaces the one that serves"),
        tuple(_notes_on(status.revision, leaves, goes_to, revisions)),
    )


def promote(model: InferenceModel, revisions: Sequence[RevisionView]) -> Decision:
    """Return the promotion of a new or rejected revision, or of one held for its images or backends. Raises Refused."""
    _refuse_unseen(model)
    status, target = model.status, model.status.target
    slower = status.failed_choice.revision if status.failed_choice else ""
    revision = target.revision if target else _find_rejected(model, revisions) or slower
    if not revision:
        active = status.active.revision if status.active else ""
        serves = f"revision {active} serves" if active else "no revision serves"
        raise Refused(f"no revision is being brought up, and none was rejected: {serves}")
    held = target if target and target.phase is TargetPhase.HELD else None
    kept = status.images if not target and status.images else None
    for item in (held, kept):
        if item and item.revision == revision and item.reason == StatusReason.SIGNATURE_CHANGED:
            raise Refused(
                f"revision {revision} is held, and a promotion does not change that: {item.message};"
                " if all clients are prepared, set spec.rollout.allowSignatureChange: true"
            )
    paused = model.spec.rollout.paused
    return Decision(
        {PROMOTE: revision, ROLLBACK: None},
        f"revision {revision} replaces the one that serves, without further analysis",
        ("the rollout is paused: it continues after `enginewright resume`",) if paused else (),
    )


def describe_revision(revision: RevisionView, now: datetime) -> str:
    """Return a revision with its outcome, age, model digest and images."""
    outcome = revision.outcome.state if revision.outcome else "no outcome"
    parts = [outcome, f"{age(revision.created, now)} old"]
    if kept := revision.kept:
        images = sorted({device_class.image for device_class in kept.snapshot.classes})
        parts += [f"model {kept.snapshot.model_digest[:_DIGEST]}", *images]
    else:
        parts.append("cannot be read: stored by another version")
    return f"{revision.revision} ({', '.join(parts)})"


def age(since: str, now: datetime) -> str:
    """Return how long ago a moment in RFC 3339 was, such as 3d, as kubectl writes it."""
    try:
        seconds = max(0, int((now - datetime.fromisoformat(since)).total_seconds()))
    except ValueError:
        return "?"
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _refuse_unseen(model: InferenceModel) -> None:
    seen = model.status.observed_generation
    if seen < model.metadata.generation:
        of = f"status of {seen}" if seen > 0 else "no status yet"
        raise Refused(
            f"the operator has not seen the latest spec yet (generation {model.metadata.generation},"
            f" {of}): wait, or check that it runs"
        )


def _refuse_target(
    to: str,
    leaves: str,
    active: str,
    readable: Sequence[str],
    revisions: Sequence[RevisionView],
    now: datetime,
) -> None:
    if to not in readable:
        raise Refused(f"revision {to} is unknown; {_list_revisions(revisions, now)}")
    if to == active:
        raise Refused(f"revision {to} is the active one")
    if to == leaves:
        raise Refused(f"revision {to} is the one to be rolled back")


def _list_revisions(revisions: Sequence[RevisionView], now: datetime) -> str:
    texts = "; ".join(describe_revision(revision, now) for revision in revisions)
    return f"known revisions: {texts}" if texts else "there are no revisions"


def _notes_on(
    requested: str, leaves: str, goes_to: str, revisions: Sequence[RevisionView]
) -> list[str]:
    notes = []
    if leaves == requested:
        until = "until the spec changes, or until `enginewright promote`"
        notes.append(f"the spec still asks for {leaves}: it stays rejected {until}")
    outcome = next(
        (revision.outcome for revision in revisions if revision.revision == goes_to), None
    )
    if outcome and outcome.state != "Promoted":
        notes.append(f"revision {goes_to} failed earlier: {outcome.reason}: {outcome.message}")
    return notes


def _find_rejected(model: InferenceModel, revisions: Sequence[RevisionView]) -> str:
    """Return the revision that the spec requests, or for which the image is kept, if it was rejected; else nothing."""
    requested, images = model.status.revision, model.status.images
    states = {
        revision.revision: revision.outcome.state for revision in revisions if revision.outcome
    }
    if states.get(requested) == "Rejected":
        return requested
    return images.revision if images else ""
