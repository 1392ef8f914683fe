"""Tensors in JSON, read and written within a bounded amount of memory.

As Python objects the numbers of a JSON text take up to thirty times its bytes, which a sidecar does not have.
So they are converted in pieces, and only the rest of the text as one document.
"""

import re
import secrets
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

JSON_BYTES: Final = 64 * 1024 * 1024  # that a JSON text, encoded or decoded, may take
_PIECE: Final = 64 * 1024  # bytes of text, or elements, that are Python objects at a time
_DATA: Final = re.compile(rb'"data"\s*:\s*(\[[^"{}]*\])')  # an array without strings and objects
_PLACE: Final = secrets.token_hex(8)  # no key of a server's own
_FLAT: Final = bytes.maketrans(b"[]", b"  ")
_SPACE: Final = b" \t\r\n,"
# Measured with orjson: of a value, at most an empty object and its place in a list; of a text, a copy
# and four bytes a character
_VALUE_BYTES: Final = 144
_TEXT_FACTOR: Final = 6

Buffer = bytes | bytearray | memoryview


class TooLargeError(Exception):
    """Decoding would take more memory than is allowed."""

    def __init__(self, most: int) -> None:
        super().__init__(f"takes more than {most >> 20} MiB decoded")


def parse(text: Buffer, most: int) -> tuple[Any, list[memoryview]]:
    """Return the document of a JSON text, and the arrays of numbers that it refers to.

    Each `data` that is an array of anything but strings is an object instead, see `index_of`. Raises ValueError for
    other text, TooLargeError if the rest would take more than `most` bytes.
    """
    view = memoryview(text)
    rest = bytearray()
    arrays: list[memoryview] = []
    at = 0
    for match in _DATA.finditer(view):
        start, end = match.span(1)
        rest += view[at:start]
        rest += b'{"%b":%d}' % (_PLACE.encode(), len(arrays))
        arrays.append(view[start:end])
        at = end
    rest += view[at:]
    values = 1 + sum(map(rest.count, (b",", b"[", b"{", b":")))
    if _VALUE_BYTES * values + _TEXT_FACTOR * len(rest) > most:
        raise TooLargeError(most)
    return orjson.loads(rest), arrays


def index_of(data: object) -> int | None:
    """Return the index among the arrays of `parse` that a `data` of its document refers to, if it does."""
    return data.get(_PLACE) if isinstance(data, dict) else None


def read_numbers(text: memoryview, dtype: np.dtype[Any], most: int) -> NDArray[Any]:
    """Return the elements of a nested JSON array in order, one-dimensional; null becomes NaN.

    The nesting is ignored, since a tensor has a shape. Raises ValueError, TypeError or OverflowError for anything but
    an array of `dtype`, TooLargeError if the result would take more than `most` bytes.
    """
    signs = Counter[bytes]()
    for at in range(0, len(text), _PIECE):
        piece = bytes(text[at : at + _PIECE])
        signs.update({sign: piece.count(sign) for sign in (b",", b"[", b"]")})
    if signs[b"["] != signs[b"]"]:
        raise ValueError
    count = 1 + signs[b","]
    if count * dtype.itemsize > most:
        raise TooLargeError(most)
    if len(text) <= _PIECE and not bytes(text).translate(_FLAT).strip(_SPACE):
        return np.empty(0, dtype)
    array = np.empty(count, dtype)
    filled = 0
    for piece in _pieces(text):
        part = np.asarray(orjson.loads(b"[%b]" % piece), dtype)
        array[filled : filled + len(part)] = part
        filled += len(part)
    if filled != count:
        raise ValueError
    return array


def _pieces(text: memoryview) -> Iterator[bytes]:
    at = 0
    while at < len(text):
        piece = bytes(text[at : at + _PIECE])
        if at + len(piece) < len(text):
            piece = piece[: piece.rindex(b",")]
        yield piece.translate(_FLAT)
        at += len(piece) + 1


def write_numbers(array: NDArray[Any]) -> Iterator[bytes]:
    """Yield the elements in order as parts of a JSON array, without its brackets; raise ValueError for NaN and infinity."""
    flat = np.asarray(array).reshape(-1)
    for start in range(0, flat.size, _PIECE):
        piece = np.ascontiguousarray(flat[start : start + _PIECE])
        if piece.dtype.kind == "f" and not np.isfinite(piece).all():
            raise ValueError
        data = piece.tolist() if piece.dtype.kind in "OU" else piece
        text = orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        yield b"," + text if start else text
