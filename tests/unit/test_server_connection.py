"""How connections share the event loop. No socket: the transport is given."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from enginewright_contract.task import ServeTask
from enginewright_serving.server.api.app import ServerApp
from enginewright_serving.transport.application import json_response
from enginewright_serving.transport.connection import RECEIVE_BYTES, Connection
from enginewright_serving.transport.head import HeadParser
from enginewright_serving.transport.http_application import HttpApplication
from enginewright_serving.transport.message import HttpRequest, HttpResponse
from enginewright_serving.transport.settings import TransportSettings
from typing_extensions import override

from tests.support import http2_pipe

MANY = 1000
MIB = 1 << 20
DEFAULTS = TransportSettings()
TWO = TransportSettings(connections=1, reserved_connections=1)
FLOOD_SECONDS = 0.15  # longer than a client that pipelines a few requests waits for its turns


class Echo(HttpApplication[Connection]):
    """Answers with the request's target; those below /later when the test says so."""

    def __init__(self, settings: TransportSettings = DEFAULTS) -> None:
        super().__init__(settings)
        self.waiting: list[tuple[Connection, HttpRequest, HttpResponse]] = []

    @override
    def admit(self, request: HttpRequest) -> HttpResponse | None:
        return self.refuse(404, "none") if request.target == b"/none" else None

    @override
    def on_answered(
        self, connection: Connection, request: HttpRequest, response: HttpResponse, began: float
    ) -> None:
        raise AssertionError(f"{request.target.decode()} is no inference")

    @override
    def on_left(self, connection: Connection, request: HttpRequest, began: float) -> None:
        raise AssertionError(f"{request.target.decode()} is no inference")

    @override
    def serve(self, connection: Connection, request: HttpRequest) -> HttpResponse | None:
        response = json_response(200, {"target": request.target.decode()})
        if not request.target.startswith(b"/later"):
            return response
        self.waiting.append((connection, request, response))
        return None


class Pipe(http2_pipe.Pipe):
    """A transport whose client reads everything at once."""

    closed = False

    @property
    def answers(self) -> int:
        return self.written.count(b"HTTP/1.1 ")

    @override
    def close(self) -> None:
        self.closed = True


class BrokenPipe(Pipe):
    """A transport whose client has gone: writing to it shows that."""

    @override
    def is_closing(self) -> bool:
        return bool(self.written)


class Counting(Echo):
    """Counts how requests end."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[str] = []

    @override
    def admit(self, request: HttpRequest) -> HttpResponse | None:
        request.counted = True
        return super().admit(request)

    @override
    def on_answered(
        self, connection: Connection, request: HttpRequest, response: HttpResponse, began: float
    ) -> None:
        self.ended.append("answered")

    @override
    def on_left(self, connection: Connection, request: HttpRequest, began: float) -> None:
        self.ended.append("left")


class TlsPipe(Pipe):
    """A transport of TLS, whose client reads what is written when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.connection: Connection | None = None
        self.most = 0  # bytes that were written at once

    @override
    def can_write_eof(self) -> bool:
        return False

    @override
    def write(self, data: Any) -> None:
        assert not self.closed
        self.most = max(self.most, len(data))
        super().write(data)
        if self.connection is not None:
            self.connection.pause_writing()

    @override
    def get_write_buffer_size(self) -> int:
        return self.most


class Peer:
    """One client of an application, and its connection."""

    def __init__(
        self, app: Echo | ServerApp, buffer: bytearray, pipe: Callable[[], Pipe] = Pipe
    ) -> None:
        self.pipe = pipe()
        self.connection = Connection(app, HeadParser(), buffer)
        self.connection.connection_made(self.pipe)

    def send(self, data: bytes) -> None:
        assert self.pipe.reading
        self.connection.get_buffer(-1)[: len(data)] = data
        self.connection.buffer_updated(len(data))


