"""What a call's request headers say (grpc/grpc doc/PROTOCOL-HTTP2.md, "Requests")."""

import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from enginewright_serving.transport.grpc.status import Code, Status
from enginewright_serving.transport.http2.fields import RequestHead

_CONTENT_TYPE: Final = re.compile(rb"application/grpc(?:\+proto)?(?: *;.*)?")
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_SECONDS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_IDENTITY: Final = b"identity"
_GZIP: Final = b"gzip"


@dataclass(frozen=True, slots=True)
class CallHead:
    """The headers of a call, or why they are refused."""

    method: bytes = b""  # `/service/method`
    metadata: dict[bytes, bytes] = field(default_factory=dict)  # those that the application reads
    timeout: float | None = None  # seconds
    gzip: bool = False  # of messages whose flag says compressed
    problem: Status | None = None
    http_status: int = 200  # another if this is not a gRPC call


def call_head(head: RequestHead, names: AbstractSet[bytes]) -> CallHead:
    """Read a call's headers; of its metadata only `names`, since clients determine the size of the rest."""
    fields = head.fields
    if head.method != b"POST":
        return CallHead(http_status=405)
    if not _CONTENT_TYPE.fullmatch(fields.get(b"content-type", b"")):
        return CallHead(http_status=415)
    encoding = fields.get(b"grpc-encoding", _IDENTITY)
    problem = None
    timeout = None
    if encoding not in (_IDENTITY, _GZIP):
        problem = Status(
            Code.UNIMPLEMENTED,
            f"compression {encoding[:40].decode(errors='replace')!r} is not supported; use gzip",
            is_of_client=True,
        )
    if (given := fields.get(b"grpc-timeout")) is not None:
        timeout = parse_timeout(given)
        if timeout is None:
            problem = Status(Code.INTERNAL, "grpc-timeout is invalid", is_of_client=True)
    metadata = {name: fields[name] for name in names if name in fields}
    return CallHead(head.path, metadata, timeout, encoding == _GZIP, problem)


def parse_timeout(value: bytes) -> float | None:
    """Return the seconds of a grpc-timeout, or None if it is invalid."""
    match = _TIMEOUT.fullmatch(value)
    return int(match[1]) * _SECONDS[match[2]] if match else None
