"""The sending side of a TLS connection: the transport of the protocol inside of it.

A response is encrypted as fast as its client reads, and all that is unsent is counted.
"""

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from typing_extensions import override

from enginewright_serving.server.message import JOINED_BYTES

_PIECE: Final = 64 * 1024  # bytes that are encrypted at a time, in tens of microseconds
_TURN: Final = 16 * _PIECE  # encrypted in one turn of the event loop, in about a millisecond
_Data = bytes | bytearray | memoryview


class TlsTransport(asyncio.Transport):
    """Encrypts what the protocol inside writes, and sends it on the socket."""

    __slots__ = (
        "_backlog",
        "_backlog_size",
        "_closing",
        "_discarding",
        "_finish",
        "_full",
        "_in",
        "_inside",
        "_loop",
        "_out",
        "_pump_scheduled",
        "_raw",
        "_tls",
        "_writing_paused",
    )

    def __init__(self) -> None:
        """Create it in the running event loop, without a socket."""
        super().__init__()
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()  # of ciphertext
        self._tls: ssl.SSLObject | None = None  # None: the first record has not arrived
        self._raw: asyncio.Transport | None = None
        self._inside: asyncio.BufferedProtocol | None = None  # None: no handshake yet
        self._loop = asyncio.get_running_loop()
        self._discarding = False  # what arrives
        self._backlog: deque[memoryview] = deque()  # not encrypted yet
        self._backlog_size = 0
        self._full = False  # the kernel's buffer
        self._writing_paused = False  # the protocol inside was notified
        self._pump_scheduled = False
        self._closing = False
        self._finish: Callable[[asyncio.Transport], None] | None = None  # once all is written

    @override
    def write(self, data: _Data) -> None:
        self.writelines([data])

    @override
    def writelines(self, list_of_data: Iterable[_Data]) -> None:
        if self._raw is None or self._discarding:
            return
        parts = [memoryview(each) for each in list_of_data if len(each)]
        size = sum(map(len, parts))
        if size <= JOINED_BYTES and len(parts) > 1:  # one record
            parts = [memoryview(b"".join(parts))]
        self._backlog += parts
        self._backlog_size += size
        self._pump()

    def _pump(self) -> None:
        """Encrypt and write what the kernel takes; tell the protocol inside whether that was all."""
        raw, tls, left = self._raw, self._tls, _TURN
        assert tls is not None  # noqa: S101 - the handshake is complete
        while self._backlog and raw is not None and not self._full and left > 0:
            piece = self._backlog[0]
            part = piece[:_PIECE]
            try:
                tls.write(part)
            except ssl.SSLError:
                self.abort()
                return
            if len(part) == len(piece):
                self._backlog.popleft()
            else:
                self._backlog[0] = piece[_PIECE:]
            self._backlog_size -= len(part)
            left -= len(part)
            self._write_encrypted(raw)
        if self._backlog and not self._full and not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump_on)
        self._tell_inside()

    def _pump_on(self) -> None:
        self._pump_scheduled = False
        self._pump()

    def _tell_inside(self) -> None:
        inside, is_unsent = self._inside, bool(self._backlog) or self._full
        if not self._backlog and self._finish is not None and self._raw is not None:
            finish, self._finish = self._finish, None
            with contextlib.suppress(ssl.SSLError):  # it waits for the client's close_notify
                if self._tls is not None:
                    self._tls.unwrap()
            self._write_encrypted(self._raw)
            finish(self._raw)
        if inside is not None and is_unsent is not self._writing_paused:
            self._writing_paused = is_unsent
            if is_unsent:
                inside.pause_writing()
            else:
                inside.resume_writing()

    def _write_encrypted(self, raw: asyncio.Transport) -> None:
        if encrypted := self._out.read():
            raw.write(encrypted)

    @override
    def get_write_buffer_size(self) -> int:
        return self._backlog_size + (self._raw.get_write_buffer_size() if self._raw else 0)

    @override
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the limit is the kernel's buffer."""

    # The end.

    @override
    def can_write_eof(self) -> bool:
        return True

    @override
    def write_eof(self) -> None:
        self._discarding = True
        self._finish_with(lambda raw: raw.write_eof())

    @override
    def close(self) -> None:
        if not self._closing:
            self._closing = self._discarding = True
            self._finish_with(lambda raw: raw.close())

    def _finish_with(self, finish: Callable[[asyncio.Transport], None]) -> None:
        """Do the last thing once all is written."""
        self._finish = finish
        self._tell_inside()

    @override
    def abort(self) -> None:
        self._closing = True
        if self._raw is not None:
            self._raw.abort()

    @override
    def is_closing(self) -> bool:
        return self._closing or self._raw is None or self._raw.is_closing()

    @override
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._raw.get_extra_info(name, default) if self._raw is not None else default
