"""ControllerRevisions: the revisions stored in them."""

from dataclasses import dataclass

from enginewright.manifests.labels import REVISION
from enginewright.manifests.outcome import RevisionOutcome
from enginewright.manifests.snapshot import Revision
from enginewright.observed.base import Json, ObservedObject, identity


@dataclass(frozen=True, kw_only=True)
class RevisionView(ObservedObject):
    """A revision of a model."""

    number: int  # increases with every revision
    outcome: (
        RevisionOutcome | None
    )  # None: it is being brought up, or was stored by an earlier version
    kept: (
        Revision | None
    )  # None: written by another version and not readable, so it cannot be served

    @property
    def revision(self) -> str:
        """Short hash that names it."""
        return self.label(REVISION)


def revision_view(obj: Json) -> RevisionView:
    """Return the view of a ControllerRevision (apps/v1)."""
    try:
        kept = Revision.read(obj)
    except ValueError:
        kept = None
    return RevisionView(
        **identity(obj),
        number=int(obj.get("revision") or 0),
        outcome=RevisionOutcome.read(obj["metadata"].get("annotations") or {}),
        kept=kept,
    )
