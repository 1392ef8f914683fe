"""The cache over HTTP: `GET` and `PUT /files/<scope>/<sha256>`, `/healthz`, `/metrics`.

Any pod of the node reaches it. What one can do is bounded: connections in all and of one address,
writers, the time of a transfer, and the disk.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from typing import Any, Final

from aiohttp import web
from enginewright_contract.node_cache import file_path
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from typing_extensions import override

from enginewright.node_cache.folder import CacheFolder, Damaged, NoRoom, file_name
from enginewright.node_cache.metrics import CacheMetrics

_log: Final = logging.getLogger(__name__)
MOST_CONNECTIONS: Final = 64
MOST_OF_ONE_PEER: Final = 8
MOST_WRITERS: Final = 4
_IDLE_SECONDS: Final = 10.0  # of a connection without a request
_HEAD_BYTES: Final = 4096
_CHUNK: Final = 1 << 20
_GRACE_SECONDS: Final = 10.0  # of a transfer, without any progress
_SLOWEST: Final = 4 << 20  # bytes per second, on average
_FILE: Final = re.compile(file_path("(?P<scope>[0-9a-f]{64})", "(?P<sha256>[0-9a-f]{64})"))
_RESULTS: Final = {
    201: "stored",
    400: "damaged",
    408: "broken",
    409: "present",  # it is being received from another pod
    411: "refused",
    412: "present",
    503: "refused",
    507: "refused",
}
_BROKEN: Final = (ConnectionError, TimeoutError, web.RequestPayloadError)


class CacheServer:
    """One folder over HTTP."""

    def __init__(
        self,
        folder: CacheFolder,
        port: int,
        registry: CollectorRegistry,
        metrics: CacheMetrics,
    ) -> None:
        self._folder = folder
        self._port = port
        self._registry = registry
        self._metrics = metrics
        server = _BoundedServer(
            self._answer,
            access_log=None,
            keepalive_timeout=_IDLE_SECONDS,
            lingering_time=0,  # what is refused is not received
            max_line_size=_HEAD_BYTES,
            max_field_size=_HEAD_BYTES,
            read_bufsize=_CHUNK,
            auto_decompress=False,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=1.0)

    async def start(self) -> None:
        """Listen on all addresses; OSError when the port is taken."""
        await self._runner.setup()
        await web.TCPSite(self._runner, port=self._port).start()
        held, capacity = len(self._folder.entries), self._folder.capacity
        _log.info("serving on port %d: %d files, at most %d bytes", self._port, held, capacity)

    async def stop(self) -> None:
        """Stop listening, and end what is being transferred."""
        await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await self._route(request)
        response.force_close()  # one request each: no client holds a connection, or sends a refused body
        return response

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        if file := _FILE.fullmatch(request.rel_url.raw_path):
            match request.method:
                case "GET":
                    return await self._get(request, file["scope"], file["sha256"])
                case "PUT":
                    return await self._put(request, file["scope"], file["sha256"])
                case _:
                    return web.Response(status=405, headers={"Allow": "GET, PUT"})
        match request.method, request.rel_url.raw_path:
            case "GET", "/healthz":
                return web.Response(text="ok\n")
            case "GET", "/metrics":
                body = generate_latest(self._registry)
                return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
            case _:
                return web.Response(status=404)

    async def _get(self, request: web.BaseRequest, scope: str, sha256: str) -> web.StreamResponse:
        name = file_name(scope, sha256)
        size = self._folder.size(name)
        if size is None:
            self._metrics.read(None)
            return web.Response(status=404)
        response = web.StreamResponse()
        response.content_length = size
        response.force_close()
        try:
            with self._folder.open_file(name) as reader:
                async with asyncio.timeout(_GRACE_SECONDS) as limit:
                    await response.prepare(request)
                    while chunk := await asyncio.to_thread(reader.read, _CHUNK):
                        await response.write(chunk)
                        _extend(limit, len(chunk))
        except OSError as error:
            if not isinstance(error, _BROKEN):
                _log.warning("%s cannot be read: %s", name, error)
            if request.transport is not None:
                request.transport.abort()
            return response
        self._metrics.read(size)
        return response

    async def _put(self, request: web.BaseRequest, scope: str, sha256: str) -> web.Response:
        name = file_name(scope, sha256)
        status = self._refusal(request, name) or await self._receive(request, name, sha256)
        self._metrics.count_write(_RESULTS[status])
        return web.Response(status=status)

    def _refusal(self, request: web.BaseRequest, name: str) -> int | None:
        """Return the status that refuses a file before it is received, if any."""
        if request.content_length is None:
            return 411
        if request.headers.get("If-None-Match") == "*" and name in self._folder.entries:
            return 412
        if self._folder.entries.is_expected(name):
            return 409
        return 503 if self._folder.entries.expected >= MOST_WRITERS else None

    async def _receive(self, request: web.BaseRequest, name: str, sha256: str) -> int:
        size = request.content_length or 0
        try:
            async with asyncio.timeout(_GRACE_SECONDS) as limit:
                await self._folder.write(name, sha256, size, _body(request, limit))
        except NoRoom:
            return 507
        except Damaged:
            return 400
        except _BROKEN:
            return 408
        except OSError as error:
            _log.warning("%s cannot be written: %s", name, error)
            return 507
        return 201


def _extend(limit: asyncio.Timeout, size: int) -> None:
    """Allow a transfer the time of `size` more bytes: it ends once it is slower than it may be."""
    limit.reschedule((limit.when() or 0.0) + size / _SLOWEST)


class _BoundedServer(web.Server):
    """Ends connections at once that are too many, in all or of one address."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - the base class's
        super().__init__(*args, **kwargs)
        self._peers: dict[web.RequestHandler, str] = {}

    @override
    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        address = transport.get_extra_info("peername")
        peer = str(address[0]) if address else ""
        others = [*self._peers.values()]
        self._peers[handler] = peer
        if len(others) >= MOST_CONNECTIONS or others.count(peer) >= MOST_OF_ONE_PEER:
            transport.abort()

    @override
    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        self._peers.pop(handler, None)
        super().connection_lost(handler, exc)


async def _body(request: web.BaseRequest, limit: asyncio.Timeout) -> AsyncIterator[bytes]:
    while chunk := await request.content.readany():
        _extend(limit, len(chunk))
        yield chunk
