"""Clients that take what they can: thousands of connections of one kind, as a process of their own.

Each kind keeps its number of connections open and reconnects where the other side closes one. A process
of its own, so that what these clients cost does not slow those who measure beside them.
"""

import contextlib
import errno
import os
import select
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from enginewright_serving.transport.http2 import frames

from tests.support import http2

HTTP: Final = "http"
GRPC: Final = "grpc"
_GET: Final = b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n"
_POST: Final = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\n"
_LARGE: Final = b"Inference-Header-Content-Length: 9\r\nContent-Length: 60000000\r\n"
_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
_STATELESS: Final = http2.Client()
_STATELESS.encoder.header_table_size = 0  # its calls can be sent on any connection
_BATCH: Final = 200  # connections that are begun between two looks at the others


class NotConnectedError(Exception):
    """Some clients could not connect."""


@dataclass(frozen=True)
class Kind:
    """What each connection does."""

    first: bytes = b""  # sent at once
    then: bytes = b""  # sent again and again
    pause: float = 0.0  # seconds between two of these; 0: as fast as they are taken
    reads: bool = True
    lives: float = float("inf")  # seconds, then it is replaced by a new one
    receive_bytes: int | None = None  # of the kernel's buffer for what it does not read


def _hello() -> bytes:
    """Return a client's first flight of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    out = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out).do_handshake()
    return out.read()


KINDS: Final = {
    "idle": Kind(),
    "malformed": Kind(then=_POST + b"Content-Length: 9\r\n\r\nmalformed", pause=1.0),
    "heads": Kind(b"GET /v2/health/live HTTP/1.1\r\nX: "),
    "slow heads": Kind(b"GET /v2/health/live HTTP/1.1\r\n", b"X", 0.5),
    "header floods": Kind(b"GET / HTTP/1.1\r\n", b"X: y\r\n" * 500),
    "bodies": Kind(_POST + _LARGE + b"\r\n", b"x", 0.2),
    "slow bodies": Kind(_POST + _LARGE + b"\r\n", b"x" * 4096, 0.2),
    "fast bodies": Kind(_POST + _LARGE + b"\r\n", b"x" * 262_144),
    "expecting": Kind(_POST + _LARGE + b"Expect: 100-continue\r\n\r\n"),
    "tiny chunks": Kind(_POST + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n" * 5000),
    "pipelines": Kind(then=_GET * 1000),
    "metrics": Kind(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n" * 500, reads=False),
    "refused": Kind(b"nonsense\r\n\r\n", b"x", 0.2, reads=False),
    "storm": Kind(b"GET /v2/health/live HTTP/1.1\r\nX: ", lives=0.1),
    "connects": Kind(lives=0.1),
    "half hellos": Kind(_hello()[:100]),
    "hellos": Kind(_hello()),  # of handshakes that are never completed
    "hello storm": Kind(_hello(), lives=0.5),
}


def _announce(stream: int) -> bytes:
    """Return a call of gRPC whose message of 60 MB has begun."""
    client = http2.Client()
    headers = client.headers(stream, http2.call_headers(_INFER))
    return headers + http2.data(stream, b"\0\x03\x93\x87\0" + bytes(100))


def _data(size: int) -> bytes:
    return http2.data(1, bytes(size))


_CALLS: Final = b"".join(
    _STATELESS.call(stream, "/inference.GRPCInferenceService/ServerLive", b"")
    for stream in range(1, 2001, 2)
)
# of the gRPC port
GRPC_KINDS: Final = {
    "idle": Kind(),
    "begun": Kind(http2.Client.opening),
    "pings": Kind(http2.Client.opening, http2.frame(frames.PING, payload=bytes(8)) * 900),
    "settings": Kind(http2.Client.opening, http2.settings() * 90),
    "many calls": Kind(http2.Client.opening + _CALLS),
    "unread calls": Kind(http2.Client.opening + _CALLS, reads=False),
    "resets": Kind(
        http2.Client.opening
        + b"".join(
            _announce(stream) + http2.frame(frames.RST_STREAM, 0, stream, bytes(4))
            for stream in range(1, 1801, 2)
        )
    ),
    "announced": Kind(http2.Client.opening + b"".join(map(_announce, (1, 3, 5, 7)))),
    "slow messages": Kind(http2.Client.opening + _announce(1), _data(4096), 0.2),
    "fast messages": Kind(http2.Client.opening + _announce(1), _data(16_384) * 16),
    "tiny data": Kind(http2.Client.opening + _announce(1), _data(1) * 900),
    "storm": Kind(http2.Client.opening, lives=0.1),
}


class _Client:
    def __init__(self, kind: Kind, sent: bytes, port: int) -> None:
        self.socket = socket.socket()
        self.socket.setblocking(False)
        if not kind.reads:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        code = self.socket.connect_ex(("127.0.0.1", port))
        if code != errno.EINPROGRESS and code:
            self.socket.close()
            raise OSError(code, "connect")
        self.began = time.monotonic()
        self.due = self.began
        self.rest = memoryview(sent)


class _Clients:
    def __init__(self, kind: Kind, port: int, count: int) -> None:
        self._kind = kind
        self._port = port
        self._count = count
        self._clients: dict[int, _Client] = {}
        self._poll = select.epoll()
        self._opened = 0

    def run(self) -> None:
        """Go on until the process is killed; print a line once all have been connected."""
        announced = False
        pending = _Deadlines()
        while True:
            for _ in range(min(_BATCH, self._count - len(self._clients))):
                self._open()
            if not announced and self._opened >= self._count:
                announced = True
                print("connected", flush=True)
            self._look()
            pending.run(self)

    def sweep(self) -> None:
        """Send what is due, and replace what has lived for long enough."""
        now = time.monotonic()
        for client in list(self._clients.values()):
            if now - client.began > self._kind.lives:
                self._close(client)
            elif self._kind.pause and not client.rest and now >= client.due:
                client.rest = memoryview(self._kind.then)
                client.due = now + self._kind.pause
                self._send(client)

    def _open(self) -> None:
        try:
            client = _Client(self._kind, self._kind.first, self._port)
        except OSError:
            return
        self._opened += 1
        self._clients[client.socket.fileno()] = client
        self._poll.register(client.socket, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)

    def _look(self) -> None:
        for number, events in self._poll.poll(0.01):
            client = self._clients.get(number)
            if client is None:
                continue
            if events & select.EPOLLIN:
                self._read(client, events)
            if events & (select.EPOLLERR | select.EPOLLHUP):
                self._close(client)
            elif events & select.EPOLLOUT and client.socket.fileno() >= 0:
                self._send(client)

    def _read(self, client: _Client, events: int) -> None:
        if not self._kind.reads and not events & (select.EPOLLHUP | select.EPOLLERR):
            return
        try:
            while data := client.socket.recv(1 << 18):
                if len(data) < 1 << 18:
                    return
            self._close(client)
        except BlockingIOError:
            return
        except OSError:
            self._close(client)

    def _send(self, client: _Client) -> None:
        try:
            for _ in range(4):  # then it is another's turn
                if not client.rest:
                    if self._kind.pause or not self._kind.then:
                        return
                    client.rest = memoryview(self._kind.then)
                client.rest = client.rest[client.socket.send(client.rest) :]
            self._poll.modify(
                client.socket, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET
            )  # reported again
        except BlockingIOError:
            return
        except OSError:
            self._close(client)

    def _close(self, client: _Client) -> None:
        if client.socket.fileno() >= 0:
            self._clients.pop(client.socket.fileno(), None)
            with contextlib.suppress(OSError):
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.socket.close()


class _Deadlines:
    """Sweeps every few milliseconds."""

    def __init__(self) -> None:
        self._next = 0.0

    def run(self, clients: _Clients) -> None:
        now = time.monotonic()
        if now >= self._next:
            clients.sweep()
            self._next = now + 0.005


@contextmanager
def flood_with(
    port: int,
    kind: str,
    count: int,
    *,
    protocol: str = HTTP,
    yields: bool = False,
    connect_seconds: float = 120.0,
) -> Iterator[None]:
    """Have `count` connections of a kind beside what happens inside, from the same address, as behind a gateway.

    If they yield, they use a processor only while it is otherwise idle.

    Raises:
        NotConnectedError: the server has not let them all connect in time, or has ended.
    """
    command = [sys.executable, "-m", "tests.support.floods", str(port), kind]
    process = subprocess.Popen([*command, str(count), protocol], stdout=subprocess.PIPE)
    try:
        if yields:
            os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], connect_seconds)[0]:
            raise NotConnectedError(f"{count} {kind}: not connected in {connect_seconds:g} s")
        assert process.stdout.readline() == b"connected\n"
        yield
        assert process.poll() is None, "the clients have ended"
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


if __name__ == "__main__":
    _port, _kind, _count, _protocol = sys.argv[1:]
    _kinds = GRPC_KINDS if _protocol == GRPC else KINDS
    _Clients(_kinds[_kind], int(_port), int(_count)).run()
