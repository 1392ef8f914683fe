"""Messages between a server and its processing steps: a JSON object and named arrays over a stream socket.

A message is the length of its head, the head as JSON, and the bytes of the arrays, strings as their lengths and
their UTF-8 bytes. Both ends are processes of one server.
"""

import json
import socket
import struct
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from enginewright_runtime.session.arrays import Arrays

_LENGTH: Final = struct.Struct("<I")
_STRINGS: Final = "strings"
_SIZE: Final = np.dtype("<u4")


class EndedError(Exception):
    """The other end has closed the socket."""


@dataclass(frozen=True)
class StepFacts:
    """What is known about a step once it is loaded, which its process sends first."""

    inputs: tuple[str, ...]  # `TensorText` each
    outputs: tuple[str, ...]  # likewise
    images: tuple[str, ...] = ()  # inputs that only image decoders take, as they are


def count_bytes(arrays: Iterable[NDArray[Any]]) -> int:
    """Return the memory that arrays take, with their strings."""
    return sum(
        array.nbytes + (sum(map(sys.getsizeof, array.flat)) if array.dtype == object else 0)
        for array in arrays
    )


def send(line: socket.socket, document: dict[str, Any], arrays: Arrays) -> None:
    """Send a message; raises OSError if the other end is gone, TimeoutError if it does not read."""
    listed: list[tuple[str, str, tuple[int, ...], int]] = []
    parts: list[bytes | memoryview] = []
    for name, array in arrays.items():
        if array.dtype == object:
            data: bytes | memoryview = _from_strings(array)
            listed.append((name, _STRINGS, array.shape, len(data)))
        else:
            dense = np.ascontiguousarray(array)
            data = dense.reshape(-1).view(np.uint8).data if dense.size else b""
            listed.append((name, array.dtype.str, array.shape, len(data)))
        parts.append(data)
    head = json.dumps({**document, "arrays": listed}).encode()
    line.sendall(_LENGTH.pack(len(head)) + head)
    for part in parts:
        line.sendall(part)


def receive(
    line: socket.socket, end: float | None = None
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Receive a message by `end` of `time.monotonic()`, if given; raises EndedError, TimeoutError."""
    (length,) = _LENGTH.unpack(_read(line, _LENGTH.size, end))
    document = json.loads(_read(line, length, end))
    arrays = {}
    for name, dtype, shape, size in document.pop("arrays"):
        data = _read(line, size, end)
        if dtype == _STRINGS:
            arrays[name] = _to_strings(data, tuple(shape))
        else:
            arrays[name] = np.frombuffer(data, np.dtype(dtype)).reshape(shape)
    return document, arrays


def _read(line: socket.socket, size: int, end: float | None) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        if end is not None:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            line.settimeout(left)
        try:
            count = line.recv_into(view)
        except ConnectionError:
            count = 0
        if not count:
            raise EndedError
        view = view[count:]
    return data


def _from_strings(array: NDArray[Any]) -> bytes:
    encoded = [str(text).encode(errors="surrogatepass") for text in array.flat]
    sizes = np.array([len(data) for data in encoded], _SIZE)
    return sizes.tobytes() + b"".join(encoded)


def _to_strings(data: bytearray, shape: tuple[int, ...]) -> NDArray[Any]:
    array = np.empty(int(np.prod(shape, dtype=np.int64)), object)
    at = array.size * _SIZE.itemsize
    for index, size in enumerate(np.frombuffer(data, _SIZE, array.size).tolist()):
        array[index] = data[at : at + size].decode(errors="surrogatepass")
        at += size
    return array.reshape(shape)
