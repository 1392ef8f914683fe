"""TLS between a socket and a connection that speaks HTTP: a protocol for the one, a transport for the other.

The event loop's own TLS keeps 256 KiB for each connection, encrypts a response at once, however large,
and does not count what it has encrypted as unsent. Here, what arrives is decrypted from a buffer that all
connections share into the memory that the connection gives, a response is encrypted as fast as its client
reads, and all that is unsent is counted.

A handshake counts as a connection that has sent nothing: among others it is the first to be closed.

This is the handshake and what the event loop calls; `tls_reading` is what follows it, `tls_transport` the
protocol's transport.
"""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable
from typing import Final, Protocol, cast

from typing_extensions import override

from enginewright_serving.server.eviction import WaitsFor
from enginewright_serving.server.handshakes import Handshakes
from enginewright_serving.server.input_turns import InputTurns
from enginewright_serving.server.settings import ServerSettings
from enginewright_serving.server.tls_reading import POOR_READ, RECORD_BYTES, TlsReading

_HANDSHAKE: Final = 0x16  # the first byte of a client's first record (RFC 8446 5.1)
_HEADER_BYTES: Final = 5  # of a record
_SILENT_SECONDS: Final = 1.0  # in which clients answer: some compute slowly, or are far away


class TlsApplication(Protocol):
    """What keeps the handshakes."""

    settings: ServerSettings
    turns: InputTurns
    begun_handshakes: Handshakes

    def shakes_hands(self, handshake: "TlsConnection") -> bool:
        """Add a handshake; False: no capacity is left."""

    def shook_hands(self, handshake: "TlsConnection") -> None:
        """Remove a handshake, which has succeeded or failed; idempotent."""


class TlsConnection(asyncio.BufferedProtocol, TlsReading):
    """One client's connection, and the transport of the protocol inside of it."""

    __slots__ = (
        "_answer_plain",
        "_app",
        "_connect",
        "_context",
        "_header",
        "_moved",
        "_since",
    )

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
        super().__init__(app.turns, buffer)
        self._app = app
        self._context = context
        self._connect = connect
        self._answer_plain = answer_plain
        self._header = b""  # of the first record
        self._since = 0.0  # when it connected
        self._moved = 0.0  # when its handshake was continued

    # Called by the event loop.

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = raw = cast("asyncio.Transport", transport)
        raw.set_write_buffer_limits(high=0)  # pause as soon as the kernel's buffer is full
        self._since = self._moved = time.monotonic()
        if not self._app.shakes_hands(self):
            self.abort()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._raw = None
        self._backlog.clear()
        self._backlog_size = 0
        self._leave()
        self._tls = (
            None  # tens of kilobytes, and whoever keeps a closed connection for a while keeps it
        )
        inside, self._inside = self._inside, None
        if inside is not None:
            inside.connection_lost(exc)

    @override
    def eof_received(self) -> bool:
        return False  # a client that closes its side is treated as disconnected

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[:POOR_READ] if self._is_poor else self._view

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
        length = min(int.from_bytes(self._header[3:], "big"), RECORD_BYTES)
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
