"""Copies of answered requests, for the sidecar to compare with a canary's answers.

Nothing is copied and nothing is sent from here: a few bodies and outputs are kept until the sidecar takes them,
and none unless it asks for them. Used by the event loop's thread only.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, urlsplit

from enginewright_serving.exchanges import ASKED_SECONDS, LARGEST_BYTES, SHARE_QUERY, ExchangeHead
from enginewright_serving.transport.application import refusal_response
from enginewright_serving.transport.message import BINARY_TYPE, Body, HttpResponse

MOST: Final = 8  # kept at a time
MOST_BYTES: Final = 2 * LARGEST_BYTES


@dataclass(frozen=True, slots=True)
class _Exchange:
    body: Body
    json_length: int | None
    answer: HttpResponse

    @property
    def size(self) -> int:
        return self.body.length + self.answer.length


class Copies:
    """The bounded queue of copies; requests that do not fit are counted."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._share = 0.0
        self._kept: deque[_Exchange] = deque()
        self._bytes = 0
        self._dropped = 0
        self._end: asyncio.TimerHandle | None = None

    @property
    def kept_bytes(self) -> int:
        """Bytes of all bodies that are kept."""
        return self._bytes

    def answer(self, target: bytes) -> HttpResponse:
        """Answer the sidecar with a request to compare, and choose the share in the query of the next ones."""
        query = urlsplit(target.decode(errors="replace")).query
        try:
            share = float(parse_qs(query)[SHARE_QUERY][0])
        except (KeyError, ValueError):
            share = 0.0
        if not 0 < share <= 1:
            return refusal_response(400, f"?{SHARE_QUERY}= must be above 0 and at most 1")
        self.ask(share)
        return self.take()

    def ask(self, share: float) -> None:
        """Choose this share of the requests from now on, for `ASKED_SECONDS`."""
        self._share = share
        if self._end is not None:
            self._end.cancel()
        self._end = asyncio.get_running_loop().call_later(ASKED_SECONDS, self.stop)

    def stop(self) -> None:
        """Choose no more requests, and free the copies."""
        self._share = 0.0
        self._kept.clear()
        self._bytes = 0

    def chooses(self) -> bool:
        """Return whether to keep the request that is about to run, once it is answered."""
        return self._share > 0.0 and self._chance() < self._share

    def drop(self) -> None:
        """Count a chosen request that is too large to be kept."""
        self._dropped += 1

    def add(self, body: Body, json_length: int | None, answer: HttpResponse) -> None:
        """Keep a chosen request with the answer that was sent, if there is space."""
        added = _Exchange(body, json_length, answer)
        if (
            not self._share
            or added.size > LARGEST_BYTES
            or len(self._kept) == MOST
            or self._bytes + added.size > MOST_BYTES
        ):
            self.drop()
            return
        self._kept.append(added)
        self._bytes += added.size

    def take(self) -> HttpResponse:
        """Return the oldest one as the response to the sidecar."""
        if not self._kept:
            return HttpResponse(200, ExchangeHead(self._dropped).line(), [], 0)
        taken = self._kept.popleft()
        self._bytes -= taken.size
        answer = taken.answer
        binary = answer.headers.startswith(BINARY_TYPE)
        head = ExchangeHead(
            self._dropped,
            taken.body.length,
            taken.json_length,
            len(answer.parts[0]) if binary else None,
        )
        parts = [taken.body.view(), *answer.parts]
        return HttpResponse(200, BINARY_TYPE + head.line(), parts, taken.size)
