"""Messages between the first server process and one that it has started, over a socket pair.

Both sides ask and answer. A message is two lengths, a JSON head and bytes. When either process ends, the
channel of the other is closed, so neither waits for one that is gone.
"""

import asyncio
import contextlib
import itertools
import logging
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

_LENGTHS: Final = struct.Struct("!II")
_MOST_BYTES: Final = (
    64 * 1024 * 1024
)  # of a head or a body: what the other process sends is bounded
_log: Final = logging.getLogger(__name__)


class ChannelClosedError(ConnectionError):
    """The other process has ended, or its messages make no sense."""


@dataclass(frozen=True, slots=True)
class ProcessMessage:
    """What one process tells or asks the other, or answers."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)  # JSON
    body: bytes = b""


class Channel:
    """One side of a socket pair; for one event loop."""

    def __init__(
        self, handle: Callable[[ProcessMessage], Awaitable[ProcessMessage | None]]
    ) -> None:
        """Create it; `handle` takes a message, and returns the answer to one that asks."""
        self._handle = handle
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[ProcessMessage]] = {}
        self._handling: set[asyncio.Task[None]] = set()
        self._closed = asyncio.Event()

    async def open(self, end: socket.socket) -> None:
        """Begin to receive, on a connected socket that is the channel's from now on."""
        self._reader, self._writer = await asyncio.open_unix_connection(sock=end)
        self._receiving = asyncio.create_task(self._receive())

    async def closed(self) -> None:
        """Wait until the other process has ended."""
        await self._closed.wait()

    def close(self) -> None:
        """End it; what was asked fails with ChannelClosedError."""
        self._receiving.cancel()
        self._end()

    def tell(self, message: ProcessMessage) -> None:
        """Send a message that needs no answer; lost if the channel is closed."""
        self._send(message, {})

    async def ask(self, message: ProcessMessage, seconds: float) -> ProcessMessage:
        """Send a message and return the answer.

        Raises:
            TimeoutError: there is none within `seconds`.
            ChannelClosedError: the other process has ended.
        """
        if self._closed.is_set():
            raise ChannelClosedError
        number = next(self._numbers)
        answer: asyncio.Future[ProcessMessage] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            self._send(message, {"asks": number})
            async with asyncio.timeout(seconds):
                return await answer
        finally:
            del self._asked[number]

    def _send(self, message: ProcessMessage, about: dict[str, int]) -> None:
        if self._closed.is_set():
            return
        head = orjson.dumps({"kind": message.kind, "fields": message.fields, **about})
        self._writer.write(_LENGTHS.pack(len(head), len(message.body)) + head)
        if message.body:
            self._writer.write(message.body)

    async def _receive(self) -> None:
        try:
            while True:
                lengths = _LENGTHS.unpack(await self._reader.readexactly(_LENGTHS.size))
                if max(lengths) > _MOST_BYTES:
                    _log.error("a message of another server process is too long")
                    return
                head = orjson.loads(await self._reader.readexactly(lengths[0]))
                self._take(head, await self._reader.readexactly(lengths[1]))
        except (asyncio.IncompleteReadError, OSError):
            pass
        except (ValueError, LookupError, TypeError) as error:
            _log.error("a message of another server process is invalid: %s", error)
        finally:
            self._end()

    def _take(self, head: dict[str, Any], body: bytes) -> None:
        message = ProcessMessage(head["kind"], head["fields"], body)
        if (answered := head.get("answers")) is not None:
            answer = self._asked.get(answered)
            if answer is not None and not answer.done():
                answer.set_result(message)
            return
        task = asyncio.create_task(self._serve(message, head.get("asks")))
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)

    async def _serve(self, message: ProcessMessage, asks: int | None) -> None:
        try:
            answer = await self._handle(message)
        except Exception:  # noqa: BLE001 - one message must not end the channel
            _log.exception("unexpected error in answering another server process")
            return  # which waits for an answer no longer than it asked for
        if asks is not None and answer is not None:
            self._send(answer, {"answers": asks})

    def _end(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(ChannelClosedError())
        with contextlib.suppress(OSError):
            self._writer.close()
