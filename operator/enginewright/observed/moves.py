"""The moves of InferenceModels to other runtime images, as their statuses record them.

Read from the plain object, since every model is read whenever one has changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from enginewright.api.conditions import StatusReason
from enginewright.manifests.labels import ROLLOUT_ORDER
from enginewright.observed.base import Json

_RANKS: Final = {"first": 0, "last": 2}
_TURNS: Final = frozenset({StatusReason.FLEET_LIMIT, StatusReason.FLEET_PAUSED})


@dataclass(frozen=True)
class MoveView:
    """A model that serves."""

    namespace: str
    name: str
    rank: int  # the lowest moves first
    current: Mapping[str, str]  # images that it has, by variant
    target: Mapping[str, str]  # other images, which the state below is about
    state: str  # Moved, Moving, Waiting or Kept
    reason: str  # why it does not go on, other than its turn
    fails_anyway: bool  # with Kept or `retried`: it is no failure of the target's images
    retried: bool = False  # it was Kept, and is tried again with the same images


def move_view(obj: Json) -> MoveView | None:
    """Return the view of an InferenceModel, unless it is being deleted or has not served."""
    metadata, images = obj["metadata"], (obj.get("status") or {}).get("images")
    if not images or metadata.get("deletionTimestamp"):
        return None
    order = (metadata.get("labels") or {}).get(ROLLOUT_ORDER, "")
    reason = str(images.get("reason", ""))
    return MoveView(
        namespace=metadata["namespace"],
        name=metadata["name"],
        rank=_RANKS.get(order, 1),
        current=_by_variant(images.get("current") or ()),
        target=_by_variant(images.get("target") or ()),
        state=str(images.get("state", "")),
        reason="" if reason in _TURNS else reason,
        fails_anyway=bool(images.get("failsAnyway")),
        retried=bool(images.get("retried")),
    )


def _by_variant(images: list[Json] | tuple[()]) -> dict[str, str]:
    return {image["variant"]: image["image"] for image in images}
