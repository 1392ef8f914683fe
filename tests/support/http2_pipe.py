"""A connection of the server without a socket, driven from within the event loop of a test."""

import asyncio
from typing import Any

from enginewright_serving.transport.grpc.call import Calls
from enginewright_serving.transport.http2.connection import Http2Connection
from enginewright_serving.transport.settings import TransportSettings
from typing_extensions import override

from tests.support import http2
from tests.support.grpc_echo import RECEIVE_BYTES, EchoApp

DEFAULTS = TransportSettings()


class Pipe(asyncio.Transport):
    """A transport that accepts `room` bytes before it is full."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.held = b""  # of the transport's buffer
        self.room: float = float("inf")
        self.reading = True
        self.aborted = False
        self.ended = False
        self.protocol: Http2Connection | None = None

    @override
    def write(self, data: Any) -> None:
        self.held += data
        self._pass()
        if self.held and self.protocol is not None:
            self.protocol.pause_writing()

    @override
    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def accept(self, room: float) -> None:
        """Have the client read `room` more bytes."""
        self.room += room
        was_full = bool(self.held)
        self._pass()
        if was_full and not self.held and self.protocol is not None:
            self.protocol.resume_writing()

    def _pass(self) -> None:
        size = int(min(len(self.held), self.room))
        self.room -= size
        self.written += self.held[:size]
        self.held = self.held[size:]

    @override
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    @override
    def get_write_buffer_size(self) -> int:
        return len(self.held)

    @override
    def is_closing(self) -> bool:
        return False

    @override
    def can_write_eof(self) -> bool:
        return True

    @override
    def write_eof(self) -> None:
        self.ended = True

    @override
    def abort(self) -> None:
        self.aborted = True

    @override
    def close(self) -> None:
        self.aborted = True

    @override
    def pause_reading(self) -> None:
        self.reading = False

    @override
    def resume_reading(self) -> None:
        self.reading = True


class TlsPipe(Pipe):
    """A transport over TLS, whose socket is closed already."""

    @override
    def can_write_eof(self) -> bool:
        return False

    def get_read_buffer_size(self) -> int:
        """Return the bytes that wait to be decrypted."""
        return 0


class Peer:
    """One client of an application, and its connection."""

    def __init__(
        self, app: EchoApp | None = None, *, opened: bool = True, pipe: Pipe | None = None
    ) -> None:
        self.app = app or EchoApp(DEFAULTS)
        self.pipe = pipe or Pipe()
        self.client = http2.Client()
        self.connection = Http2Connection(self.app, Calls(self.app), bytearray(RECEIVE_BYTES))
        self.pipe.protocol = self.connection
        self.connection.connection_made(self.pipe)
        if opened:
            self.send(self.client.opening)

    def send(self, data: bytes, pieces: int = RECEIVE_BYTES) -> None:
        """Have the server read `data`, at most `pieces` bytes at a time."""
        while data:
            buffer = self.connection.get_buffer(-1)
            size = min(len(data), len(buffer), pieces)
            buffer[:size] = data[:size]
            self.connection.buffer_updated(size)
            data = data[size:]

    async def turns(self) -> None:
        """Let the server do what it has postponed."""
        for _ in range(5000):
            await asyncio.sleep(0.001)
            if self.pipe.reading:
                return

    @property
    def frames(self) -> list[http2.Frame]:
        return http2.split(bytes(self.pipe.written))

    def of(self, kind: int) -> list[http2.Frame]:
        """Return the frames of one type that the server has sent."""
        return [frame for frame in self.frames if frame.kind == kind]

    def responses(self) -> dict[int, http2.Response]:
        """Return all responses so far; only once, as header compression has a state."""
        return self.client.responses(bytes(self.pipe.written))
