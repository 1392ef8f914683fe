"""Decodes large requests of all protocols in the codec thread, before they are submitted."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from enginewright_runtime.core.request_errors import RequestError

from enginewright_serving.server.inference.request_failures import refuse_errors
from enginewright_serving.server.inference.request_threads import RequestThreads
from enginewright_serving.server.protocol.decode import Feeds, count_held_bytes
from enginewright_serving.server.protocol.priorities import DEFAULT
from enginewright_serving.transport.call import InferenceCall
from enginewright_serving.transport.inflight import InFlight
from enginewright_serving.transport.message import Body

_P = TypeVar("_P")
_Decoded = tuple[_P, Feeds]


@dataclass(frozen=True, slots=True)
class LargeRequests:
    """Takes requests whose decoding would block the event loop."""

    _thread: RequestThreads
    _inflight: InFlight

    def decode(
        self,
        call: InferenceCall,
        body: Body,
        work: Callable[[], _Decoded[_P]],
        submit: Callable[[_P, Feeds, float], None],
        refuse: Callable[[RequestError], None],
    ) -> None:
        """Decode a request with `work` in the thread; raise RequestError 503 if too many wait.

        `submit` gets its result and the seconds that it took, or `refuse` the error, in the event loop.
        """
        if not call.reserved:
            self._thread.make_room(DEFAULT)
        self._thread.submit(
            call,
            partial(_decode, work, body),
            partial(self._on_decoded, call, time.monotonic(), submit, refuse),
            gives_way=not call.reserved,
        )

    def _on_decoded(
        self,
        call: InferenceCall,
        arrived: float,
        submit: Callable[[_P, Feeds, float], None],
        refuse: Callable[[RequestError], None],
        decoded: asyncio.Future[tuple[_P, Feeds, int]],
    ) -> None:
        with refuse_errors(refuse, "decoding a request"):
            plan, feeds, held = decoded.result()
            self._inflight.hold(call, held)
            submit(plan, feeds, time.monotonic() - arrived)


def _decode(work: Callable[[], _Decoded[_P]], body: Body) -> tuple[_P, Feeds, int]:
    plan, feeds = work()
    return plan, feeds, count_held_bytes(feeds, body.view())
