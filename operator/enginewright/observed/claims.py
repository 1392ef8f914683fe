"""PersistentVolumeClaims: whether several nodes can mount them."""

from dataclasses import dataclass

from enginewright.observed.base import Json, ObservedObject, identity, spec


@dataclass(frozen=True, kw_only=True)
class ClaimView(ObservedObject):
    """A claim."""

    access_modes: tuple[str, ...]


def claim_view(obj: Json) -> ClaimView:
    """Return the view of a PersistentVolumeClaim (core/v1)."""
    return ClaimView(**identity(obj), access_modes=tuple(spec(obj).get("accessModes") or ()))
