"""Whether an observed object still has the fields that we applied, without a request.

Server-side apply owns only the fields that we send, so each of them must still have its value; other
managers may add fields. The API server normalizes some values (`1000m` to `1`, an empty string to
nothing), which count as equal.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from enginewright.api.scalars import exact_quantity

# Keys of associative lists in built-in kinds; other lists are compared item by item.
_ITEM_KEYS: Final = ("name", "uid", "containerPort", "port", "mountPath", "type")

Path: TypeAlias = tuple[str, ...]  # of a field; an item of a list in brackets


def holds(intent: Any, observed: Any) -> bool:  # noqa: ANN401 - any JSON value
    """Return whether every field of `intent` is in `observed` with an equal value."""
    return next(differences(intent, observed), None) is None


def differences(intent: Any, observed: Any, path: Path = ()) -> Iterator[Path]:  # noqa: ANN401 - likewise
    """Yield the fields of `intent` that differ or are missing in `observed`, such as (spec, replicas)."""
    if intent == observed:  # mostly, and quicker than to look at each field
        return
    if observed is None:
        if intent:  # empty values are left out by the API server
            yield path
    elif isinstance(intent, Mapping) and isinstance(observed, Mapping):
        for key, value in intent.items():
            yield from differences(value, observed.get(key), (*path, key))
    elif isinstance(intent, list | tuple) and isinstance(observed, list | tuple):
        yield from _in_lists(intent, observed, path)
    elif not _same_quantity(intent, observed):
        yield path


def _in_lists(intent: Sequence[Any], observed: Sequence[Any], path: Path) -> Iterator[Path]:
    if key := _item_key(intent):
        by_key = {item.get(key): item for item in observed if isinstance(item, Mapping)}
        for item in intent:
            yield from differences(item, by_key.get(item[key]), (*path, f"[{item[key]}]"))
    elif len(intent) != len(observed):
        yield path
    else:
        for number, pair in enumerate(zip(intent, observed, strict=True)):
            yield from differences(*pair, (*path, f"[{number}]"))


def _item_key(items: Sequence[Any]) -> str | None:
    """Return the field with a unique value in each item, if there is one."""
    for key in _ITEM_KEYS:
        if items and all(isinstance(item, Mapping) and key in item for item in items):
            values = [item[key] for item in items]
            if len(set(values)) == len(values):
                return key
    return None


def _same_quantity(intent: object, observed: object) -> bool:
    if isinstance(intent, bool) or isinstance(observed, bool):
        return False
    try:
        return exact_quantity(str(intent)) == exact_quantity(str(observed))
    except ValueError:
        return False
