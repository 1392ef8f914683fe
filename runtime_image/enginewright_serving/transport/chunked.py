"""Chunked bodies (RFC 9112, 7.1), strictly: lenient parsing enables request smuggling."""

import enum
import re
import sys
from typing import Final

_LINE_BYTES: Final = 1024  # a chunk's size line or one trailer field
_TRAILER_LINES: Final = 32
_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?")
_TRAILER_LINE: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n]*")


class ChunkedError(ValueError):
    """The bytes are not a valid chunked body; the message says why."""


class _Expect(enum.Enum):
    SIZE = enum.auto()
    DATA = enum.auto()
    DATA_END = enum.auto()
    TRAILER = enum.auto()


class ChunkedDecoder:
    """Decodes a body in pieces of any size into `data`; `done` when it is complete."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.done = False
        self._expect = _Expect.SIZE
        self._left = 0  # bytes of the current chunk
        self._line = b""  # part of a line
        self._trailers = 0

    def feed(self, piece: memoryview, lines: int = sys.maxsize) -> int:
        """Decode `piece`, up to `lines` of framing; return how many bytes were taken, or raise ChunkedError."""
        at, end = 0, len(piece)
        while at < end and lines and not self.done:
            if self._expect is _Expect.DATA:
                taken = min(self._left, end - at)
                self.data += piece[at : at + taken]
                self._left -= taken
                at += taken
                if not self._left:
                    self._expect = _Expect.DATA_END
            else:
                at += self._take_line(bytes(piece[at : at + _LINE_BYTES]))
                lines -= 1
        return at

    def _take_line(self, text: bytes) -> int:
        stop = text.find(b"\n") + 1
        line = self._line + (text[:stop] if stop else text)
        if len(line) > _LINE_BYTES:
            raise ChunkedError(f"a line is longer than {_LINE_BYTES} bytes")
        if not stop:
            self._line = line
            return len(text)
        self._line = b""
        if not line.endswith(b"\r\n"):
            raise ChunkedError("a line ends without CR")
        self._end_line(line[:-2])
        return stop

    def _end_line(self, line: bytes) -> None:
        if self._expect is _Expect.SIZE:
            if not (size := _SIZE_LINE.fullmatch(line)):
                raise ChunkedError("a chunk does not begin with its size in hexadecimal digits")
            self._left = int(size.group(1), 16)
            self._expect = _Expect.DATA if self._left else _Expect.TRAILER
        elif self._expect is _Expect.DATA_END:
            if line:
                raise ChunkedError("a chunk is longer than its declared size")
            self._expect = _Expect.SIZE
        elif not line:
            self.done = True
        else:
            self._trailers += 1
            if self._trailers > _TRAILER_LINES or not _TRAILER_LINE.fullmatch(line):
                raise ChunkedError(
                    f"the trailer is invalid or has more than {_TRAILER_LINES} header fields"
                )
