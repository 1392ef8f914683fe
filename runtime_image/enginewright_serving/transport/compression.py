"""Decompresses a request in steps, into memory that is charged before it is written.

A few bytes may become many, or take long and become nothing: a block of eleven bytes can have Huffman codes that
take microseconds to prepare, and no data. So a step is limited in size and in time, and others get their turns.
"""

import enum
import time
import zlib
from typing import Final

STEP_BYTES: Final = 256 * 1024  # of output: about a millisecond
STEP_SECONDS: Final = 0.001
_PIECE: Final = 4096  # bytes that zlib gets at a time, which take up to a millisecond or two
LARGEST_RATIO: Final = 1032  # of deflate: two bits for 258 bytes (RFC 1951 3.2.5)
_TRAILER_BYTES: Final = 8  # CRC and size modulo 2**32 (RFC 1952 2.3.1)


class Coding(enum.Enum):
    """How a message is compressed; the value is zlib's window bits, of the largest window."""

    GZIP = 31  # one member of RFC 1952
    DEFLATE = 15  # RFC 1950, which HTTP calls deflate


class CompressionError(Exception):
    """A message is not valid, or not of the size that its trailer states."""


class ExpandedTooLargeError(CompressionError):
    """A message does not fit into the memory for it."""


def read_stated_size(message: memoryview) -> int:
    """Return the size that a gzip message states; raise CompressionError if it is too short for that."""
    if len(message) < _TRAILER_BYTES:
        raise CompressionError("it is too short")
    return int.from_bytes(message[-4:], "little")


class Decompression:
    """One message in progress."""

    __slots__ = ("_at", "_coding", "_message", "_out", "_stream", "filled")

    def __init__(self, message: memoryview, out: memoryview, coding: Coding = Coding.GZIP) -> None:
        """Decompress `message` into `out`: of gzip, it has its stated size; else the largest possible."""
        self._message = message
        self._at = 0  # bytes of it that were given to zlib
        self._out = out
        self._coding = coding
        self.filled = 0  # bytes of `out`
        self._stream = zlib.decompressobj(coding.value)

    def step(self, size: int = STEP_BYTES, seconds: float = STEP_SECONDS) -> bool:
        """Decompress up to `size` bytes, for little more than `seconds`; return whether it is complete, or raise CompressionError."""
        full, late = self.filled + size, time.monotonic() + seconds
        while not self._piece(full - self.filled):
            if self.filled == full or time.monotonic() > late:
                return False
        return True

    def _piece(self, size: int) -> bool:
        given: memoryview | bytes = self._stream.unconsumed_tail
        if not given:
            given = self._message[self._at : self._at + _PIECE]
            self._at += len(given)
        try:
            part = self._stream.decompress(given, size)
        except zlib.error as error:
            raise CompressionError(str(error).rpartition(": ")[2]) from error
        end = self.filled + len(part)
        if end > len(self._out):
            if self._coding is Coding.GZIP:
                raise CompressionError("it is larger than it states")
            raise ExpandedTooLargeError("it is too large")
        self._out[self.filled : end] = part
        self.filled = end
        if not self._stream.eof:
            if not given and not part:
                raise CompressionError("it is truncated")
            return False
        if self._coding is Coding.GZIP and end < len(self._out):
            raise CompressionError("it is smaller than it states")
        if self._stream.unused_data or self._at < len(self._message):
            raise CompressionError("something follows it")
        return True