def get(target: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode()


async def one_at_a_time(peer: Peer, most: int) -> None:
    """Wait for so many answers, of which there is at most one in a turn of the event loop."""
    while peer.pipe.answers < most:
        before = peer.pipe.answers
        await asyncio.sleep(0)
        assert peer.pipe.answers - before <= 1
    await turns()


async def turns() -> None:
    """Let the connections take the turns that remain."""
    for _ in range(5):
        await asyncio.sleep(0.002)


def targets(written: bytearray) -> list[str]:
    return [part.split(b'"')[0].decode() for part in written.split(b'{"target":"')[1:]]


@pytest.mark.asyncio(loop_factories=["real"])  # turns of the event loop take time
async def test_of_each_connection_one_request_is_answered_in_a_turn() -> None:
    app, buffer = Echo(), bytearray(RECEIVE_BYTES)
    greedy, modest = Peer(app, buffer), Peer(app, buffer)
    greedy.send(b"".join(get(f"/{number}") for number in range(MANY)) + b"GET /la")
    assert greedy.pipe.answers == 1
    assert not greedy.pipe.reading
    modest.send(get("/modest"))
    assert targets(modest.pipe.written) == ["/modest"]
    await one_at_a_time(greedy, MANY)
    greedy.send(b"st HTTP/1.1\r\nHost: h\r\n\r\n")
    assert targets(greedy.pipe.written) == [*(f"/{number}" for number in range(MANY)), "/last"]


@pytest.mark.parametrize("target", ["/now", "/none", "/later"])
@pytest.mark.parametrize(("pipe", "end"), [(Pipe, "answered"), (BrokenPipe, "left")])
async def test_a_request_ends_once_by_whether_its_answer_was_written(
    target: str, pipe: type[Pipe], end: str
) -> None:
    app = Counting()
    peer = Peer(app, bytearray(RECEIVE_BYTES), pipe)
    peer.send(get(target))
    for connection, request, response in app.waiting:
        assert app.ended == []
        connection.respond(request, response)
    assert app.ended == [end]
    peer.connection.connection_lost(None)
    assert app.ended == [end]


async def test_refusals_and_blank_lines_take_turns_as_well() -> None:
    app, buffer = Echo(), bytearray(RECEIVE_BYTES)
    peer = Peer(app, buffer)
    peer.send(get("/none") * 10 + b"\r\n\r\n" * 10 + get("/last"))
    assert peer.pipe.answers == 1
    await one_at_a_time(peer, 11)


async def test_requests_are_answered_in_order_where_some_are_answered_later() -> None:
    app, buffer = Echo(), bytearray(RECEIVE_BYTES)
    peer = Peer(app, buffer)
    paths = [f"/{'later' if number % 3 else 'now'}/{number}" for number in range(30)]
    peer.send(b"".join(map(get, paths)))
    while len(targets(peer.pipe.written)) < len(paths):
        await asyncio.sleep(0)
        assert len(app.waiting) <= 1
        while app.waiting:
            connection, request, response = app.waiting.pop()
            connection.respond(request, response)
    assert targets(peer.pipe.written) == paths
    assert peer.pipe.reading


# fault: Requests | a request is answered twice, and its client has sent the next one | the second answer is
#   dropped | the next request gets its own answer
async def test_an_answer_to_an_earlier_request_is_never_that_of_the_next() -> None:
    app = Echo()
    peer = Peer(app, bytearray(RECEIVE_BYTES))
    for target in ("/later/1", "/later/2"):
        peer.send(get(target))
        connection, request, response = app.waiting[0]
        connection.respond(request, response)
    connection, request, response = app.waiting[0]
    large = HttpResponse(200, b"", [bytes(MIB)], MIB)
    assert connection.reserve(request, large)
    assert app.inflight.account.total == 0, "it is not sent"
    connection, request, response = app.waiting[1]
    connection.respond(request, response)
    assert targets(peer.pipe.written) == ["/later/1", "/later/2"]


async def test_a_connection_that_is_lost_loses_its_turn() -> None:
    peer = Peer(Echo(), bytearray(RECEIVE_BYTES))
    peer.send(get("/0") * 3)
    peer.connection.connection_lost(None)
    for _ in range(5):
        await asyncio.sleep(0)
    assert peer.pipe.answers == 1


def find_replaced(app: Echo, buffer: bytearray, *held: Peer) -> list[bool]:
    """Whether each of the connections that are held is closed for a new one."""
    assert not Peer(app, buffer).pipe.answers  # it is not refused
    return [peer.pipe.aborted for peer in held]


# fault: Hostile | clients of the sidecar pipeline on all of its connections, while new ones connect | a
#   new connection replaces one that pipelines before one that has just connected | the pod stays ready
async def test_a_client_that_pipelines_is_replaced_before_one_that_has_just_connected() -> None:
    app, buffer = Echo(TWO), bytearray(RECEIVE_BYTES)
    greedy = Peer(app, buffer)
    greedy.send(get("/0") * MANY)
    await asyncio.sleep(0)
    probe = Peer(app, buffer)
    await asyncio.sleep(0)
    assert find_replaced(app, buffer, greedy, probe) == [True, False]
    probe.send(get("/probe"))
    await asyncio.sleep(0)
    assert targets(probe.pipe.written) == ["/probe"]
    assert greedy.pipe.answers == 3  # those before it was closed


@pytest.mark.asyncio(loop_factories=["real"])  # turns of the event loop take time
async def test_endless_pipelining_is_replaced_before_an_idle_client() -> None:
    app, buffer = Echo(TWO), bytearray(RECEIVE_BYTES)
    idle, greedy = Peer(app, buffer), Peer(app, buffer)
    greedy.send(get("/0") * 2 + b"GET /1")
    await asyncio.sleep(FLOOD_SECONDS)
    greedy.send(b" HTTP/1.1\r\nHost: h\r\n\r\n" + get("/2") * MANY)
    assert find_replaced(app, buffer, idle, greedy) == [False, True]


async def test_short_pipelining_is_replaced_after_an_idle_client() -> None:
    app, buffer = Echo(TWO), bytearray(RECEIVE_BYTES)
    idle, modest = Peer(app, buffer), Peer(app, buffer)
    for batch in range(3):
        modest.send(get(f"/{batch}") * 2)
        if batch < 2:
            await asyncio.sleep(FLOOD_SECONDS)
    assert find_replaced(app, buffer, idle, modest) == [True, False]
    await asyncio.sleep(0)
    assert targets(modest.pipe.written) == ["/0", "/0", "/1", "/1", "/2", "/2"]


async def test_the_time_that_the_application_takes_is_not_counted_as_pipelining() -> None:
    app, buffer = Echo(TWO), bytearray(RECEIVE_BYTES)
    idle, modest = Peer(app, buffer), Peer(app, buffer)
    modest.send(b"".join(map(get, ("/0", "/later", "/2", "/3"))))
    await asyncio.sleep(FLOOD_SECONDS)
    ((connection, request, response),) = app.waiting
    connection.respond(request, response)
    assert modest.pipe.answers == 3
    assert find_replaced(app, buffer, idle, modest) == [True, False]


@pytest.mark.parametrize("evicted", [False, True])
async def test_client_that_leaves_early_leaves_no_bytes_charged(*, evicted: bool) -> None:
    task = ServeTask(model="m", revision="r", prepared_key="0" * 64, backend="cpu")
    app = ServerApp(task, DEFAULTS, "1")
    peer = Peer(app, bytearray(RECEIVE_BYTES))
    peer.send(b"GET /metrics HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n" + bytes(9))
    assert app.inflight.account.total > 0
    if evicted:
        assert app.close_one()
    peer.connection.connection_lost(None)
    await turns()
    assert app.inflight.account.total == 0
    assert not peer.pipe.written


# fault: Hostile | connections end while the time limits of many are checked | only those that are left are
#   checked | prevented
async def test_connections_that_end_while_others_are_checked_are_not_checked() -> None:
    app = Echo()
    checks: list[object] = []

    class Last(Connection):
        @override
        def check(self, now: float) -> None:
            checks.append(self)
            app.connections.intersection_update({self})

    app.connections.update(Last(app, HeadParser(), bytearray()) for _ in range(100))
    await app.check_connections()
    assert len(checks) == 1


async def test_a_large_response_over_tls_is_encrypted_as_its_client_reads() -> None:
    app, pipe = Echo(), TlsPipe()
    connection = pipe.connection = Connection(app, HeadParser(), bytearray(RECEIVE_BYTES))
    connection.connection_made(pipe)
    request = b"GET /later HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    connection.get_buffer(-1)[: len(request)] = request
    connection.buffer_updated(len(request))
    body = b"x" * MIB
    ((_, accepted, _),) = app.waiting
    connection.respond(accepted, HttpResponse(200, b"", [memoryview(body)], MIB))
    reads = 0
    while not pipe.closed:
        assert app.inflight.account.total == MIB, "it is charged until it is encrypted"
        connection.resume_writing()
        reads += 1
    assert pipe.written.endswith(b"\r\n\r\n" + body)
    assert pipe.most == MIB // 16
    assert reads == 17, "its head first"
    assert app.inflight.account.total == 0
    now = time.monotonic()
    connection.check(now + DEFAULTS.linger_seconds + 1)
    assert not pipe.aborted, "its client may still read the end"
    connection.check(now + DEFAULTS.transfer_window + 1)
    assert pipe.aborted


async def test_the_rest_of_an_answer_over_tls_is_written_when_its_client_ends_its_side() -> None:
    app, pipe = Echo(), TlsPipe()
    connection = pipe.connection = Connection(app, HeadParser(), bytearray(RECEIVE_BYTES))
    connection.connection_made(pipe)
    request = get("/later")
    connection.get_buffer(-1)[: len(request)] = request
    connection.buffer_updated(len(request))
    ((_, accepted, _),) = app.waiting
    body = b"x" * MIB
    connection.respond(accepted, HttpResponse(200, b"", [memoryview(body)], MIB))
    assert len(pipe.written) < MIB // 8
    assert not connection.eof_received(), "TLS cannot stay half open"
    assert pipe.written.endswith(b"\r\n\r\n" + body)
    connection.connection_lost(None)
    assert app.inflight.account.total == 0


# fault: Hostile | thousands of large bodies arrive at once and fill the memory to its last byte | spare bytes, of which each
#   request leaves as many as it will have, are for small ones | prevented
async def test_small_requests_are_answered_while_large_bodies_fill_the_account() -> None:
    app = Echo(TransportSettings(inflight_bytes=MIB // 4))
    head = b"POST /large HTTP/1.1\r\nHost: h\r\nContent-Length: 60000000\r\n\r\n"
    large = Peer(app, bytearray(RECEIVE_BYTES))
    large.send(head)
    for _ in range(3):
        large.send(bytes(RECEIVE_BYTES))
    assert app.inflight.account.total == app.inflight.account.limit
    small = b"POST /small HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n" + bytes(100)
    peer = Peer(app, bytearray(RECEIVE_BYTES))
    for count in range(1, 4):
        peer.send(small)
        assert peer.pipe.written.count(b"HTTP/1.1 200") == count
    chunked = b"POST /chunks HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n"
    for begun in (head + bytes(100), chunked + bytes(100)):
        other = Peer(app, bytearray(RECEIVE_BYTES))
        other.send(begun)
        assert other.pipe.written.startswith(b"HTTP/1.1 503"), "as large as those that fill it"


def send_body(peer: Peer, target: str) -> None:
    """Send a request whose body arrives after its head."""
    body = bytes(MIB // 16)
    peer.send(f"POST {target} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n".encode())
    peer.send(body)


async def test_a_client_that_ends_its_side_with_its_body_is_answered_and_closed() -> None:
    app = Echo()
    peer = Peer(app, bytearray(RECEIVE_BYTES))
    send_body(peer, "/later")
    assert peer.connection.eof_received(), "it stays open for the answer"
    ((connection, request, response),) = app.waiting
    connection.respond(request, response)
    assert b"Connection: close\r\n" in peer.pipe.written
    assert peer.pipe.closed


async def test_a_client_that_ends_its_side_later_has_left() -> None:
    app = Echo()
    peer = Peer(app, bytearray(RECEIVE_BYTES))
    send_body(peer, "/later")
    peer.connection._arrived -= 0.02
    assert not peer.connection.eof_received()
    tls = Peer(app, bytearray(RECEIVE_BYTES), TlsPipe)
    send_body(tls, "/later")
    assert not tls.connection.eof_received(), "TLS cannot stay half open"


# fault: Servers | a client connects while the server drains, or reads its last response then, and keeps the
#   connection | it is closed after a few seconds without a request | the drain waits so long
@pytest.mark.parametrize("when", ["before its response is read", "after the drain has begun"])
async def test_a_kept_connection_does_not_hold_up_the_drain(when: str) -> None:
    app = Echo()
    if when.startswith("after"):
        app.draining = True
        peer = Peer(app, bytearray(RECEIVE_BYTES))
    else:
        peer = Peer(app, bytearray(RECEIVE_BYTES))
        peer.send(get("/now"))
        peer.connection.pause_writing()
        app.draining = True
        peer.connection.close_idle()
        assert not peer.pipe.closed
        peer.connection.resume_writing()
    now = time.monotonic()
    peer.connection.check(now + DEFAULTS.aged_idle_seconds - 1)
    assert not peer.pipe.closed
    peer.connection.check(now + DEFAULTS.aged_idle_seconds + 1)
    assert peer.pipe.closed
