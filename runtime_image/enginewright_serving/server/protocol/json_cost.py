"""Limits the cost of parsing a JSON text, before it is parsed.

orjson turns a whole text into Python objects with the GIL held: 16 MiB of `[[],[],…]` would take half a second and
470 MB. So values and names are limited; a million values take at most 50 ms and 60 MB.
"""

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

import numpy as np
from enginewright_runtime.core.request_errors import RequestError
from numpy.typing import NDArray

VALUES: Final = 1_000_000
NAMES: Final = 10_000  # of object members, each of which costs as much as ten values
_BLOCK_BYTES: Final = 64 * 1024  # that are counted at a time, in the processor's cache

_QUOTE, _BACKSLASH = b'"\\'
_COMMA, _COLON, _BRACKET, _BRACE = b",:[{"

_Block: TypeAlias = NDArray[np.uint8]


def check_cost(text: memoryview | bytes) -> None:
    """Refuse a text with too many values or names outside of its strings: RequestError 413."""
    values, names = _count(_blocks(text))
    if values > VALUES or names > NAMES:
        values, names = _count(_outside_strings(_blocks(text)))
    for count, most, what in ((values, VALUES, "values"), (names, NAMES, "names")):
        if count > most:
            raise RequestError(
                413,
                f"the JSON has more than {most:,} {what};"
                " send tensors in binary (see the binary tensor data extension)",
            )


@contextmanager
def collection_paused() -> Iterator[None]:
    """Keep the garbage collector from scanning a document repeatedly while it is built."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _count(blocks: Iterable[_Block]) -> tuple[int, int]:
    """Return how many values (but the first) and names begin in the bytes of a text."""
    values = names = 0
    for block in blocks:
        for mark in (_COMMA, _BRACKET, _BRACE):
            values += int(np.count_nonzero(block == mark))
        names += int(np.count_nonzero(block == _COLON))
    return values, names


def _blocks(text: memoryview | bytes) -> Iterator[_Block]:
    octets = np.frombuffer(text, np.uint8)
    return (octets[at : at + _BLOCK_BYTES] for at in range(0, len(octets), _BLOCK_BYTES))


def _outside_strings(blocks: Iterable[_Block]) -> Iterator[_Block]:
    """Return the bytes of a valid JSON text that are outside of its strings."""
    inside = escaped = False  # whether the next block begins in a string, with an escaped character
    for block in blocks:
        quotes = block == _QUOTE
        slashes = np.flatnonzero(block == _BACKSLASH)
        if escaped:
            quotes[0] = False
            slashes = slashes[slashes > 0]
        escaped = False
        if len(slashes):
            begins = np.diff(slashes, prepend=-2) != 1  # of a run of backslashes
            run = slashes[begins][np.cumsum(begins) - 1]
            after = slashes[(slashes - run) % 2 == 0] + 1
            escaped = bool(after[-1] == len(block))
            quotes[after[: len(after) - escaped]] = False
        outside = np.logical_xor.accumulate(quotes) == inside
        inside ^= bool(np.count_nonzero(quotes) % 2)
        yield block[outside]
