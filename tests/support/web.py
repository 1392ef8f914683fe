"""A real HTTP server whose answers a test decides."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from typing_extensions import override

Answer = Callable[["Request"], None]


class Request(BaseHTTPRequestHandler):
    """One request; the route's answer writes to it."""

    server: "WebServer"

    def do_GET(self) -> None:
        """Answer as set by the test, otherwise with 404."""
        self.server.seen.append((self.path, dict(self.headers)))
        answer = self.server.routes.get(self.path.partition("?")[0])
        if answer is None:
            self.send_error(404)
        else:
            answer(self)

    def send(self, content: bytes, status: int = 200, **headers: str) -> None:
        """Send a complete answer; underscores in header names become dashes."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class LoopbackServer(ThreadingHTTPServer):
    """Serves on a free port of the loopback interface while its context lasts."""

    daemon_threads = True
    scheme = "http"

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}"

    @override
    def __enter__(self) -> Self:
        self._thread.start()
        return self

    @override
    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join(10)
        self.server_close()


class WebServer(LoopbackServer):
    """Serves `routes`, and remembers requests."""

    def __init__(self) -> None:
        super().__init__(Request)
        self.routes: dict[str, Answer] = {}
        self.seen: list[tuple[str, dict[str, str]]] = []


def serve(content: bytes, **headers: str) -> Answer:
    """Return an answer that sends `content`."""
    return lambda request: request.send(content, 200, **headers)


def cut_off(content: bytes, after: int, etag: str | None = '"1"', **headers: str) -> Answer:
    """Return an answer that breaks off after some bytes, and supports range requests to resume.

    Every answer sends at most `after` bytes of what was asked for, then closes.
    """

    def answer(request: Request) -> None:
        span = request.headers.get("Range")
        start = int(span.removeprefix("bytes=").rstrip("-")) if span else 0
        rest = content[start:]
        request.send_response(206 if span else 200)
        if etag:
            request.send_header("ETag", etag)
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        if span:
            request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        request.send_header("Content-Length", str(len(rest)))
        request.end_headers()
        request.wfile.write(rest[:after])
        request.wfile.flush()
        request.close_connection = True

    return answer
