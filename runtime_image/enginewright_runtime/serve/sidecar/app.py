"""What answers what, on the server's own connections: they have the limits and the time-outs."""

import asyncio
import contextlib
import time
from dataclasses import replace
from email.utils import formatdate
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from enginewright_runtime.serve.server.connection import Connection, make_room
from enginewright_runtime.serve.server.message import JSON_TYPE, Request, Response
from enginewright_runtime.serve.server.settings import Settings
from enginewright_runtime.serve.sidecar.exposition import CONTENT_TYPE
from enginewright_runtime.serve.sidecar.findings import Findings
from enginewright_runtime.serve.sidecar.metrics import expose
from enginewright_runtime.serve.sidecar.watch import Watch

_CONNECTIONS: Final = 64  # kubelet, operator, Prometheus, people
_SWEEP_SECONDS: Final = 1.0
_PATHS: Final = ("/readyz", "/healthz", "/verdict", "/metrics")


class App:
    """The application behind all connections of one sidecar."""

    def __init__(self, findings: Findings, watch: Watch) -> None:
        self.settings = replace(Settings(), connections=_CONNECTIONS, reserved_connections=0)
        self.draining = False
        self.date = b""
        self._findings = findings
        self._watch = watch
        self._connections: set[Connection] = set()
        self._scrape: asyncio.Task[bytes] | None = None
        self._answering: set[asyncio.Task[None]] = set()
        self._renew_date()

    async def sweep(self) -> None:
        """Cut off connections whose time is up, for as long as the sidecar runs."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self._renew_date()
            now = time.monotonic()
            for connection in tuple(self._connections):
                connection.check(now)

    # What `Connection` asks of its application.

    def connected(self, connection: Connection) -> bool:
        """Take in a connection; False when there are too many with requests."""
        room = len(self._connections) < self.settings.connections or make_room(self._connections)
        self._connections.add(connection)
        return room

    def disconnected(self, connection: Connection) -> None:
        """Forget a connection."""
        self._connections.discard(connection)

    def refuse(self, status: int, message: str, headers: bytes = b"") -> Response:
        """Build an error answer."""
        return _json(status, {"error": message}, headers)

    def admit(self, request: Request) -> Response | None:
        """Refuse a request that is not a GET of something that there is."""
        if request.method not in (b"GET", b"HEAD"):
            return self.refuse(405, "use GET", b"Allow: GET, HEAD\r\n")
        parts = _split(request.target)
        if parts.path not in _PATHS:
            return self.refuse(404, f"there is {', '.join(_PATHS)}")
        return None

    def account(self, request: Request, size: int) -> Response | None:
        """Refuse every body: no question here has one."""
        del request, size
        return self.refuse(413, "send no body")

    def release(self, request: Request) -> None:
        """Give back what `account` took, which is nothing."""

    def serve(self, connection: Connection, request: Request) -> Response | None:
        """Answer; metrics later, because the server's are part of them."""
        parts = _split(request.target)
        match parts.path:
            case "/readyz":
                return _state("ready", ok=self._findings.ready)
            case "/healthz":
                return _state("healthy", ok=self._watch.alive)
            case "/verdict":
                body = self._findings.verdict().to_json().encode()
                return Response(200, JSON_TYPE, [body], len(body))
            case _:
                task = asyncio.create_task(self._expose(connection))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
                return None

    async def _expose(self, connection: Connection) -> None:
        if self._scrape is None or self._scrape.done():
            self._scrape = asyncio.create_task(self._watch.scrape())
        server = b""
        with contextlib.suppress(Exception):  # the sidecar's own figures come in any case
            server = await asyncio.shield(self._scrape)
        text = expose(self._findings, server)
        connection.respond(Response(200, CONTENT_TYPE, [text], len(text)))

    def _renew_date(self) -> None:
        self.date = f"Date: {formatdate(usegmt=True)}\r\n".encode()


def _split(target: bytes) -> Any:  # noqa: ANN401 - the type of urlsplit's result is private
    try:
        return urlsplit(target.decode(errors="replace"))
    except ValueError:
        return urlsplit("")


def _json(status: int, document: dict[str, Any], headers: bytes = b"") -> Response:
    body = orjson.dumps(document)
    return Response(status, JSON_TYPE + headers, [body], len(body))


def _state(what: str, *, ok: bool) -> Response:
    return _json(200 if ok else 503, {what: ok})
