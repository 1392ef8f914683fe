"""Decompresses a message in steps, into memory of the size that it states.

A small message may become large, so its size is accounted for before that memory exists, and other
connections get their turns meanwhile.
"""

import zlib
from typing import Final

_GZIP: Final = 31  # zlib's window bits: the largest window, with gzip's header and trailer
_STEP_BYTES: Final = 256 * 1024  # of output: about a millisecond
_TRAILER_BYTES: Final = 8  # CRC and size modulo 2**32 (RFC 1952 2.3.1)


class CompressionError(Exception):
    """A message is not one gzip member, or not of the size that its trailer states."""


def stated_size(message: memoryview) -> int:
    """Return the size of the decompressed message, which may be a lie.

    Raises:
        CompressionError: the message is too short to state it.
    """
    if len(message) < _TRAILER_BYTES:
        raise CompressionError("it is too short")
    return int.from_bytes(message[-4:], "little")


class Decompression:
    """One message in progress."""

    __slots__ = ("_at", "_message", "_out", "_stream", "filled")

    def __init__(self, message: memoryview, out: memoryview) -> None:
        """Decompress `message` into `out`, which has its stated size."""
        self._message = message
        self._at = 0  # bytes of it that were given to zlib
        self._out = out
        self.filled = 0  # bytes of `out`
        self._stream = zlib.decompressobj(_GZIP)

    def step(self) -> bool:
        """Decompress a part; return whether the message is complete.

        Raises:
            CompressionError: it is invalid.
        """
        given: memoryview | bytes = self._stream.unconsumed_tail
        if not given:
            given = self._message[self._at : self._at + _STEP_BYTES]
            self._at += len(given)
        try:
            part = self._stream.decompress(given, _STEP_BYTES)
        except zlib.error as error:
            raise CompressionError(str(error)) from error
        end = self.filled + len(part)
        if end > len(self._out):
            raise CompressionError("it is larger than it states")
        self._out[self.filled : end] = part
        self.filled = end
        if not self._stream.eof:
            if not given and not part:
                raise CompressionError("it is truncated")
            return False
        if end < len(self._out):
            raise CompressionError("it is smaller than it states")
        if self._stream.unused_data or self._at < len(self._message):
            raise CompressionError("something follows it")
        return True
