"""Frames as bytes (RFC 9113 4.1, 6)."""

import struct
from typing import Final

from enginewright_serving.transport.http2.errors import (
    ConnectionFaultError,
    ErrorCode,
    StreamFaultError,
)

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # sent by the client (RFC 9113 3.4)

DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20

ENABLE_PUSH: Final = 0x2
MAX_CONCURRENT_STREAMS: Final = 0x3
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5
MAX_HEADER_LIST_SIZE: Final = 0x6

HEAD: Final = struct.Struct(">BHBBL")  # length's high byte and its rest, type, flags, stream
SETTING: Final = struct.Struct(">HL")
LARGEST: Final = 2**31 - 1  # stream identifier, window, increment; the bit above is reserved
DEFAULT_WINDOW: Final = 65535
DEFAULT_FRAME: Final = 16384  # bytes of payload that every peer accepts
LARGEST_FRAME: Final = 2**24 - 1

_CODE: Final = struct.Struct(">L")
_GOAWAY: Final = struct.Struct(">LL")


def head(kind: int, flags: int, stream: int, length: int) -> bytes:
    """Return the nine bytes before a payload."""
    return HEAD.pack(length >> 16, length & 0xFFFF, kind, flags, stream)


def settings(values: dict[int, int]) -> bytes:
    """Return a SETTINGS frame (RFC 9113 6.5)."""
    payload = b"".join(SETTING.pack(*value) for value in values.items())
    return head(SETTINGS, 0, 0, len(payload)) + payload


def ping(payload: bytes, flags: int = 0) -> bytes:
    """Return a PING frame (RFC 9113 6.7)."""
    return head(PING, flags, 0, 8) + payload


def goaway(last_stream: int, code: ErrorCode, message: str = "") -> bytes:
    """Return a GOAWAY frame (RFC 9113 6.8)."""
    payload = _GOAWAY.pack(last_stream, code) + message.encode()
    return head(GOAWAY, 0, 0, len(payload)) + payload


def reset(stream: int, code: ErrorCode) -> bytes:
    """Return an RST_STREAM frame (RFC 9113 6.4)."""
    return head(RST_STREAM, 0, stream, 4) + _CODE.pack(code)


def window_update(stream: int, increment: int) -> bytes:
    """Return a WINDOW_UPDATE frame (RFC 9113 6.9)."""
    return head(WINDOW_UPDATE, 0, stream, 4) + _CODE.pack(increment)


def number(payload: bytes) -> int:
    """Return the 31-bit number that a payload begins with."""
    return int.from_bytes(payload[:4], "big") & LARGEST


def header_block(payload: bytes, flags: int, stream: int) -> bytes:
    """Return the fragment in a HEADERS frame without padding and priority (RFC 9113 6.2).

    Raises:
        ConnectionFaultError: the padding is longer than the frame.
        StreamFaultError: the stream depends on itself (RFC 7540 5.3.1).
    """
    at, end = 0, len(payload)
    if flags & PADDED:
        at = 1
        end -= payload[0] if payload else 1
    if flags & WITH_PRIORITY:
        at += 5
    if at > end:
        raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "HEADERS is shorter than its padding")
    if flags & WITH_PRIORITY and number(payload[at - 5 : at]) == stream:
        raise StreamFaultError(ErrorCode.PROTOCOL_ERROR)
    return payload[at:end]


def check(kind: int, flags: int, stream: int, length: int) -> None:
    """Check a frame's head (RFC 9113 4.2, 6); raise ConnectionFaultError if its size or stream is wrong."""
    if kind in _OF_STREAM:
        if not stream:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "a frame lacks its stream")
    elif stream and kind in _OF_CONNECTION:
        raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "a frame belongs to no stream")
    if length != _SIZES.get(kind, length) or (kind == DATA and flags & PADDED and not length):
        raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "a frame has the wrong size")


_OF_STREAM: Final = frozenset({DATA, HEADERS, PRIORITY, RST_STREAM, CONTINUATION})
_OF_CONNECTION: Final = frozenset({SETTINGS, PING, GOAWAY})
_SIZES: Final = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
