"""The sidecar's HTTP endpoints; the server's connection class enforces limits and timeouts."""

import asyncio
import contextlib
import math
import time
from typing import Final
from urllib.parse import SplitResult, parse_qs, urlsplit

from enginewright.contract.measurements import PROBE_QUERY

from enginewright_runtime.serve.server.application import ApplicationBase, json_response
from enginewright_runtime.serve.server.connection import Connection
from enginewright_runtime.serve.server.message import HttpRequest, HttpResponse
from enginewright_runtime.serve.server.settings import ServerSettings
from enginewright_runtime.serve.sidecar.exposition import CONTENT_TYPE
from enginewright_runtime.serve.sidecar.metrics import expose
from enginewright_runtime.serve.sidecar.monitor import Monitor
from enginewright_runtime.serve.sidecar.pod_state import PodState

_CONNECTIONS: Final = 64  # kubelet, operator, Prometheus, users
_SWEEP_SECONDS: Final = 1.0
_PATHS: Final = ("/readyz", "/healthz", "/verdict", "/metrics", "/measurements")


class SidecarApp(ApplicationBase):
    """The application behind all connections of one sidecar."""

    def __init__(self, pod_state: PodState, monitor: Monitor) -> None:
        settings = ServerSettings(
            connections=_CONNECTIONS,
            reserved_connections=0,
            connection_age=math.inf,  # pods' own addresses are asked: there is nothing to rebalance
        )
        super().__init__(settings)
        self._pod_state = pod_state
        self._monitor = monitor
        self._scrape: asyncio.Task[bytes] | None = None
        self._measuring: asyncio.Task[None] | None = None
        self._answering: set[asyncio.Task[None]] = set()

    async def sweep(self) -> None:
        """Close connections that exceed their time limits, for as long as the sidecar runs."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self.renew_date()
            self.check_connections(time.monotonic())

    # `HttpApplication`, called by `Connection`.

    def refuse(self, status: int, message: str, headers: bytes = b"") -> HttpResponse:
        """Build an error response."""
        return json_response(status, {"error": message}, headers)

    def admit(self, request: HttpRequest) -> HttpResponse | None:
        """Refuse a request that is not a GET of an existing path."""
        if request.method not in (b"GET", b"HEAD"):
            return self.refuse(405, "use GET", b"Allow: GET, HEAD\r\n")
        if _target(request).path not in _PATHS:
            return self.refuse(404, f"not found; the paths are {', '.join(_PATHS)}")
        return None

    def account(self, request: HttpRequest, size: int) -> HttpResponse | None:
        """Refuse every body, since no request here needs one."""
        del request, size
        return self.refuse(413, "send no body")

    def release(self, request: HttpRequest) -> None:
        """Do nothing: `account` reserves nothing."""

    def serve(self, connection: Connection, request: HttpRequest) -> HttpResponse | None:
        """Answer; /metrics and /measurements later, since the server is asked first."""
        target = _target(request)
        match target.path:
            case "/readyz":
                return _state("ready", ok=self._pod_state.ready)
            case "/healthz":
                return _state("healthy", ok=self._monitor.alive)
            case "/verdict":
                return json_response(200, self._pod_state.verdict().to_json().encode())
            case "/measurements":
                if parse_qs(target.query).get(PROBE_QUERY) == ["1"]:
                    self._pod_state.probe()
                answer = self._report(connection)
            case _:
                answer = self._expose(connection)
        task = asyncio.create_task(answer)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)
        return None

    async def _expose(self, connection: Connection) -> None:
        if self._scrape is None or self._scrape.done():
            self._scrape = asyncio.create_task(self._monitor.scrape())
        server = b""
        with contextlib.suppress(Exception):  # the sidecar's own metrics are exposed in any case
            server = await asyncio.shield(self._scrape)
        text = expose(self._pod_state, server)
        connection.respond(HttpResponse(200, CONTENT_TYPE, [text], len(text)))

    async def _report(self, connection: Connection) -> None:
        if self._measuring is None or self._measuring.done():
            self._measuring = asyncio.create_task(self._monitor.measure())
        with contextlib.suppress(Exception):  # what was measured before is reported in any case
            await asyncio.shield(self._measuring)
        document = self._pod_state.measurements.document
        if document is None:
            connection.respond(self.refuse(503, "the server has not reported measurements yet"))
        else:
            connection.respond(json_response(200, document.to_json().encode()))


def _target(request: HttpRequest) -> SplitResult:
    try:
        return urlsplit(request.target.decode(errors="replace"))
    except ValueError:
        return urlsplit("")


def _state(what: str, *, ok: bool) -> HttpResponse:
    return json_response(200 if ok else 503, {what: ok})
