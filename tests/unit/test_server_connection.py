"""How connections share the event loop. No socket: the transport is given."""

import asyncio
from typing import Any

from enginewright_runtime.serve.server.application import ApplicationBase, json_response
from enginewright_runtime.serve.server.connection import RECEIVE_BYTES, Connection
from enginewright_runtime.serve.server.head import HeadParser
from enginewright_runtime.serve.server.message import HttpRequest, HttpResponse
from enginewright_runtime.serve.server.settings import ServerSettings
from typing_extensions import override

MANY = 1000


class Echo(ApplicationBase):
    """Answers with the request's target; those below /later when the test says so."""

    def __init__(self) -> None:
        super().__init__(ServerSettings())
        self.waiting: list[tuple[Connection, HttpResponse]] = []

    def admit(self, request: HttpRequest) -> HttpResponse | None:
        return self.refuse(404, "none") if request.target == b"/none" else None

    def account(self, request: HttpRequest, size: int) -> HttpResponse | None:
        del request, size
        return None

    def release(self, request: HttpRequest) -> None:
        pass

    def serve(self, connection: Connection, request: HttpRequest) -> HttpResponse | None:
        response = json_response(200, {"target": request.target.decode()})
        if not request.target.startswith(b"/later"):
            return response
        self.waiting.append((connection, response))
        return None

    def refuse(self, status: int, message: str) -> HttpResponse:
        return json_response(status, {"error": message})


class Pipe(asyncio.Transport):
    """A transport whose client reads everything at once."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.reading = True

    @property
    def answers(self) -> int:
        return self.written.count(b"HTTP/1.1 ")

    @override
    def write(self, data: Any) -> None:
        self.written += data

    @override
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    @override
    def get_write_buffer_size(self) -> int:
        return 0

    @override
    def is_closing(self) -> bool:
        return False

    @override
    def pause_reading(self) -> None:
        self.reading = False

    @override
    def resume_reading(self) -> None:
        self.reading = True


class Peer:
    """One client of an application, and its connection."""

    def __init__(self, app: Echo, buffer: bytearray) -> None:
        self.pipe = Pipe()
        self.connection = Connection(app, HeadParser(), buffer)
        self.connection.connection_made(self.pipe)

    def send(self, data: bytes) -> None:
        assert self.pipe.reading
        self.connection.get_buffer(-1)[: len(data)] = data
        self.connection.buffer_updated(len(data))


def get(target: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode()


def targets(written: bytes) -> list[str]:
    return [part.split(b'"')[0].decode() for part in written.split(b'{"target":"')[1:]]


def test_of_each_connection_one_request_is_answered_in_a_turn() -> None:
    async def both() -> None:
        app, buffer = Echo(), bytearray(RECEIVE_BYTES)
        greedy, modest = Peer(app, buffer), Peer(app, buffer)
        greedy.send(b"".join(get(f"/{number}") for number in range(MANY)) + b"GET /la")
        assert greedy.pipe.answers == 1
        assert not greedy.pipe.reading
        modest.send(get("/modest"))
        assert targets(modest.pipe.written) == ["/modest"]
        for turn in range(2, MANY + 1):
            await asyncio.sleep(0)
            assert greedy.pipe.answers == turn
        await asyncio.sleep(0)
        greedy.send(b"st HTTP/1.1\r\nHost: h\r\n\r\n")
        assert targets(greedy.pipe.written) == [*(f"/{number}" for number in range(MANY)), "/last"]

    asyncio.run(both())


def test_refusals_and_blank_lines_take_turns_as_well() -> None:
    async def refused() -> None:
        app, buffer = Echo(), bytearray(RECEIVE_BYTES)
        peer = Peer(app, buffer)
        peer.send(get("/none") * 10 + b"\r\n\r\n" * 10 + get("/last"))
        for turn in range(1, 21):
            assert peer.pipe.answers == min(turn, 10)
            await asyncio.sleep(0)
        assert peer.pipe.answers == 11

    asyncio.run(refused())


def test_requests_are_answered_in_order_where_some_are_answered_later() -> None:
    async def mixed() -> None:
        app, buffer = Echo(), bytearray(RECEIVE_BYTES)
        peer = Peer(app, buffer)
        paths = [f"/{'later' if number % 3 else 'now'}/{number}" for number in range(30)]
        peer.send(b"".join(map(get, paths)))
        while len(targets(peer.pipe.written)) < len(paths):
            await asyncio.sleep(0)
            assert len(app.waiting) <= 1
            while app.waiting:
                connection, response = app.waiting.pop()
                connection.respond(response)
        assert targets(peer.pipe.written) == paths
        assert peer.pipe.reading

    asyncio.run(mixed())


def test_a_connection_that_is_lost_loses_its_turn() -> None:
    async def lost() -> None:
        peer = Peer(Echo(), bytearray(RECEIVE_BYTES))
        peer.send(get("/0") * 3)
        peer.connection.connection_lost(None)
        for _ in range(5):
            await asyncio.sleep(0)
        assert peer.pipe.answers == 1

    asyncio.run(lost())
