"""A response that its client has not read completely: charged, and encrypted as it is read."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from typing_extensions import override

from enginewright_serving.transport.account import ByteAccount, Holding
from enginewright_serving.transport.message import HttpResponse
from enginewright_serving.transport.pace import TransferPace
from enginewright_serving.transport.settings import TransportSettings

_PIECE: Final = 64 * 1024  # bytes that are encrypted at a time, in tens of microseconds


class UnreadResponse(Holding):
    """The bytes of a connection's response, from when they are sent until the client has read them."""

    __slots__ = ("_account", "_begun_with", "_settings", "_unsent", "_unsent_size", "kept_until")

    def __init__(
        self, account: ByteAccount, settings: TransportSettings, evict: Callable[[], None]
    ) -> None:
        super().__init__(evict)
        self._account = account
        self._settings = settings
        self._unsent: deque[memoryview] = deque()  # of a response over TLS, until it is encrypted
        self._unsent_size = 0  # its bytes
        self._begun_with = 0  # bytes that the client had to read when the response was charged
        self.kept_until = 0.0  # when the connection of a client that reads too slowly is closed

    def reserve(self, response: HttpResponse) -> bool:
        """Charge a response before it is sent; return False if there is no space for it."""
        return self._account.hold(self, self._account.limit_response(response.length))

    def cut(self, parts: Iterable[bytes | memoryview]) -> None:
        """Keep the parts in pieces, since TLS encrypts and keeps all that is written."""
        for part in parts:
            view = memoryview(part)
            self._unsent += (view[at : at + _PIECE] for at in range(0, len(view), _PIECE))
        self._unsent_size = sum(map(len, self._unsent))

    def next_piece(self) -> memoryview | None:
        """Take out the next piece to write, if there is one."""
        if not self._unsent:
            return None
        piece = self._unsent.popleft()
        self._unsent_size -= len(piece)
        self.kept_until = time.monotonic() + self._settings.transfer_window
        return piece

    def count_read(self, unread: int) -> int:
        """Return how many bytes the client has read since the response was charged, if it has not read `unread` written ones."""
        return self._begun_with - self._unsent_size - unread

    def charge(self, response: HttpResponse, unread: int) -> None:
        """Charge a response until the client has read it, if writing is paused.

        `unread` are the bytes that were written, also of earlier responses, and that the client has not read; 0 if
        writing is not paused.
        """
        if not unread:
            if self.size:
                self._account.release(self)
        elif self.size or self.reserve(response):
            self._begun_with = self._unsent_size + unread
            self._account.begin(self, TransferPace(time.monotonic(), self._settings))
        else:
            self.evict()

    def drop(self) -> None:
        """Forget the pieces that are not encrypted."""
        self._unsent.clear()

    @override
    def close(self) -> None:
        self._account.release(self)
        self._unsent.clear()
        super().close()
