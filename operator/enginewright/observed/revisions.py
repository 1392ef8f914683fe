"""ControllerRevisions: the revisions stored in them."""

from collections.abc import Mapping
from dataclasses import dataclass

from enginewright.manifests.labels import REVISION
from enginewright.manifests.outcome import RevisionOutcome
from enginewright.manifests.snapshot import Revision
from enginewright.observed.base import Json, ObservedObject, identity


@dataclass(frozen=True, kw_only=True)
class RevisionView(ObservedObject):
    """A revision of a model."""

    number: int  # increases with every revision
    outcome: RevisionOutcome | None  # unless it is being brought up, or of an earlier version
    kept: Revision | None  # unless it is of another version and not readable: it cannot be served
    place: str | None  # of the store that its pods read, if readable

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
        place=kept.snapshot.store.place if kept else _bucket(obj),
    )


def _bucket(obj: Json) -> str | None:
    """Return the bucket's address of a revision of another version, if that can be read."""
    data = obj.get("data")
    bucket = data.get("store_bucket") if isinstance(data, Mapping) else None
    address = bucket.get("uri") if isinstance(bucket, Mapping) else None
    return address if isinstance(address, str) else None
