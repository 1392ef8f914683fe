"""Decides what to remove from a store, without looking at it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from enginewright_contract.collection import KEPT_CHARACTERS, CollectTask

from enginewright_runtime.store.artifacts import is_digest
from enginewright_runtime.store.medium import Stored


@dataclass(frozen=True)
class CollectionPlan:
    """Which artefacts are needed, and which are to be removed."""

    needed: tuple[Stored, ...]
    removed: tuple[Stored, ...]  # the longest unused first


def plan_collection(stored: Sequence[Stored], task: CollectTask) -> CollectionPlan:
    """Return which artefacts to remove from a store.

    Needed ones stay, those used later than `min_age_seconds` before the list, and keys that no publisher has written.
    """
    keep = frozenset(task.keep)
    kept_since = task.as_of - timedelta(seconds=task.min_age_seconds)
    needed = tuple(item for item in stored if _is_needed(item, keep))
    removable = sorted(
        (
            item
            for item in stored
            if not _is_needed(item, keep)
            and is_digest(item.artifact.key)
            and item.used <= kept_since
        ),
        key=lambda item: (item.used, item.artifact.folder),
    )
    users = Counter(name for item in stored for name in item.files)
    size = total_bytes(stored)
    removed: list[Stored] = []
    for item in removable:
        if not (_is_too_old(item, task) or _is_too_large(size, task)):
            break  # the others were used later
        removed.append(item)
        users.subtract(list(item.files))
        size -= sum(count for name, count in item.files.items() if not users[name])
    return CollectionPlan(needed, tuple(removed))


def total_bytes(stored: Iterable[Stored]) -> int:
    """Return the bytes of artefacts; a file that several of them share counts once."""
    sizes: dict[str, int] = {}
    for item in stored:
        sizes |= item.files
    return sum(sizes.values())


def _is_needed(stored: Stored, keep: frozenset[str]) -> bool:
    return stored.artifact.key[:KEPT_CHARACTERS] in keep


def _is_too_old(stored: Stored, task: CollectTask) -> bool:
    age = task.max_age_seconds
    return age is not None and stored.used <= task.as_of - timedelta(seconds=age)


def _is_too_large(size: int, task: CollectTask) -> bool:
    return task.max_bytes is not None and size > task.max_bytes
