"""Pods asked over real HTTP on loopback, by servers that misbehave as they please."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from enginewright.kube.connection import ConnectionNotConfigured
from enginewright.kube.pod_http import (
    MAX_BODY,
    BadAnswer,
    DirectPodHttp,
    NoAnswer,
    PodAddress,
    PodHttp,
    ProxiedPodHttp,
    pod_http,
)
from kubernetes.aio.client.configuration import Configuration

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[int]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def talking(talk: Talk) -> AsyncIterator[int]:
    """Serve raw bytes."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@asynccontextmanager
async def direct() -> AsyncIterator[PodHttp]:
    http = DirectPodHttp()
    try:
        yield http
    finally:
        await http.close()


def pod(port: int, ip: str = "127.0.0.1") -> PodAddress:
    return PodAddress("team a", "p0", ip, port)


async def test_a_pod_is_asked_by_its_address() -> None:
    seen: list[tuple[str, str, dict[str, str]]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((request.method, request.path_qs, dict(request.headers)))
        return web.Response(text="{}")

    async with serving(answer) as port, direct() as http:
        assert await http.get(pod(port), "/verdict") == b"{}"
        assert await http.get(pod(port), "/progress") == b"{}"
    (method, path, headers), (_, second, _) = seen
    assert (method, path, second) == ("GET", "/verdict", "/progress")
    assert headers["Connection"] == "close"
    assert "Authorization" not in headers


async def test_a_refused_ipv6_connection() -> None:
    async with direct() as http:
        with pytest.raises(NoAnswer, match="::1"):
            await http.get(pod(1, "::1"), "/verdict")


@pytest.mark.parametrize(
    ("status", "error"),
    [(301, BadAnswer), (204, BadAnswer), (404, BadAnswer), (500, NoAnswer), (503, NoAnswer)],
)
async def test_only_200_is_an_answer(status: int, error: type[Exception]) -> None:
    asked = 0

    async def answer(_request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(status=status, headers={"Location": "/elsewhere"})

    async with serving(answer) as port, direct() as http:
        with pytest.raises(error, match=f"the status is {status}"):
            await http.get(pod(port), "/verdict")
    assert asked == 1  # a redirect is not followed


async def test_an_answer_without_end_is_cut_off() -> None:
    sent = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" " * 65536)
            sent += 65536

    async with serving(answer) as port, direct() as http:
        with pytest.raises(BadAnswer, match="longer than 524288 bytes"):
            await http.get(pod(port), "/verdict")
    assert sent < 64 * 1024 * 1024


async def test_the_longest_answer_is_taken_whole() -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=b"x" * MAX_BODY)

    async with serving(answer) as port, direct() as http:
        assert len(await http.get(pod(port), "/verdict")) == MAX_BODY


async def test_a_compressed_answer_is_not_blown_up() -> None:
    async def answer(_request: web.Request) -> web.Response:
        response = web.Response(body=b" " * 50_000_000)
        response.enable_compression(web.ContentCoding.gzip)
        return response

    async with serving(answer) as port, direct() as http:
        assert len(await http.get(pod(port), "/verdict")) < MAX_BODY


async def test_a_slow_answer_is_given_up() -> None:
    async def drip(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(100):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.1)

    started = time.monotonic()
    async with talking(drip) as port, direct() as http:
        with pytest.raises(NoAnswer, match="within 2 s"):
            await http.get(pod(port), "/verdict")
    assert time.monotonic() - started < 9  # the whole answer takes 10 s


@pytest.mark.parametrize(
    "wording",
    [
        b"",
        b"no HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfour",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
)
async def test_broken_http_is_no_answer(wording: bytes) -> None:
    async def talk(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(wording)
        await writer.drain()

    async with talking(talk) as port, direct() as http:
        with pytest.raises(NoAnswer):
            await http.get(pod(port), "/verdict")


class ApiServer:
    """Where the requests of a process outside the cluster go."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self.statuses: list[int] = []
        self.loads = 0
        self.port = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.seen.append((request.raw_path, request.headers.get("Authorization", "")))
        status = self.statuses.pop(0) if self.statuses else 200
        return web.Response(status=status, text="{}")

    async def load(self) -> Configuration:
        self.loads += 1
        configuration = Configuration(host=f"http://127.0.0.1:{self.port}")
        configuration.api_key = {"BearerToken": f"Bearer t{self.loads}"}
        return configuration


async def test_outside_the_cluster_the_api_server_passes_it_on() -> None:
    server = ApiServer()
    http = ProxiedPodHttp(server.load)
    async with serving(server.answer) as server.port:
        assert await http.get(pod(8081), "/verdict") == b"{}"
        await http.close()
    assert server.seen == [("/api/v1/namespaces/team%20a/pods/p0:8081/proxy/verdict", "Bearer t1")]


async def test_a_stale_token_is_replaced_at_the_next_request() -> None:
    server = ApiServer()
    server.statuses = [200, 401, 200, 403, 502]
    http = ProxiedPodHttp(server.load)
    async with serving(server.answer) as server.port:
        await http.get(pod(8081), "/verdict")
        with pytest.raises(BadAnswer, match="401"):
            await http.get(pod(8081), "/verdict")
        await http.get(pod(8081), "/verdict")
        with pytest.raises(BadAnswer, match="pods/proxy"):
            await http.get(pod(8081), "/verdict")
        with pytest.raises(NoAnswer, match="502"):
            await http.get(pod(8081), "/verdict")
        await http.close()
    assert [token for _, token in server.seen] == ["Bearer t1"] * 2 + ["Bearer t2"] * 3


async def test_no_connection_is_no_answer() -> None:
    async def load() -> Configuration:
        raise ConnectionNotConfigured("there is no kubeconfig")

    with pytest.raises(NoAnswer, match="no kubeconfig"):
        await ProxiedPodHttp(load).get(pod(8081), "/verdict")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"KUBERNETES_SERVICE_HOST": "192.0.2.1"}, DirectPodHttp),
        ({"KUBERNETES_SERVICE_HOST": "192.0.2.1", "KUBECONFIG": "k"}, ProxiedPodHttp),
        ({}, ProxiedPodHttp),
    ],
)
async def test_the_way_follows_from_the_connection(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: type
) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert type(pod_http()) is expected
