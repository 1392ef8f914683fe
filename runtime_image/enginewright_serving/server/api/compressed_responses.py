"""Compresses responses (Content-Encoding) for clients that ask for it.

A response is computed from what its own client sent, and contains no secret of the server, so its compressed size
reveals nothing to an attacker who chooses a part of it (BREACH). Headers are not compressed.
"""

import asyncio
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from enginewright_serving.server.api.content_coding import NAMES, choose_coding
from enginewright_serving.server.inference.request_threads import RequestThreads
from enginewright_serving.transport.compression import Coding
from enginewright_serving.transport.message import HttpRequest, HttpResponse

_PIECE: Final = 64 * 1024  # bytes that zlib gets at a time
_AT_ONCE: Final = 16 * 1024  # bytes that the event loop compresses, in a tenth of a millisecond
_STEP: Final = 256 * 1024  # likewise of the thread, in a few milliseconds
_LEVEL: Final = 1


class _Compression:
    def __init__(self, response: HttpResponse, coding: Coding) -> None:
        self._response = response
        self._coding = coding
        self._stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, coding.value)
        self._pieces = _pieces(response.parts)
        self._out: list[bytes | memoryview] = []
        self._length = 0

    def step(self) -> HttpResponse | None:
        taken = 0
        while taken < _STEP:
            piece = next(self._pieces, None)
            if piece is None:
                self._add(self._stream.flush())
                return self._finish()
            self._add(self._stream.compress(piece))
            taken += len(piece)
        return None

    def _add(self, data: bytes) -> None:
        if data:
            self._out.append(data)
            self._length += len(data)

    def _finish(self) -> HttpResponse:
        response = self._response
        # caches do not store a POST's response unless it says for how long (RFC 9110 9.3.3), so others need no Vary
        headers = b"%bContent-Encoding: %b\r\nVary: Accept-Encoding\r\n" % (
            response.headers,
            NAMES[self._coding],
        )
        return HttpResponse(response.status, headers, self._out, self._length)


class CompressedResponses:
    """Compresses what clients ask for; used by the event loop."""

    def __init__(self, thread: RequestThreads) -> None:
        self._thread = thread

    def compress(
        self,
        request: HttpRequest,
        response: HttpResponse,
        done: Callable[[asyncio.Future[HttpResponse]], None],
    ) -> HttpResponse | None:
        """Return the response to send, compressed or not, or None if `done` gets it later."""
        coding = choose_coding(request.accept_encoding)
        if coding is None:
            return response
        work = _Compression(response, coding)
        if response.length <= _AT_ONCE and (compressed := work.step()):
            return compressed
        self._continue(request, work, done)
        return None

    def _continue(
        self,
        request: HttpRequest,
        work: _Compression,
        done: Callable[[asyncio.Future[HttpResponse]], None],
    ) -> None:
        self._thread.submit(request, work.step, partial(self._finish_step, request, work, done))

    def _finish_step(
        self,
        request: HttpRequest,
        work: _Compression,
        done: Callable[[asyncio.Future[HttpResponse]], None],
        step: asyncio.Future[HttpResponse | None],
    ) -> None:
        if step.exception() is None and step.result() is None:
            self._continue(request, work, done)
        else:
            done(step)  # type: ignore[arg-type]  # it is complete, or has failed


def _pieces(parts: list[bytes | memoryview]) -> Iterator[memoryview]:
    for part in parts:
        view = memoryview(part)
        for at in range(0, len(view), _PIECE):
            yield view[at : at + _PIECE]
