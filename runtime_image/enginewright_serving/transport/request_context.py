"""What a request says about itself for logs and traces: X-Request-Id, and W3C trace context. Pure.

An invalid header counts as absent: it fails no inference, and no client can inject lines into logs or headers.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

REQUEST_ID: Final = b"x-request-id"
TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"
NAMES: Final = frozenset({REQUEST_ID, TRACEPARENT, TRACESTATE})

_ID: Final = re.compile(rb"[A-Za-z0-9._~:/+=@-]{1,128}")  # none needs an escape in any format
_ID_BITS: Final = 64
# Trace Context 3.2: version ff is invalid, and later versions may append fields
_PARENT: Final = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-[ -~]*)?"
)
_LONGEST_PARENT: Final = 256
_STATE: Final = re.compile(rb"[ -~\t]{1,512}")  # 3.3: so many characters should be propagated
_SAMPLED: Final = 1


@dataclass(slots=True)
class TraceParent:
    """The span of the client that sent a request (Trace Context 3.2), with IDs in hexadecimal digits."""

    trace_id: bytes
    span_id: bytes
    sampled: bool

    @classmethod
    def of(cls, value: bytes) -> "TraceParent | None":
        """Read a traceparent, or return None if it is not valid."""
        match = _PARENT.fullmatch(value) if len(value) <= _LONGEST_PARENT else None
        if match is None or (match[1] == b"00" and match[5] is not None):
            return None
        return cls(match[2], match[3], sampled=bool(int(match[4], 16) & _SAMPLED))


class RequestContext:
    """The identity and the times of one request."""

    __slots__ = ("_seen", "finished", "parent", "queued", "request_id", "started", "tracestate")

    def __init__(self) -> None:
        self.request_id = b""  # if it has one
        self.parent: TraceParent | None = None
        self.tracestate = b""
        # when it was queued, and when its run began and ended, as `time.monotonic()`; 0 before that
        self.queued = self.started = self.finished = 0.0
        self._seen = 0

    def read(self, name: bytes, value: bytes) -> None:
        """Take a header of `NAMES`; of repeated ones, none counts."""
        bit = _BITS[name]
        repeated = self._seen & bit
        self._seen |= bit
        value = b"" if repeated else value.strip(b" \t")
        if name == REQUEST_ID:
            self.request_id = value if _ID.fullmatch(value) else b""
        elif name == TRACEPARENT:
            self.parent = TraceParent.of(value)
        else:
            self.tracestate = value if _STATE.fullmatch(value) else b""

    def header(self) -> bytes:
        """Return the response header with the request's ID, with its CRLF; b"" without an ID."""
        return b"X-Request-Id: %b\r\n" % self.request_id if self.request_id else b""

    def without_times(self) -> "RequestContext":
        """Return a copy for a request that ends before its run."""
        copy = RequestContext()
        copy.request_id, copy.parent = self.request_id, self.parent
        copy.tracestate = self.tracestate
        return copy

    def name(self) -> None:
        """Give the request an ID if it has none."""
        if not self.request_id:
            self.request_id = b"%016x" % random.getrandbits(_ID_BITS)


_BITS: Final = {name: 1 << place for place, name in enumerate(sorted(NAMES))}


def context_of(fields: Mapping[bytes, bytes]) -> RequestContext | None:
    """Return the context of a request with these header fields, if there is one."""
    if NAMES.isdisjoint(fields):
        return None
    context = RequestContext()
    for name in NAMES & fields.keys():
        context.read(name, fields[name])
    return context
