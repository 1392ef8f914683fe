"""Header fields of requests, checked (RFC 9113 8.2, 8.3)."""

import re
from dataclasses import dataclass
from typing import Final

from enginewright_serving.transport.http2.errors import ErrorCode, StreamFaultError
from enginewright_serving.transport.http2.hpack import Field

_NAMES: Final = re.compile(rb"(?:[a-z0-9!#$%&'*+\-.^_`|~]+\n)*")  # tokens in lower case
_BAD_VALUES: Final = re.compile(rb"[\0\r]|(?:^|\n)[ \t]|[ \t](?:\n|$)")
_PSEUDO: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_OF_CONNECTION: Final = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
)
_LENGTH: Final = re.compile(rb"[0-9]{1,12}")


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request's header section."""

    method: bytes
    path: bytes
    length: int | None  # Content-Length
    fields: dict[bytes, bytes]  # repeated ones joined with commas (RFC 9110 5.3)


def request_head(given: list[Field]) -> RequestHead:
    """Check the fields of a request; raise StreamFaultError if it is malformed (RFC 9113 8.1.1)."""
    pseudo: dict[bytes, bytes] = {}
    for name, value in given:
        if name not in _PSEUDO:
            break
        if name in pseudo:
            raise StreamFaultError(ErrorCode.PROTOCOL_ERROR)
        pseudo[name] = value
    fields = check_fields(given[len(pseudo) :])
    _check_values(list(pseudo.values()))
    method, path, scheme = (pseudo.get(name, b"") for name in (b":method", b":path", b":scheme"))
    if not (method and scheme and path) or (path[:1] != b"/" and path != b"*"):
        raise StreamFaultError(ErrorCode.PROTOCOL_ERROR)
    if fields.get(b"te", b"trailers") != b"trailers":
        raise StreamFaultError(ErrorCode.PROTOCOL_ERROR)
    length = fields.get(b"content-length")
    if length is not None and not _LENGTH.fullmatch(length):
        raise StreamFaultError(ErrorCode.PROTOCOL_ERROR)
    return RequestHead(method, path, None if length is None else int(length), fields)


def check_fields(given: list[Field]) -> dict[bytes, bytes]:
    """Check fields that are not pseudo-header fields (RFC 9113 8.2.1, 8.2.2); may raise StreamFaultError."""
    fields: dict[bytes, bytes] = {}
    for name, value in given:
        fields[name] = value if name not in fields else b"%b,%b" % (fields[name], value)
    names = b"".join([name + b"\n" for name in fields])
    if not _NAMES.fullmatch(names) or names.count(b"\n") != len(fields):
        raise StreamFaultError(ErrorCode.PROTOCOL_ERROR)
    if not _OF_CONNECTION.isdisjoint(fields):
        raise StreamFaultError(ErrorCode.PROTOCOL_ERROR)
    _check_values([value for _, value in given])
    return fields


def _check_values(values: list[bytes]) -> None:
    """Check all at once: joined with the byte that none may contain."""
    joined = b"\n".join(values)
    if _BAD_VALUES.search(joined) or joined.count(b"\n") != max(len(values) - 1, 0):
        raise StreamFaultError(ErrorCode.PROTOCOL_ERROR)
