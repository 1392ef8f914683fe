"""A TCP proxy that cuts connections at a given point, in front of any real server."""

import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

_CHUNK = 16384
_REQUEST = re.compile(rb"^([A-Z]+ \S+) HTTP/1\.1\r$", re.MULTILINE)


class Cutter:
    """Forwards to a server; each connection ends after `after` bytes of answers, `times` times."""

    def __init__(
        self,
        url: str,
        after: int = 0,
        times: int = 0,
        on_cut: Callable[[], None] = lambda: None,
        *,
        on_request: Callable[[str], None] = lambda _: None,
        port: int = 0,
    ) -> None:
        self.redirect(url)
        self.on_request = on_request  # called with a request before it is forwarded
        self.arm(after, times, on_cut)
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", port))
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._open: list[socket.socket] = []
        self.cuts = 0
        self.requests: list[str] = []  # method and path of every request

    @property
    def url(self) -> str:
        """Return the address that stands for the server's."""
        return f"http://127.0.0.1:{self.port}{self._path}"

    @property
    def port(self) -> int:
        """Return the port of loopback that stands for the server's."""
        port: int = self._listener.getsockname()[1]
        return port

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        # wakes up threads that accept or receive, which close alone does not
        for item in (self._listener, *self._open):
            with suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def arm(self, after: int, times: int, on_cut: Callable[[], None] = lambda: None) -> None:
        """Cut connections after `after` bytes of answers from now on, `times` times."""
        self._after, self._left, self._on_cut = after, times, on_cut

    def redirect(self, url: str) -> None:
        """Forward later connections to another server."""
        parts = urlsplit(url)
        self._to = (parts.hostname or "", parts.port or 80)
        self._path = parts.path

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._forward, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _forward(self, client: socket.socket) -> None:
        try:
            connected = socket.create_connection(self._to, 10)
        except OSError:  # the server is not there
            client.close()
            return
        with client, connected as server:
            self._open += [client, server]
            asking = threading.Thread(target=self._pump, args=(client, server), daemon=True)
            asking.start()
            sent = 0
            with suppress(OSError):
                while chunk := server.recv(_CHUNK):
                    sent += len(chunk)
                    if sent > self._after and self._cut():
                        break
                    client.sendall(chunk)
            for end in (client, server):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            asking.join(10)

    def _cut(self) -> bool:
        with self._lock:
            if self._left == 0:
                return False
            self._left -= 1
            self.cuts += 1
        self._on_cut()
        return True

    def _pump(self, reader: socket.socket, writer: socket.socket) -> None:
        with suppress(OSError):
            while chunk := reader.recv(_CHUNK):
                for line in _REQUEST.findall(chunk):
                    self.requests.append(line.decode())
                    self.on_request(line.decode())
                writer.sendall(chunk)
