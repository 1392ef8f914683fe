"""A connection that stops and resumes reading, and takes turns, as HTTP/1.1 and HTTP/2 share it."""

import asyncio
import random
import time
from abc import abstractmethod
from typing import Final, cast

from typing_extensions import override

from enginewright_serving.transport.answered import client_address
from enginewright_serving.transport.eviction import WaitsFor
from enginewright_serving.transport.input_turns import InputTurns
from enginewright_serving.transport.settings import AGE_JITTER, TransportSettings
from enginewright_serving.transport.tls_overhead import TlsOverhead

NEVER: Final = float("inf")

_TURNS_SECONDS: Final = 0.1  # more than the turns of a client that sends a few requests at once
_TLS_RECORD: Final = 16 * 1024  # bytes, at most


class PausingProtocol(asyncio.BufferedProtocol):
    """Reads from its transport, or does not."""

    def __init__(self, settings: TransportSettings, turns: InputTurns) -> None:
        self._settings = settings
        self._turns = turns
        self._reading_paused = False
        self._transport: asyncio.Transport | None = None
        self._overhead: TlsOverhead | None = None  # over TLS, until input is discarded
        self._received = 0  # bytes of data
        self._expires = NEVER
        self._pending = b""  # incomplete, or arrived before it was its turn
        self._pending_at = 0  # bytes of it that have been processed
        self._yielded = False  # it is processed in the event loop's next turn
        self._turns_since = NEVER  # when it first yielded since the last pause of its client

    @property
    def address(self) -> str:
        """The client's IP address, "" once it is gone."""
        return client_address(self._transport)

    @override
    def eof_received(self) -> bool:
        return False  # a client that closes its side is treated as disconnected

    @abstractmethod
    def _continue(self) -> None:
        """Process pending input, and resume reading."""

    def _use(self, transport: asyncio.BaseTransport, now: float) -> asyncio.Transport:
        self._transport = stream = cast("asyncio.Transport", transport)
        # writing pauses as soon as the kernel's buffer is full; over TLS, which has another buffer behind it,
        # not yet for the end of the handshake
        stream.set_write_buffer_limits(0 if stream.can_write_eof() else _TLS_RECORD, 0)
        if not stream.can_write_eof():
            self._overhead = TlsOverhead(stream)
        # at different times, so that clients that connected together do not reconnect together
        spread = random.uniform(1 - AGE_JITTER, 1 + AGE_JITTER)  # noqa: S311 - no secret
        self._expires = now + self._settings.connection_age * spread
        return stream

    def check(self, now: float) -> None:
        """Close the connection if it exceeds a limit; `now` is `time.monotonic()`."""
        if self._transport is None:
            return
        if self._overhead is None or self._overhead.is_usual(self._received):
            self._check_time(self._transport, now)
        else:
            self._transport.abort()

    @abstractmethod
    def _check_time(self, transport: asyncio.Transport, now: float) -> None:
        """Close the connection if it exceeds a time limit."""

    def _yield(self) -> None:
        self._yielded = True
        self._turns_since = min(self._turns_since, time.monotonic())
        self._turns.take(self._take_turn)

    def _take_turn(self) -> None:
        self._yielded = False
        if self._transport is not None:
            self._continue()

    def _waits_for_turn(self, now: float) -> tuple[WaitsFor, float]:
        is_flood = now - self._turns_since > _TURNS_SECONDS
        return WaitsFor.FLOODS if is_flood else WaitsFor.NEW, self._turns_since

    def _pause_reading(self) -> None:
        if not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        transport = self._transport
        if not self._reading_paused or transport is None:
            return
        if not transport.is_closing():
            self._reading_paused = False
            transport.resume_reading()
