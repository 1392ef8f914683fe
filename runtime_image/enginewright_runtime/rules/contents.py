"""The values of constant tensors, read piece by piece: weights may be larger than memory."""

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from enginewright_runtime.core.plain_files import open_plain
from enginewright_runtime.graph.raw import graphs

Array = NDArray[Any]
_PIECE: Final = 4 << 20  # bytes
FLOATS: Final = frozenset(
    {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE}
)
_TYPES: Final = frozenset(TensorProto.DataType.values())


class UnreadableError(ValueError):
    """The tensor's data is missing or incomplete; the rules on external data and sizes report it."""


@dataclass(frozen=True)
class TensorSummary:
    """Counts of special values, and the range of the finite ones, of a floating-point tensor."""

    nan: int
    positive_infinities: int
    negative_infinities: int
    minimum: float  # of the finite values; 0 if there are none
    maximum: float

    @property
    def finite(self) -> bool:
        """Tell whether every value is finite."""
        return not (self.nan or self.positive_infinities or self.negative_infinities)


def byte_size(tensor: TensorProto) -> int | None:
    """Return the bytes of the elements as raw data, packed below a byte; None if the type has no fixed size."""
    bits = element_bits(tensor.data_type)
    return None if bits is None else -(-graphs.elements(tensor) * bits // 8)


def element_bits(data_type: int) -> int | None:
    """Return the size of one element in bits; None for strings and unknown types."""
    name = TensorProto.DataType.Name(data_type) if data_type in _TYPES else ""
    for ending, bits in (("INT4", 4), ("FLOAT4E2M1", 4), ("INT2", 2)):
        if name.endswith(ending):
            return bits
    if not name or name in {"UNDEFINED", "STRING"} or name.startswith("FLOAT6"):
        return None
    return int(onnx.helper.tensor_dtype_to_np_dtype(data_type).itemsize) * 8


def summarize(tensor: TensorProto, folder: Path) -> TensorSummary:
    """Summarize all values of a tensor of one of the types `FLOATS`; raises UnreadableError."""
    nan = above = below = 0
    least, most = np.inf, -np.inf
    for piece in pieces(tensor, folder):
        values = _widen(piece, tensor.data_type)
        if np.isfinite(values).all():
            finite = values
        else:
            nan += int(np.count_nonzero(np.isnan(values)))
            above += int(np.count_nonzero(np.isposinf(values)))
            below += int(np.count_nonzero(np.isneginf(values)))
            finite = values[np.isfinite(values)]
        if finite.size:
            least, most = min(least, float(finite.min())), max(most, float(finite.max()))
    numbers = least <= most
    return TensorSummary(nan, above, below, least if numbers else 0.0, most if numbers else 0.0)


def integers(tensor: TensorProto, folder: Path, largest: int) -> Array | None:
    """Return the values of an integer tensor, or None if it is too large, unreadable or not integer."""
    if not 0 <= graphs.elements(tensor) <= largest or tensor.data_type in FLOATS:
        return None
    try:
        values = [piece for piece in pieces(tensor, folder) if piece.dtype.kind in "iu"]
    except UnreadableError:
        return None
    return np.concatenate(values) if values else None


def pieces(tensor: TensorProto, folder: Path) -> Iterator[Array]:
    """Yield the values, flat, in pieces of at most 4 MiB if they are stored as raw bytes; raises UnreadableError.

    BFLOAT16 is returned as uint16, a large hole of a sparse file, which reads as zeros, as a few zeros.
    """
    size = byte_size(tensor)
    bits = element_bits(tensor.data_type)
    if size is None or bits is None or bits % 8 or size < 0:
        raise UnreadableError
    dtype = _dtype(tensor.data_type)
    entries = graphs.external_entries(tensor)
    if entries is not None:
        for chunk in _external(entries, folder, size):
            yield np.frombuffer(chunk, dtype)
    elif tensor.HasField("raw_data"):
        raw = tensor.raw_data
        if len(raw) != size:
            raise UnreadableError
        for start in range(0, size, _PIECE):
            yield np.frombuffer(raw[start : start + _PIECE], dtype)
    else:
        yield _read_typed(tensor, dtype)


def _read_typed(tensor: TensorProto, dtype: np.dtype[Any]) -> Array:
    try:
        values = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError) as error:
        raise UnreadableError from error
    return values.reshape(-1).view(dtype)


def _dtype(data_type: int) -> np.dtype[Any]:
    if data_type == TensorProto.BFLOAT16:
        return np.dtype(np.uint16)
    return onnx.helper.tensor_dtype_to_np_dtype(data_type)


def _widen(piece: Array, data_type: int) -> Array:
    if data_type != TensorProto.BFLOAT16:
        return piece
    # bfloat16 is the upper half of float32
    return (piece.astype(np.uint32) << 16).view(np.float32)


def _external(entries: dict[str, str], folder: Path, size: int) -> Iterator[bytes]:
    location = entries.get("location", "")
    if not graphs.is_inside(location):
        raise UnreadableError
    try:
        offset = int(entries.get("offset") or 0)
        with open_plain(folder / location) as reader:
            yield from _read_range(reader.fileno(), offset, size)
    except (OSError, ValueError) as error:
        raise UnreadableError from error


def _read_range(descriptor: int, offset: int, size: int) -> Iterator[bytes]:
    """Yield the bytes from `offset` on; eight zero bytes for a hole of at least one piece."""
    if offset < 0 or offset + size > os.fstat(descriptor).st_size:
        raise UnreadableError
    position, end = offset, offset + size
    while position < end:
        skipped = (_next_data(descriptor, position, end) - position) // _PIECE * _PIECE
        if skipped:
            yield bytes(8)
            position += skipped
            continue
        chunk = _read(descriptor, position, min(_PIECE, end - position))
        yield chunk
        position += len(chunk)


def _read(descriptor: int, position: int, size: int) -> bytes:
    """Return `size` bytes: a network file system may return fewer per read."""
    chunk = b""
    while len(chunk) < size:
        more = os.pread(descriptor, size - len(chunk), position + len(chunk))
        if not more:
            raise UnreadableError
        chunk += more
    return chunk


def _next_data(descriptor: int, position: int, end: int) -> int:
    try:
        return min(end, os.lseek(descriptor, position, os.SEEK_DATA))
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole up to the end
            return end
        return position  # the file system does not report holes
