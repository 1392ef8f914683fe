"""Header blocks of one connection: joined from frames, decoded, and prepared for the application.

A client repeats its headers, and then sends the same bytes: their meaning is cached until the compression's table
changes.
"""

from collections.abc import Callable
from typing import Final

from enginewright_serving.transport.http2 import frames
from enginewright_serving.transport.http2.errors import ConnectionFaultError, ErrorCode
from enginewright_serving.transport.http2.fields import RequestHead, request_head
from enginewright_serving.transport.http2.hpack import BlockDecoder, Field

_KEPT: Final = 4


class HeaderBlocks:
    """Reads the header blocks of one connection, in their order (RFC 9113 4.3)."""

    __slots__ = ("_block", "_decoder", "_kept", "_limit", "_prepare", "ends", "stream")

    def __init__(self, prepare: Callable[[RequestHead], object], limit: int) -> None:
        """Limit a block to `limit` bytes, before and after decompression."""
        self._prepare = prepare
        self._limit = limit
        self._decoder = BlockDecoder(limit)
        self._kept: dict[bytes, tuple[object, int | None]] = {}
        self._block = b""
        self.stream = 0  # of the incomplete block, if there is one
        self.ends = False  # the current block is the last of its stream

    def check(self, kind: int, stream: int, length: int) -> None:
        """Check the head of any frame; raise ConnectionFaultError if it interrupts a block (RFC 9113 6.10) or is too large."""
        if self.stream:
            if kind != frames.CONTINUATION or stream != self.stream:
                raise ConnectionFaultError(
                    ErrorCode.PROTOCOL_ERROR, "a header block must be continued"
                )
        elif kind == frames.CONTINUATION:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION continues nothing")
        if kind in _BLOCKS and len(self._block) + length > self._limit:
            raise ConnectionFaultError(
                ErrorCode.ENHANCE_YOUR_CALM, f"headers are longer than {self._limit} bytes"
            )

    def begin(self, flags: int, stream: int, payload: bytes) -> bytes | None:
        """Take HEADERS; return the block if it is complete."""
        self.ends = bool(flags & frames.END_STREAM)
        block = frames.header_block(payload, flags, stream)
        if flags & frames.END_HEADERS:
            return block
        self._block, self.stream = block, stream
        return None

    def proceed(self, flags: int, payload: bytes) -> bytes | None:
        """Take CONTINUATION; return the block if it is complete."""
        self._block += payload
        if not flags & frames.END_HEADERS:
            return None
        block, self._block, self.stream = self._block, b"", 0
        return block

    def prepare(self, block: bytes) -> tuple[object, int | None]:
        """Return the application's part of a request's head, and its Content-Length; may raise ConnectionFaultError, StreamFaultError."""
        kept = self._kept.get(block)
        if kept is not None:
            return kept
        changes = self._decoder.changes
        head = request_head(self.decode(block))
        prepared = self._prepare(head), head.length
        if changes == self._decoder.changes:
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[block] = prepared
        return prepared

    def decode(self, block: bytes) -> list[Field]:
        """Return the fields of a block; no block may be skipped, and none follows one that raises ConnectionFaultError."""
        changes = self._decoder.changes
        fields = self._decoder.decode(block)
        if changes != self._decoder.changes:
            self._kept.clear()
        return fields


_BLOCKS: Final = frozenset({frames.HEADERS, frames.CONTINUATION})
