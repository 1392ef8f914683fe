"""The moves of InferenceModels to other runtime images and AcceleratorClasses, as their statuses record them.

Read from the plain object, since every model is read whenever one has changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from enginewright.manifests.labels import ROLLOUT_ORDER
from enginewright.observed.base import Json

_RANKS: Final = {"first": 0, "last": 2}
_CLASS: Final = "AcceleratorClass "
_STALLED: Final = ("Stalled", "True")


@dataclass(frozen=True)
class MoveView:
    """A model that serves."""

    namespace: str
    name: str
    rank: int  # the lowest moves first
    current: Mapping[
        str, str
    ]  # images that it has, by variant, specs of classes by `class_input`, and settings by name
    target: Mapping[str, str]  # what the installation has instead, which the state below is about
    state: str  # Moved, Moving, Waiting or Kept
    reason: str  # why it does not go on, other than its turn
    fails_anyway: bool = False  # with what it has: it is no failure of the target if this is kept


def move_view(obj: Json) -> MoveView | None:
    """Return the view of an InferenceModel, unless it is being deleted or has not served."""
    metadata, status = obj["metadata"], obj.get("status") or {}
    images = status.get("images")
    if not images or metadata.get("deletionTimestamp"):
        return None
    order = (metadata.get("labels") or {}).get(ROLLOUT_ORDER, "")
    classes, state = images.get("classes") or (), str(images.get("state", ""))
    settings, conditions = images.get("settings") or (), status.get("conditions") or ()
    return MoveView(
        namespace=metadata["namespace"],
        name=metadata["name"],
        rank=_RANKS.get(order, 1),
        current=_by_variant(images.get("current") or ())
        | _by_class(classes, "spec")
        | {used["name"]: used["value"] for used in settings},
        target=_by_variant(images.get("target") or ())
        | _by_class(classes, "target")
        | {used["name"]: used["target"] for used in settings if used.get("target")},
        state=state,
        reason=str(images.get("reason", "")),
        fails_anyway=any((one["type"], one["status"]) == _STALLED for one in conditions),
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
