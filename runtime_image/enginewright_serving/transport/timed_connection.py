"""What an HTTP/1.1 connection waits for, and which time limits it has."""

import asyncio
import enum
from abc import abstractmethod
from typing import Final

from typing_extensions import override

from enginewright_serving.transport.account import Holding
from enginewright_serving.transport.eviction import IDLE_SECONDS, SILENT_SECONDS, WaitsFor
from enginewright_serving.transport.input_turns import InputTurns
from enginewright_serving.transport.message import HttpRequest
from enginewright_serving.transport.pausing_protocol import NEVER, PausingProtocol
from enginewright_serving.transport.settings import SLOW_RATE, TransportSettings
from enginewright_serving.transport.unacknowledged import count_unacknowledged
from enginewright_serving.transport.unread_response import UnreadResponse


class _State(enum.Enum):
    HEAD = enum.auto()  # between requests or inside a head
    BODY = enum.auto()  # a body of known length
    CHUNKED = enum.auto()
    BUSY = enum.auto()  # the application owes a response
    CLOSING = enum.auto()  # the last response is sent; further input is discarded


# looking up a member of an enumeration costs several times as much as a name
HEAD: Final = _State.HEAD
BODY: Final = _State.BODY
CHUNKED: Final = _State.CHUNKED
BUSY: Final = _State.BUSY
CLOSING: Final = _State.CLOSING


class TimedConnection(PausingProtocol):
    """What a connection does, and since when."""

    _incoming: Holding  # the body of a request
    _outgoing: UnreadResponse
    _request: HttpRequest | None

    def __init__(self, settings: TransportSettings, turns: InputTurns) -> None:
        super().__init__(settings, turns)
        self._state = HEAD
        self._is_new = True  # it has had no answer yet
        self._since = 0.0  # when it connected, was answered, sent a head or began to close
        self._head_since = NEVER  # when the first part of a head arrived
        self._filled = 0
        self._writing_paused = False
        self._request = None

    @override
    def _check_time(self, transport: asyncio.Transport, now: float) -> None:
        settings = self._settings
        if self._state is BUSY:
            return
        if arriving := self._incoming.progress:
            if not arriving.update(now, self._filled):
                self._refuse_late()
        elif leaving := self._outgoing.progress:
            if not leaving.update(now, self._outgoing.count_read(count_unacknowledged(transport))):
                transport.abort()
        elif self._state is CLOSING:
            if now > max(self._since + settings.linger_seconds, self._outgoing.kept_until):
                transport.abort()
        elif now > self._head_since + settings.head_seconds:
            self._refuse_late()
        elif now > min(self._since + settings.idle_seconds, self._find_age_limit()):
            self._close(transport, now, linger=False)

    @abstractmethod
    def _refuse_late(self) -> None:
        """Refuse a request that took too long to arrive, and close."""

    @abstractmethod
    def _close(self, transport: asyncio.Transport, now: float, *, linger: bool) -> None:
        """Close once everything is written."""

    @property
    def _idle(self) -> bool:
        return self._state is HEAD and not self._pending and not self._writing_paused

    def _find_age_limit(self) -> float:
        """Return when an idle connection is closed for its age.

        A client that sends requests reads `Connection: close` before that. One that pauses may send
        its next request while the connection is being closed, so a short pause is not enough.
        """
        if not self._idle:
            return NEVER
        return max(self._expires, self._since + self._settings.aged_idle_seconds)

    def waits(self, now: float) -> tuple[WaitsFor, float] | None:
        """Return what the connection waits for, and since when, or None if its response is due or it is closed.

        One whose next request waits for its turn counts as new since its first turn, and as a flood if its turns
        do not end.
        """
        transport = self._transport
        if transport is None:
            return None
        if self._state is BUSY:
            is_due = self._request is None or not self._request.replaceable
            return None if is_due else (WaitsFor.NEW, self._since)
        if transfer := self._incoming.progress or self._outgoing.progress:
            is_slow = transfer.rate < SLOW_RATE
            return WaitsFor.STALLED if is_slow else WaitsFor.ACTIVE, self._since
        if self._state is CLOSING:
            return WaitsFor.LINGERS, self._since
        if self._request is not None or transport.is_closing():
            return None
        return self._waits_between_requests(now)

    def _waits_between_requests(self, now: float) -> tuple[WaitsFor, float]:
        if self._yielded:
            return self._waits_for_turn(now)
        since = min(self._head_since, now) if self._pending else self._since
        if self._is_new or self._pending:
            is_silent = now - since > SILENT_SECONDS
            recent = WaitsFor.NEW if self._is_new else WaitsFor.ACTIVE
            return WaitsFor.SILENT if is_silent else recent, since
        return WaitsFor.IDLE if now - since > IDLE_SECONDS else WaitsFor.ACTIVE, since
