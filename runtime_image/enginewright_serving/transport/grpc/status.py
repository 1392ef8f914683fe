"""Status codes, and the header blocks that responses consist of.

Sources: grpc/grpc doc/statuscodes.md and doc/PROTOCOL-HTTP2.md ("Responses", "Status").
"""

import enum
import re
from dataclasses import dataclass
from typing import Final

from enginewright_serving.transport.http2.hpack import literal

_MESSAGE_BYTES: Final = 4096  # of a status message before its encoding
_RESERVED: Final = re.compile(rb"[^ -$&-~]")  # all but printable ASCII, and the percent sign


class Code(enum.IntEnum):
    """Status codes that servers send."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


HTTP_STATUS: Final = {  # by which requests of all protocols are counted
    Code.OK: 200,
    Code.CANCELLED: 499,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 413,
    Code.UNIMPLEMENTED: 501,
    Code.UNAVAILABLE: 503,
    Code.UNAUTHENTICATED: 401,
}  # else 500


@dataclass(frozen=True, slots=True)
class Status:
    """How a call failed."""

    code: Code
    message: str  # for the caller
    is_of_client: bool = False  # the call was not valid, even if `code` blames the server


_STATUS_200: Final = b"\x88"  # in HPACK's static table
_CONTENT_TYPE: Final = literal(b"content-type", b"application/grpc")
ACCEPTED: Final = literal(b"grpc-accept-encoding", b"identity,gzip")
RESPONSE: Final = _STATUS_200 + _CONTENT_TYPE  # Response-Headers
SUCCESS: Final = literal(b"grpc-status", b"0")  # Trailers


def percent_encode(message: str) -> bytes:
    """Encode a status message (Percent-Encoded: all but printable ASCII, and `%`)."""
    text = message[:_MESSAGE_BYTES].encode("utf-8", "replace")
    return _RESERVED.sub(lambda match: b"%%%02X" % match[0][0], text)


def trailers_only(status: Status) -> bytes:
    """Return the header block of a response without a message (Trailers-Only)."""
    block = RESPONSE + literal(b"grpc-status", b"%d" % status.code)
    if status.message:
        block += literal(b"grpc-message", percent_encode(status.message))
    return block


def http_error(status: int, text: bytes, headers: bytes = b"") -> bytes:
    """Return the header block of a response to a request that is not a gRPC call."""
    return (
        literal(b":status", b"%d" % status)
        + literal(b"content-type", b"text/plain; charset=utf-8")
        + literal(b"content-length", b"%d" % len(text))
        + headers
    )
