"""The ports of the server and the applications behind them, from opening to drain."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata
from typing import Final

from enginewright_contract.task import ServeTask

from enginewright_serving.mounted_secret import MountedSecret
from enginewright_serving.server.api.app import ServerApp
from enginewright_serving.server.api.authentication import (
    Authentication,
    GuardedGrpcApp,
    GuardedServerApp,
)
from enginewright_serving.server.api.grpc.app import GrpcApp
from enginewright_serving.server.api.tracing import RequestTracer
from enginewright_serving.server.observe.access_log import AccessLogWriter
from enginewright_serving.server.startup.prepare import ServedModel
from enginewright_serving.transport.acceptor import Acceptor
from enginewright_serving.transport.application import ServedConnection
from enginewright_serving.transport.certificate import Certificate
from enginewright_serving.transport.connection import RECEIVE_BYTES, Connection
from enginewright_serving.transport.grpc.call import Calls
from enginewright_serving.transport.head import HeadParser
from enginewright_serving.transport.http2.connection import Http2Connection
from enginewright_serving.transport.settings import TransportSettings
from enginewright_serving.transport.tls import TlsPort

_log: Final = logging.getLogger(__name__)
_LINGER_SECONDS: Final = 3.0  # accepts after SIGTERM, while endpoints are still being removed
_DRAIN_SECONDS: Final = 25.0  # after SIGTERM; then open connections are aborted
_POLL_SECONDS: Final = 0.05
_FLUSH_SECONDS: Final = 1.0


class Endpoints:
    """HTTP and gRPC of one process."""

    def __init__(
        self,
        task: ServeTask,
        settings: TransportSettings,
        probe_token: str,
        *,
        tokens: MountedSecret,
        tls: MountedSecret,
    ) -> None:
        """Create it without a port; raises StageFailure if a Secret that the task requires cannot be used."""
        self._settings = settings
        seconds = task.drain_seconds
        self._drain_seconds = _DRAIN_SECONDS if seconds is None else seconds
        version = metadata.version("enginewright")
        self.app: ServerApp
        self.grpc: GrpcApp
        self._authentication: Authentication | None = None
        if task.auth:
            self._authentication = guard = Authentication(tokens, task.revision)
            self.app = GuardedServerApp(task, settings, version, probe_token, guard)
            self.grpc = GuardedGrpcApp(task, settings, version, self.app, guard)
        else:
            self.app = ServerApp(task, settings, version, probe_token)
            self.grpc = GrpcApp(task, settings, version, self.app)
        self._access_log: AccessLogWriter | None = None
        if task.access_log is not None:
            self._access_log = log = AccessLogWriter(task.access_log)
            self.app.observe(log, refused=True)
            self.app.metrics.dropped["access_log"] = lambda: log.dropped
        self._tracing = _tracing(task, self.app)
        self._apps = self.app, self.grpc
        self._certificate = Certificate(tls) if task.tls else None
        self._calls = Calls(self.grpc)
        self._buffer = bytearray(RECEIVE_BYTES)
        self._heads = HeadParser(authorization=task.auth)
        self._acceptors: list[Acceptor] = []

    def accept(self, http: socket.socket, grpc: socket.socket) -> None:
        """Accept connections of these listening sockets, which are the endpoints' from now on."""
        http_tls = grpc_tls = None
        if certificate := self._certificate:
            http_tls = TlsPort(lambda: certificate.contexts.http, self._settings)
            grpc_tls = TlsPort(lambda: certificate.contexts.grpc, self._settings)
        connect_http = partial(Connection, self.app, self._heads, self._buffer)
        connect_grpc = partial(Http2Connection, self.grpc, self._calls, self._buffer)
        self._acceptors = [
            Acceptor(http, connect_http, self.app.close_one, http_tls),
            Acceptor(grpc, connect_grpc, self.grpc.close_one, grpc_tls),
        ]

    def serve_model(self, model: ServedModel, on_lost_thread: Callable[[], None]) -> None:
        """Become ready with `model`; `on_lost_thread` as in `InferenceWorker`."""
        self.grpc.serve_model(model)
        self.app.serve_model(model, on_lost_thread)

    def begin_drain(self) -> None:
        """Stop being ready; every response from now on closes its connection."""
        self.app.drain()
        self.grpc.draining = True

    async def drain(self) -> None:
        """Serve new requests while endpoints are removed, then finish the remaining ones."""
        began = time.monotonic()
        inference = self.app.inference
        await asyncio.sleep(_LINGER_SECONDS)
        self.close()
        for connection in self._connections:
            connection.close_idle()
        while self._connections or inference.outstanding:
            if time.monotonic() - began > self._drain_seconds:
                _log.error(
                    "%d connections and %d requests were aborted after %.0f s",
                    len(self._connections),
                    inference.outstanding,
                    self._drain_seconds,
                )
                for connection in self._connections:
                    connection.abort()
                return
            await asyncio.sleep(_POLL_SECONDS)
        _log.info("drained in %.1f s", time.monotonic() - began)

    def close(self) -> None:
        """Accept no more connections; idempotent."""
        for acceptor in self._acceptors:
            acceptor.close()

    def flush(self) -> None:
        """Write the access log and traces that wait, within two seconds."""
        if self._access_log is not None:
            self._access_log.close(_FLUSH_SECONDS)
        if self._tracing is not None:
            self._tracing.close(_FLUSH_SECONDS)

    async def sweep(self) -> None:
        """Enforce the time limits of runs and connections until cancelled."""
        while True:
            await asyncio.sleep(self._settings.sweep_seconds)
            if self._authentication is not None:
                self._authentication.renew()
            if self._certificate is not None:
                self._certificate.renew()
            self.app.renew_date()
            self.app.inference.stop_long_run()
            self.app.inference.results.expire_waiting(time.monotonic())
            for app in self._apps:
                await app.check_connections()

    @property
    def _connections(self) -> list[ServedConnection]:
        return [connection for app in self._apps for connection in app.connections]


def _tracing(task: ServeTask, app: ServerApp) -> RequestTracer | None:
    """Trace the requests of `app` if the task asks for that; without OpenTelemetry they are served anyway."""
    if task.tracing is None:
        return None
    try:
        tracing = RequestTracer(task, task.tracing)
    except ImportError as error:
        _log.error(
            "spec.serving.tracing has no effect, since the image lacks OpenTelemetry: %s", error
        )
        return None
    app.observe(tracing)
    app.metrics.dropped["trace"] = lambda: tracing.dropped
    return tracing
