"""TLS between a socket and a connection that speaks HTTP: a protocol for the one, a transport for the other.

The event loop's own TLS keeps 256 KiB for each connection, encrypts a response at once, however large,
and does not count what it has encrypted as unsent. Here, what arrives is decrypted from a buffer that all
connections share into the memory that the connection gives, a response is encrypted as fast as its client
reads, and all that is unsent is counted.

A handshake counts as a connection that has sent nothing: among others it is the first to be closed.

Records are decrypted in the event loop, and one that updates the keys (RFC 8446 4.6.3) costs as much as many
kilobytes of data. So a connection whose records carry little is read little by little from then on, when it
is its turn, and one whose records carry nothing is closed.
"""

import asyncio
import contextlib
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, cast

from typing_extensions import override

from enginewright_runtime.serve.server.account import Peer
from enginewright_runtime.serve.server.eviction import WaitsFor
from enginewright_runtime.serve.server.handshakes import Handshakes
from enginewright_runtime.serve.server.input_turns import InputTurns
from enginewright_runtime.serve.server.message import JOINED_BYTES
from enginewright_runtime.serve.server.settings import ServerSettings

_HANDSHAKE: Final = 0x16  # the first byte of a client's first record (RFC 8446 5.1)
_HEADER_BYTES: Final = 5  # of a record
_SILENT_SECONDS: Final = 1.0  # in which clients answer: some compute slowly, or are far away
_RECORD_BYTES: Final = 1 << 14  # the largest one
_PIECE: Final = 64 * 1024  # bytes that are encrypted at a time, in tens of microseconds
_TURN: Final = 16 * _PIECE  # encrypted in one turn of the event loop, in about a millisecond
_FED_BYTES: Final = 8 * 1024  # that are decrypted before what they carried is looked at
_FEW_BYTES: Final = 2048  # about which nothing is concluded
_POOR: Final = 1 / 4  # data in what has arrived: below, records cost more than their data does
_POOR_READ: Final = (
    1024  # bytes that are read from a connection with such records, in a millisecond
)
_EMPTY_BYTES: Final = (
    2 * _RECORD_BYTES
)  # without any data; a record that is not complete is shorter
_UNREAD_REPLIES: Final = 64 * 1024  # bytes: to updates of keys, which the client does not read
_Data = bytes | bytearray | memoryview


class TlsApplication(Protocol):
    """What keeps the handshakes."""

    settings: ServerSettings
    turns: InputTurns
    begun_handshakes: Handshakes

    def peer(self, address: str) -> Peer:
        """Return the peer with an IP address."""

    def shakes_hands(self, handshake: "TlsConnection") -> bool:
        """Add a handshake; False: no capacity is left."""

    def shook_hands(self, handshake: "TlsConnection") -> None:
        """Remove a handshake, which has succeeded or failed; idempotent."""


