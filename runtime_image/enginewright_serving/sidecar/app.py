"""The sidecar's HTTP endpoints.

At the limit of connections a new one replaces one that waits, for its client or for metrics, so that the kubelet's
probes and scrapes are always answered. The verdict is encoded when it changes; large responses are built once for
all requests within an interval.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final
from urllib.parse import SplitResult, parse_qs, urlsplit

from enginewright_contract.measurements import PROBE_QUERY
from typing_extensions import override

from enginewright_serving.sidecar.exposition import CONTENT_TYPE
from enginewright_serving.sidecar.metrics import expose
from enginewright_serving.sidecar.monitor import Monitor
from enginewright_serving.sidecar.pod_state import PodState
from enginewright_serving.transport.application import RETRY_AFTER, json_response
from enginewright_serving.transport.connection import Connection
from enginewright_serving.transport.files import fit_files
from enginewright_serving.transport.http_application import HttpApplication
from enginewright_serving.transport.message import HttpRequest, HttpResponse
from enginewright_serving.transport.settings import MIB, TransportSettings

_CONNECTIONS: Final = 256
_INFLIGHT_BYTES: Final = 32 * MIB  # responses that are not read
_SWEEP_SECONDS: Final = 1.0
_EXPOSITION_AGE: Final = 0.1  # seconds; each one costs the server time, too
_MEASUREMENTS_AGE: Final = 1.0  # likewise
_PATHS: Final = ("/readyz", "/healthz", "/verdict", "/metrics", "/measurements")


class SidecarApp(HttpApplication[Connection]):
    """The application behind all connections of one sidecar."""

    def __init__(self, pod_state: PodState, monitor: Monitor) -> None:
        settings = fit_files(
            TransportSettings(
                connections=_CONNECTIONS,
                reserved_connections=0,
                inflight_bytes=_INFLIGHT_BYTES,
                drained_body_bytes=0,
                connection_age=math.inf,  # pods' own addresses are asked: nothing to rebalance
            )
        )
        super().__init__(settings)
        self._pod_state = pod_state
        self._monitor = monitor
        self._verdict = pod_state.verdict()
        self._encoded = json_response(200, self._verdict.to_json().encode())
        # never with an older verdict than /verdict has
        self._exposed = _Shared(self._exposition, _EXPOSITION_AGE, pod_state.verdict)
        self._reported = _Shared(self._measurements, _MEASUREMENTS_AGE)
        self._answering: dict[Connection, asyncio.Task[None]] = {}

    async def sweep(self) -> None:
        """Close connections that exceed their time limits, for as long as the sidecar runs."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self.renew_date()
            await self.check_connections()

    @override
    def remove_connection(self, connection: Connection) -> None:
        super().remove_connection(connection)
        if answering := self._answering.pop(connection, None):
            answering.cancel()

    @override
    def admit(self, request: HttpRequest) -> HttpResponse | None:
        if request.method not in (b"GET", b"HEAD"):
            return self.refuse(405, "use GET", b"Allow: GET, HEAD\r\n")
        if _target(request).path not in _PATHS:
            return self.refuse(404, f"not found; the paths are {', '.join(_PATHS)}")
        if request.length or request.chunked:
            return self.refuse(413, "send no body")
        return None

    @override
    def serve(self, connection: Connection, request: HttpRequest) -> HttpResponse | None:
        target = _target(request)
        match target.path:
            case "/readyz":
                return _state("ready", ok=self._pod_state.ready)
            case "/healthz":
                return _state("healthy", ok=self._monitor.alive)
            case "/verdict":
                return self._encode_verdict()
            case "/measurements":
                if parse_qs(target.query).get(PROBE_QUERY) == ["1"]:
                    self._pod_state.probe()
                answer = self._reported
            case _:
                answer = self._exposed
        request.replaceable = True  # the server is asked first
        task = asyncio.create_task(self._respond(connection, request, answer))
        self._answering[connection] = task
        return None

    async def _respond(
        self, connection: Connection, request: HttpRequest, answer: "_Shared"
    ) -> None:
        response = await answer.get()
        self._answering.pop(connection, None)  # first: it may ask again
        connection.respond(request, response)

    def _encode_verdict(self) -> HttpResponse:
        verdict = self._pod_state.verdict()
        if verdict is not self._verdict:
            self._verdict = verdict
            self._encoded = json_response(200, verdict.to_json().encode())
        return self._encoded

    async def _exposition(self) -> HttpResponse:
        server = b""
        with contextlib.suppress(Exception):  # the sidecar's own metrics are exposed in any case
            server = await self._monitor.scrape()
        text = expose(self._pod_state, server)
        return HttpResponse(200, CONTENT_TYPE, [text], len(text))

    async def _measurements(self) -> HttpResponse:
        with contextlib.suppress(Exception):  # what was measured before is reported in any case
            await self._monitor.measure()
        document = self._pod_state.measurements.document
        if document is None:
            return self.refuse(503, "the server has not reported measurements yet", RETRY_AFTER)
        return json_response(200, document.to_json().encode())


class _Shared:
    """A response that is built once for all requests within `age` seconds, while `state` returns the same object.

    Requests that arrive while it is built share it. An error is returned to these only.
    """

    def __init__(
        self,
        build: Callable[[], Coroutine[Any, Any, HttpResponse]],
        age: float,
        state: Callable[[], object] = lambda: None,
    ) -> None:
        self._build = build
        self._age = age
        self._current_state = state
        self._state: object = None
        self._task: asyncio.Task[HttpResponse] | None = None
        self._began = float("-inf")

    async def get(self) -> HttpResponse:
        task, now = self._task, time.monotonic()
        if task is None or not self._applies(task, now):
            self._began = now
            task = self._task = asyncio.create_task(self._rebuild())
        return await asyncio.shield(task)

    async def _rebuild(self) -> HttpResponse:
        response = await self._build()
        self._state = self._current_state()
        return response

    def _applies(self, task: asyncio.Task[HttpResponse], now: float) -> bool:
        if not task.done():
            return True
        built = task.exception() is None and task.result().status == 200
        is_current = now - self._began < self._age and self._current_state() is self._state
        return built and is_current


def _target(request: HttpRequest) -> SplitResult:
    try:
        return urlsplit(request.target.decode(errors="replace"))
    except ValueError:
        return urlsplit("")


def _state(what: str, *, ok: bool) -> HttpResponse:
    return json_response(200 if ok else 503, {what: ok})
