"""Expands compressed request bodies (Content-Encoding) before they are decoded.

Kilobytes may expand to gigabytes. So the limits of a body apply to its expanded size, of gzip before anything is
decompressed; memory is charged as it is written; and beyond a small part, the codec thread decompresses in steps,
between which other requests get their turns, and an abandoned one ends.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from enginewright_runtime.core.request_errors import RequestError

from enginewright_serving.server.api.content_coding import NAMES, SUPPORTED
from enginewright_serving.server.inference.request_failures import refuse_errors
from enginewright_serving.server.inference.request_threads import RequestThreads
from enginewright_serving.server.protocol.priorities import DEFAULT
from enginewright_serving.transport.compression import (
    LARGEST_RATIO,
    STEP_SECONDS,
    Coding,
    CompressionError,
    Decompression,
    ExpandedTooLargeError,
    read_stated_size,
)
from enginewright_serving.transport.inflight import InFlight
from enginewright_serving.transport.message import Body, HttpRequest, count_charged_bytes

_AT_ONCE: Final = 128 * 1024  # bytes that the event loop decompresses, in less than a millisecond
_STEP: Final = 1024 * 1024  # likewise of the thread, in a few milliseconds
_STEP_SECONDS: Final = 0.005


class _Expansion:
    def __init__(
        self,
        inflight: InFlight,
        request: HttpRequest,
        compressed: Body,
        expanded: Body,
        take: Callable[[Body, float], None],
        refuse: Callable[[RequestError], None],
    ) -> None:
        self._inflight = inflight
        self.request = request
        self.began = time.monotonic()
        self.take = take
        self.refuse = refuse
        self._coding = SUPPORTED[request.content_encoding]
        self._compressed = compressed
        self._expanded = expanded
        self._largest = expanded.length
        self._work = Decompression(compressed.view(), expanded.view(), self._coding)

    def step(self, size: int, seconds: float = STEP_SECONDS) -> bool:
        try:
            return self._work.step(size, seconds)
        except CompressionError as error:
            if isinstance(error, ExpandedTooLargeError):
                self._inflight.check_body(self._largest + 1, self.request.json_length)
            raise _invalid(self._coding, error) from None

    @property
    def charged(self) -> int:
        return self._compressed.length + count_charged_bytes(self._work.filled, self._largest)

    def result(self) -> Body:
        self._expanded.shorten(self._work.filled)
        return self._expanded


@dataclass(frozen=True, slots=True)
class CompressedRequests:
    """Takes requests whose bodies are compressed; used by the event loop."""

    _thread: RequestThreads
    _inflight: InFlight

    def expand(
        self,
        request: HttpRequest,
        compressed: Body,
        take: Callable[[Body, float], None],
        refuse: Callable[[RequestError], None],
    ) -> None:
        """Expand the body of a request whose coding is supported.

        `take` gets the expanded body and the seconds that it took, at once if the body is small; `refuse` gets the
        error, once this has returned. Raises RequestError as `take`, or 400 for an invalid body, 413 for one that
        is too large, 503 if memory is short or too many wait.
        """
        length = self._estimate_bytes(request, compressed.view())
        expanded = Body(length, request.json_length or 0)
        work = _Expansion(self._inflight, request, compressed, expanded, take, refuse)
        if not self._complete(work, complete=work.step(_AT_ONCE)):
            if not request.reserved:
                self._thread.make_room(DEFAULT)
            self._continue(work)

    def _estimate_bytes(self, request: HttpRequest, compressed: memoryview) -> int:
        """Return the size that the body states for its expansion, or the largest possible one."""
        coding = SUPPORTED[request.content_encoding]
        largest = len(compressed) * LARGEST_RATIO
        if coding is Coding.DEFLATE:
            return min(largest, self._inflight.largest_body(request.json_length))
        try:
            stated = read_stated_size(compressed)
        except CompressionError as error:
            raise _invalid(coding, error) from None
        if stated > largest:
            raise _invalid(coding, CompressionError("it is smaller than it states"))
        self._inflight.check_body(stated, request.json_length)
        return stated

    def _continue(self, work: _Expansion) -> None:
        self._thread.submit(
            work.request,
            partial(work.step, _STEP, _STEP_SECONDS),
            partial(self._finish_step, work),
            gives_way=not work.request.reserved,
        )

    def _finish_step(self, work: _Expansion, step: asyncio.Future[bool]) -> None:
        with refuse_errors(work.refuse, "decompressing a request"):
            if not self._complete(work, complete=step.result()):
                self._continue(work)

    def _complete(self, work: _Expansion, *, complete: bool) -> bool:
        self._inflight.hold(work.request, work.charged)
        if complete:
            body = work.result()
            self._inflight.reduce(work.request, count_charged_bytes(body.length, body.length))
            work.take(body, time.monotonic() - work.began)
        return complete


def _invalid(coding: Coding, error: CompressionError) -> RequestError:
    name = NAMES[coding].decode()
    form = "one gzip member" if coding is Coding.GZIP else "one stream in zlib's format"
    return RequestError(
        400, f"the body cannot be decompressed: {error}; Content-Encoding {name} means {form}"
    )
