"""The moves of InferenceModels to other runtime images and AcceleratorClasses, as their statuses record them.

Read from the plain object, since every model is read whenever one has changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from enginewright.api.conditions import StatusReason
from enginewright.manifests.labels import ROLLOUT_ORDER
from enginewright.observed.base import Json

_RANKS: Final = {"first": 0, "last": 2}
_CLASS: Final = "AcceleratorClass "
_TURNS: Final = frozenset({StatusReason.FLEET_LIMIT, StatusReason.FLEET_PAUSED})


@dataclass(frozen=True)
class MoveView:
    """A model that serves."""

    namespace: str
    name: str
    rank: int  # the lowest moves first
    current: Mapping[
        str, str
    ]  # images that it has, by variant, and specs of classes by `class_input`
    target: Mapping[str, str]  # what the installation has instead, which the state below is about
    state: str  # Moved, Moving, Waiting or Kept
    reason: str  # why it does not go on, other than its turn
    fails_anyway: bool  # with Kept or `retried`: it is no failure of the target
    retried: bool = False  # it was Kept, and is tried again with the same target


def move_view(obj: Json) -> MoveView | None:
    """Return the view of an InferenceModel, unless it is being deleted or has not served."""
    metadata, images = obj["metadata"], (obj.get("status") or {}).get("images")
    if not images or metadata.get("deletionTimestamp"):
        return None
    order = (metadata.get("labels") or {}).get(ROLLOUT_ORDER, "")
    reason = str(images.get("reason", ""))
    classes = images.get("classes") or ()
    return MoveView(
        namespace=metadata["namespace"],
        name=metadata["name"],
        rank=_RANKS.get(order, 1),
        current=_by_variant(images.get("current") or ()) | _by_class(classes, "spec"),
        target=_by_variant(images.get("target") or ()) | _by_class(classes, "target"),
        state=str(images.get("state", "")),
        reason="" if reason in _TURNS else reason,
        fails_anyway=bool(images.get("failsAnyway")),
        retried=bool(images.get("retried")),
    )


def _by_variant(images: list[Json] | tuple[()]) -> dict[str, str]:
    return {image["variant"]: image["image"] for image in images}


def _by_class(classes: list[Json] | tuple[()], field: str) -> dict[str, str]:
    return {class_input(used["class"]): used[field] for used in classes if used.get(field)}


def class_input(name: str) -> str:
    """Return the name of an AcceleratorClass among what administrators decide; a variant of images is its own."""
    return f"{_CLASS}{name}"


def class_of_input(name: str) -> str:
    """Return the AcceleratorClass that a `class_input` names, "" for a variant of images."""
    return name.removeprefix(_CLASS) if name.startswith(_CLASS) else ""
