"""A proxy before a real API server that answers, delays, cuts and keeps silent as networks and overloaded API servers do."""

import asyncio
import json
import random
import re
import ssl
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Literal, Self

import aiohttp
import yaml
from aiohttp import web
from yarl import URL

from tests.support.certificates import Authority

WRITING: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_CUT: Final = b'{"type":"MODIFIED","obj'
_EXPIRED: Final = "too old resource version: 1 (2)"
_REASONS: Final = {
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "",  # etcd's errors have none
    503: "ServiceUnavailable",
}
_HOPS: Final = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}
_LARGEST: Final = 2**26  # bytes of a request
_Transport = asyncio.Transport | None

Action = Literal["refuse", "cut", "lose", "hang", "delay", "stale", "expire"]


@dataclass(frozen=True)
class Rule:
    """What becomes of requests, and of watches that have begun.

    refuse: it gets `status`; cut: the connection ends, a watch's in the middle of a line; lose: the API server gets it,
    and its response is lost; hang: nothing comes, and no error; delay: everything comes late; stale: it gets the first
    response that the same request ever got; expire: a watch ends, as its version is too old.
    """

    does: Action
    status: int = 0
    methods: frozenset[str] = WRITING | {"GET"}
    path: str = ""  # a regular expression
    watches: bool | None = None  # only them, or only other requests
    share: float = 1.0  # of the requests
    retry_after: int = 0  # seconds
    seconds: float = 0.0  # of a delay
    open_before: bool = False  # only on connections that were open when the rule began

    def is_for(self, request: web.Request, chance: float) -> bool:
        """Return whether it is for a request; `chance`: between 0 and 1."""
        return (
            request.method in self.methods
            and self.watches in (None, _is_watch(request))
            and bool(re.search(self.path, request.path))
            and chance < self.share
        )


class ApiProxy:
    """Forwards to the API server of a kubeconfig; any thread may set the rules."""

    def __init__(self, kubeconfig: Path, folder: Path, seed: int = 0) -> None:
        self._document = yaml.safe_load(kubeconfig.read_text())
        self._folder = folder
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._rules: Sequence[Rule] = ()
        self._before: frozenset[_Transport] = frozenset()  # connections when they began
        self._connections: set[_Transport] = set()
        self._firsts: dict[str, tuple[int, bytes]] = {}  # status and body by target
        self.kubeconfig = folder / "through-proxy"
        self._loop = asyncio.new_event_loop()
        self._changed: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._await(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self.set()
        self._await(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def set(self, *rules: Rule) -> None:
        """Have these rules from now on; without any, forward everything."""
        self._await(self._set(rules))

    def _await(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _set(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._before = frozenset(self._connections)
        changed, self._changed = self._changed, self._loop.create_future()
        changed.set_result(None)

    async def _start(self) -> None:
        cluster = self._document["clusters"][0]["cluster"]
        self._url = cluster["server"]
        context = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )
        application = web.Application(client_max_size=_LARGEST)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await self._runner.setup()
        authority = Authority(self._folder / "proxy-authority")
        pair = authority.issue()
        for name, content in pair.files.items():
            (self._folder / name).write_text(content)
        served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        served.load_cert_chain(self._folder / "tls.crt", self._folder / "tls.key")
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=served).start()
        port = self._runner.addresses[0][1]
        cluster |= {
            "server": f"https://127.0.0.1:{port}",
            "certificate-authority": str(authority.path),
        }
        self.kubeconfig.write_text(json.dumps(self._document))

    async def _stop(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    def _find(self, request: web.Request) -> Rule | None:
        """Return the first rule for a request."""
        for rule in self._rules:
            is_old = request.transport in self._before
            if (is_old or not rule.open_before) and rule.is_for(request, self._random.random()):
                return rule
        return None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self._connections.add(request.transport)
        body = await request.read()
        with suppress(aiohttp.ClientError, ConnectionError):
            if _is_watch(request):
                return await self._watch(request)
            return await self._answer(request, body)
        return _abort(request)

    async def _answer(self, request: web.Request, body: bytes) -> web.StreamResponse:
        rule = self._find(request)
        does = rule.does if rule else None
        if rule and does in ("cut", "hang"):
            await self._leave(request, hangs=does == "hang")
        if rule and does == "refuse":
            return _refuse(rule)
        if rule and does == "stale" and (first := self._firsts.get(request.raw_path)):
            return web.Response(status=first[0], body=first[1], content_type="application/json")
        if rule:
            await asyncio.sleep(rule.seconds)
        async with self._send(request, body) as response:
            content = await response.read()
        if does == "lose":
            await self._leave(request, hangs=False)
        if request.method == "GET" and response.status == HTTPStatus.OK:
            self._firsts.setdefault(request.raw_path, (response.status, content))
        return web.Response(
            status=response.status, body=content, headers=_list_forwarded(response.headers)
        )

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        changed, rule = self._changed, self._find(request)
        if rule and rule.does == "refuse":
            return _refuse(rule)
        async with self._send(request, b"") as upstream:
            response = web.StreamResponse(
                status=upstream.status, headers=_list_forwarded(upstream.headers)
            )
            response.enable_chunked_encoding()
            await response.prepare(request)
            reading = asyncio.ensure_future(upstream.content.readany())
            try:
                while True:
                    if rule and rule.does in ("cut", "hang"):
                        await response.write(_CUT if rule.does == "cut" else b"")
                        await self._leave(request, hangs=rule.does == "hang")
                    if rule and rule.does == "expire":
                        status = {"kind": "Status", "code": 410, "message": _EXPIRED}
                        await response.write(_line({"type": "ERROR", "object": status}))
                        break
                    await asyncio.wait((reading, changed), return_when=asyncio.FIRST_COMPLETED)
                    if changed.done():
                        changed, rule = self._changed, self._find(request)
                    if reading.done():
                        if not (chunk := reading.result()):
                            break
                        await asyncio.sleep(rule.seconds if rule else 0)
                        await response.write(chunk)
                        reading = asyncio.ensure_future(upstream.content.readany())
            finally:
                reading.cancel()
            await response.write_eof()
            return response

    async def _leave(self, request: web.Request, *, hangs: bool) -> None:
        """End a request's connection, once the rules have changed if it hangs. Raises ConnectionError."""
        if hangs:
            await asyncio.shield(self._changed)
        raise ConnectionAbortedError(request.path)

    def _send(self, request: web.Request, body: bytes) -> Any:
        headers = _list_forwarded(request.headers)
        url = URL(f"{self._url}{request.raw_path}", encoded=True)
        return self._session.request(
            request.method, url, data=body or None, headers=headers, allow_redirects=False
        )


def _is_watch(request: web.Request) -> bool:
    return request.query.get("watch") in ("1", "true")


def _list_forwarded(headers: Any) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOPS}


def _refuse(rule: Rule) -> web.Response:
    reason = _REASONS[rule.status]
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": rule.status,
        "reason": reason,
        "message": f"the test refuses it: {rule.status}",
    }
    headers = {"Retry-After": str(rule.retry_after)} if rule.retry_after else {}
    return web.json_response(status, status=rule.status, headers=headers)


def _abort(request: web.Request) -> web.Response:
    """End the connection without a response."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _line(event: dict[str, Any]) -> bytes:
    return json.dumps(event).encode() + b"\n"