class TlsConnection(asyncio.BufferedProtocol, asyncio.Transport):
    """One client's connection, and the transport of the protocol inside of it."""

    __slots__ = (
        "_answer_plain",
        "_app",
        "_backlog",
        "_backlog_size",
        "_carried",
        "_closing",
        "_connect",
        "_context",
        "_discarding",
        "_empty",
        "_finish",
        "_full",
        "_header",
        "_in",
        "_inside",
        "_is_poor",
        "_loop",
        "_moved",
        "_out",
        "_pump_scheduled",
        "_raw",
        "_raw_paused",
        "_read_scheduled",
        "_reading_paused",
        "_since",
        "_tls",
        "_unread",
        "_view",
        "_waits_for_turn",
        "_writing_paused",
        "peer",
    )

    peer: Peer

    def __init__(
        self,
        app: TlsApplication,
        context: ssl.SSLContext,
        connect: Callable[[], asyncio.BufferedProtocol],
        buffer: bytearray,
        answer_plain: bytes,
    ) -> None:
        """Create it.

        Args:
            app: what keeps the handshakes.
            context: with the certificate.
            connect: creates the protocol inside, once the handshake has succeeded.
            buffer: shared, since no callback leaves data in it; not the one that `connect`'s protocol reads into.
            answer_plain: the answer to a client that speaks no TLS.
        """
        super().__init__()
        self._app = app
        self._connect = connect
        self._view = memoryview(buffer)
        self._answer_plain = answer_plain
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()  # of ciphertext
        self._context = context
        self._tls: ssl.SSLObject | None = None  # None: the first record has not arrived
        self._header = b""  # of it
        self._raw: asyncio.Transport | None = None
        self._inside: asyncio.BufferedProtocol | None = None  # None: no handshake yet
        self._loop = asyncio.get_running_loop()
        self._since = 0.0  # when it connected
        self._moved = 0.0  # when its handshake was continued
        self._discarding = False  # what arrives
        self._reading_paused = False
        self._raw_paused = False  # reading of the socket
        self._read_scheduled = False
        self._empty = 0  # bytes of records that have arrived since data was seen
        self._carried = 0  # bytes of data in them
        self._is_poor = False  # its records carry little
        self._waits_for_turn = False  # to be read
        self._unread = 0  # bytes of replies since the kernel's buffer was full
        self._backlog: deque[memoryview] = deque()  # not encrypted yet
        self._backlog_size = 0
        self._full = False  # the kernel's buffer
        self._writing_paused = False  # the protocol inside was notified
        self._pump_scheduled = False
        self._closing = False
        self._finish: Callable[[asyncio.Transport], None] | None = None  # once all is written

    # Called by the event loop.

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = raw = cast("asyncio.Transport", transport)
        raw.set_write_buffer_limits(high=0)  # pause as soon as the kernel's buffer is full
        name = raw.get_extra_info("peername")
        self.peer = self._app.peer(name[0] if name else "")
        self._since = self._moved = time.monotonic()
        if not self._app.shakes_hands(self):
            self.abort()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._raw = None
        self._backlog.clear()
        self._backlog_size = 0
        self._leave()
        inside, self._inside = self._inside, None
        if inside is not None:
            inside.connection_lost(exc)

    @override
    def eof_received(self) -> bool:
        return False  # a client that closes its side is treated as disconnected

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[:_POOR_READ] if self._is_poor else self._view

    @override
    def buffer_updated(self, nbytes: int) -> None:
        if self._discarding:
            if self._inside is not None and not self._closing:  # it takes turns at that, too
                self._inside.get_buffer(-1)
                self._inside.buffer_updated(nbytes)
            return
        if self._inside is not None:
            self._feed(nbytes)
            return
        self._in.write(self._view[:nbytes])
        if self._tls is not None or self._first_record_arrived(nbytes):
            self.pause_reading()  # until it is its turn: requests may follow the last message
            self._app.begun_handshakes.take(self)

    @override
    def pause_writing(self) -> None:
        self._full = True

    @override
    def resume_writing(self) -> None:
        self._full = False
        self._unread = 0
        self._pump()

    # Handshake.

    def _first_record_arrived(self, nbytes: int) -> bool:
        """Return whether the client's first record is complete, as far as its header shows."""
        if len(self._header) < _HEADER_BYTES:
            self._header += self._view[: min(nbytes, _HEADER_BYTES - len(self._header))]
            if self._header[0] != _HANDSHAKE:
                self._refuse_plain()
                return False
            if len(self._header) < _HEADER_BYTES:
                return False
        length = min(int.from_bytes(self._header[3:], "big"), _RECORD_BYTES)
        return self._in.pending >= _HEADER_BYTES + length

    def shake_hands(self) -> None:
        """Continue the handshake with what has arrived."""
        raw = self._raw
        if raw is None or self._discarding:
            return
        if self._tls is None:
            self._tls = self._context.wrap_bio(self._in, self._out, server_side=True)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._write_encrypted(raw)
        except ssl.SSLError:
            self._write_encrypted(raw)  # the alert
            self._end(raw)
        else:
            self._write_encrypted(raw)
            self._leave()
            self._inside = self._connect()
            self._inside.connection_made(self)
        self._moved = time.monotonic()
        self.resume_reading()

    def _leave(self) -> None:
        self._app.shook_hands(self)
        self._app.begun_handshakes.leave(self)

    def _refuse_plain(self) -> None:
        raw = self._raw
        if raw is not None:
            raw.write(self._answer_plain)
            self._end(raw)

    def _end(self, raw: asyncio.Transport) -> None:
        """Close a connection whose handshake has failed; until `check`, it counts as one."""
        self._discarding = True
        with contextlib.suppress(OSError):  # the client is gone
            raw.write_eof()

    def check(self, now: float) -> None:
        """Close the connection if its handshake takes too long; `now` is `time.monotonic()`."""
        settings = self._app.settings
        limit = settings.linger_seconds if self._discarding else settings.head_seconds
        if now > self._since + limit:
            self.abort()

    def close_idle(self) -> None:
        """Close it, since its handshake is not complete."""
        self.abort()

    def waits(self, now: float) -> tuple[WaitsFor, float] | None:
        """Return for what the handshake waits, and since when, as `eviction.OpenConnection` does."""
        if self._raw is None or self._closing:
            return None
        if self._discarding:
            return WaitsFor.LINGERS, self._since
        # while reading pauses, it waits for its turn and not for its client
        is_silent = not self._reading_paused and now - self._moved > _SILENT_SECONDS
        return WaitsFor.SILENT if is_silent else WaitsFor.NEW, self._moved

    # Reading.

    def _feed(self, nbytes: int) -> None:
        """Decrypt what has arrived, and judge what it carried."""
        for at in range(0, nbytes, _FED_BYTES):
            part = self._view[at : min(nbytes, at + _FED_BYTES)]
            self._in.write(part)
            self._empty += len(part)
            self._decrypt()
            if self._discarding or self.is_closing():
                return
            if self._empty > _EMPTY_BYTES and not self._reading_paused:
                self.abort()
                return
        if self._is_poor and not self._waits_for_turn:
            self._waits_for_turn = True
            self._pause_raw()
            self._app.turns.take(self._take_turn)

    def _take_turn(self) -> None:
        self._waits_for_turn = False
        self._resume_raw()

    def _decrypt(self) -> None:
        """Hand over what has arrived, as long as the protocol inside takes it."""
        while (inside := self._inside) is not None and not self._reading_paused:
            if self._discarding or self._closing:
                return
            buffer = cast("memoryview", inside.get_buffer(-1))
            size, ended = self._fill(buffer)
            if size:
                self._carried += size
                inside.buffer_updated(size)
            if ended:
                if self._raw is not None and not self._closing:
                    self.close()
                return
            if not size:
                self._judge()
                break
        if self._raw is not None and self._out.pending:  # such as an acknowledged update of keys
            self._unread += self._out.pending if self._full else 0
            self._write_encrypted(self._raw)
            if self._unread > _UNREAD_REPLIES:
                self.abort()

    def _judge(self) -> None:
        """Look at what all that has arrived has carried."""
        if self._carried:
            if self._empty > _FEW_BYTES and self._carried < self._empty * _POOR:
                self._is_poor = True
            self._carried = self._empty = 0

    def _fill(self, buffer: memoryview) -> tuple[int, bool]:
        """Decrypt records into `buffer`; return the bytes, and whether no more will come."""
        tls, size = self._tls, 0
        assert tls is not None  # noqa: S101 - the handshake is complete
        ended = False
        while size < len(buffer) and not ended:
            try:
                read = tls.read(len(buffer) - size, cast("Any", buffer[size:]))
            except ssl.SSLWantReadError:
                break
            except ssl.SSLError:  # such as a close_notify
                ended = True
            else:
                ended = not read
                size += cast("int", read)
        return size, ended

    @override
    def pause_reading(self) -> None:
        self._reading_paused = True
        self._pause_raw()

    def _pause_raw(self) -> None:
        if self._raw is not None and not self._raw_paused and not self._raw.is_closing():
            self._raw_paused = True
            self._raw.pause_reading()

    @override
    def resume_reading(self) -> None:
        self._reading_paused = False
        if not self._read_scheduled:
            self._read_scheduled = True
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        """Hand over what has been read, then read on."""
        self._read_scheduled = False
        if self._raw is None or self._reading_paused:
            return
        self._decrypt()
        self._resume_raw()

    def _resume_raw(self) -> None:
        raw = self._raw
        is_paused = self._reading_paused or self._waits_for_turn
        if self._raw_paused and not is_paused and raw and not raw.is_closing():
            self._raw_paused = False
            raw.resume_reading()

    @override
    def is_reading(self) -> bool:
        return not self._reading_paused

    # Writing.

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
