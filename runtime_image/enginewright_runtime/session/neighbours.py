"""Other inputs of the sizes of a request, with which it runs to prove that its outputs do not depend on them. Pure.

A model that quantizes its activations at run time scales all rows by the largest, so neighbours have to reach another
range than the request: floats are four times as large. Integers may be indices, of which only the values in golden
samples are known to be valid: the neighbours have those of another sample, or else their own in reverse, only the
largest, and only the smallest.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from enginewright_runtime.session.arrays import Arrays

_Array = NDArray[Any]
_Feeds = Mapping[str, _Array]

_LARGER: Final = 4.0  # factor of floats


def first_row(feeds: _Feeds) -> Arrays:
    """Return the inputs of the first row."""
    return {name: array[:1] if array.ndim else array for name, array in feeds.items()}


def make_neighbours(row: _Feeds, others: Sequence[_Feeds]) -> list[Arrays]:
    """Return inputs of the sizes of `row`, each different from it and from one another in some input.

    `others` are inputs that the model accepts, of any sizes. There are no neighbours if no other value is known.
    """
    neighbours: list[Arrays] = []
    for other in reversed(others):
        if _add(neighbours, row, {name: _fit(other[name], row[name]) for name in row}):
            break
    is_float = all(array.dtype.kind == "f" for array in row.values())
    if neighbours and is_float and len(others) > 1:
        return neighbours  # what follows is for values that cannot be made larger
    # nor do larger floats of the only sample show anything where the model normalizes its inputs
    if is_float or not neighbours:
        _add(neighbours, row, {name: _reverse(array) for name, array in row.items()})
    values = {name: [array, *(other[name] for other in others)] for name, array in row.items()}
    for choose in (np.max, np.min):
        _add(neighbours, row, {name: _change(row[name], values[name], choose) for name in row})
    return neighbours


def is_same(one: _Array, other: _Array) -> bool:
    """Return whether two arrays are equal, NaN in the same places."""
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _add(neighbours: list[Arrays], row: _Feeds, values: Arrays) -> bool:
    """Append `values` with floats made larger, unless that is the row or was made before; return whether it was."""
    made = {
        name: _enlarge(array) if array.dtype.kind == "f" else array
        for name, array in values.items()
    }
    if any(all(is_same(made[name], feeds[name]) for name in row) for feeds in (row, *neighbours)):
        return False
    neighbours.append(made)
    return True


def _fit(values: _Array, like: _Array) -> _Array:
    return np.resize(values, like.shape) if values.size else like


def _enlarge(array: _Array) -> _Array:
    if not array.any():
        return np.ones_like(array)
    with np.errstate(over="ignore"):  # infinite in half precision
        larger: _Array = array * array.dtype.type(_LARGER)
    return larger


def _reverse(array: _Array) -> _Array:
    return array.reshape(-1)[::-1].reshape(array.shape)


def _change(array: _Array, values: Sequence[_Array], choose: Callable[[Any], Any]) -> _Array:
    """Return booleans inverted, texts from their end, integers all as the one of `values` that is chosen."""
    if array.dtype.kind == "b":
        return ~array
    if array.dtype.kind == "f" or not array.size:
        return array
    changed = np.empty_like(array)
    if array.dtype.kind == "O":
        changed.reshape(-1)[:] = [text[::-1] for text in array.reshape(-1)]
    else:
        changed[...] = choose([choose(some) for some in values if some.size])
    return changed
