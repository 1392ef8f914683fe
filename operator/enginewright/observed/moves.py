"""The moves of InferenceModels to other runtime images, as their statuses record them.

Read from the plain object, since every model is read whenever one has changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from enginewright.manifests.labels import ROLLOUT_ORDER
from enginewright.observed.base import Json

_RANKS: Final = {"first": 0, "last": 2}


@dataclass(frozen=True)
class MoveView:
    """A model that serves."""

    namespace: str
    name: str
    rank: int  # 0: moves first, 1: then, 2: last
    current: Mapping[str, str]  # images that it has, by variant
    target: Mapping[str, str]  # images that the state below is about; empty: it has those
    state: str  # Moved, Moving, Waiting or Kept
    reason: str  # why it does not go on, whoever's turn it is; empty: nothing but its turn
    fails_anyway: bool  # with Kept: its spec was not rolled out before either


def move_view(obj: Json) -> MoveView | None:
    """Return the view of an InferenceModel; None: it is being deleted, or has not served."""
    metadata, images = obj["metadata"], (obj.get("status") or {}).get("images")
    if not images or metadata.get("deletionTimestamp"):
        return None
    order = (metadata.get("labels") or {}).get(ROLLOUT_ORDER, "")
    return MoveView(
        namespace=metadata["namespace"],
        name=metadata["name"],
        rank=_RANKS.get(order, 1),
        current=_by_variant(images.get("current") or ()),
        target=_by_variant(images.get("target") or ()),
        state=str(images.get("state", "")),
        reason=str(images.get("reason", "")),
        fails_anyway=bool(images.get("failsAnyway")),
    )


def _by_variant(images: list[Json] | tuple[()]) -> dict[str, str]:
    return {each["variant"]: each["image"] for each in images}
