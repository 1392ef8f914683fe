"""An HTTP server whose answers a function decides, for all methods."""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from typing_extensions import override

from tests.support.web import LoopbackServer


@dataclass(frozen=True)
class Seen:
    method: str
    path: str  # with its query
    headers: Mapping[str, str]
    body: bytes


Answer = tuple[int, dict[str, str], bytes]


class _Handler(BaseHTTPRequestHandler):
    server: "ScriptedServer"

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        seen = Seen(self.command, self.path, dict(self.headers), self.rfile.read(length))
        self.server.seen.append(seen)
        status, headers, body = self.server.answer(seen)
        if "Date" in headers:
            self.send_response_only(status)
        else:
            self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_POST = do_PUT = do_HEAD = do_GET  # noqa: N815 - the base class looks for these names

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class ScriptedServer(LoopbackServer):
    """Answers with a function, and remembers requests."""

    def __init__(
        self, answer: Callable[[Seen], Answer] | None = None, certificate: Path | None = None
    ) -> None:
        super().__init__(_Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)
            self.scheme = "https"
        self.answer = answer or (lambda _: (404, {}, b""))
        self.seen: list[Seen] = []
