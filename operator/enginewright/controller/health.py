"""Probes and metrics over HTTP: alive, ready, and what Prometheus scrapes."""

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

_logger = logging.getLogger(__name__)

Check = Callable[[], str | None]  # returns the problem, if any


class HealthServer:
    """`/healthz`, `/readyz` and `/metrics`; none of them responds if the event loop is stuck."""

    def __init__(
        self, port: int, *, alive: Check, ready: Check, registry: CollectorRegistry
    ) -> None:
        self._port = port
        self._registry = registry
        application = web.Application()
        application.router.add_get("/healthz", _answer(alive))
        application.router.add_get("/readyz", _answer(ready))
        application.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)

    async def start(self) -> None:
        """Listen on all addresses; OSError when the port is taken."""
        await self._runner.setup()
        await web.TCPSite(self._runner, port=self._port).start()
        _logger.info("serving /healthz, /readyz and /metrics on port %d", self._port)

    async def stop(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )


def _answer(check: Check) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(_request: web.Request) -> web.StreamResponse:
        problem = check()
        return web.Response(status=200 if problem is None else 503, text=f"{problem or 'ok'}\n")

    return handle
