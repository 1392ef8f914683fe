"""How the server hands copies of requests and of its answers to the pod's own sidecar.

The sidecar asks for the next one, and with that for a share of the requests of the next seconds. The response has
both bodies, one after the other, and a header with their lengths.
"""

from dataclasses import dataclass
from typing import Final, Self

HEADER: Final = "Enginewright-Shadow"  # of a response to the sidecar, and of a copy, with the token
RESOURCE: Final = "shadow"  # below /v2/models/<model>
SHARE_QUERY: Final = "share"
ASKED_SECONDS: Final = 5.0  # for which a share holds, unless the sidecar asks again
LARGEST_BYTES: Final = 8 * 1024 * 1024  # of a request and its answer together
_ABSENT: Final = "-"


@dataclass(frozen=True, slots=True)
class ExchangeHead:
    """The parts of a response; of one without a copy, only `dropped`."""

    dropped: int  # chosen requests that were not kept, since the server started
    request: int = 0  # bytes, 0 without a copy
    request_json: int | None = None  # JSON bytes of the request, unless all are
    answer_json: int | None = None  # likewise of the answer

    def line(self) -> bytes:
        """Return the header line."""
        lengths = (self.request_json, self.answer_json)
        shown = (_ABSENT if length is None else str(length) for length in lengths)
        return f"{HEADER}: {self.dropped} {self.request} {' '.join(shown)}\r\n".encode()

    @classmethod
    def read(cls, value: bytes) -> Self:
        """Read the header's value; ValueError if it is not one."""
        dropped, request, *lengths = value.decode().split()
        first, second = (None if length == _ABSENT else int(length) for length in lengths)
        return cls(int(dropped), int(request), first, second)
