"""What a new connection replaces at the limit: one that waits for its client."""

import asyncio
from dataclasses import replace
from typing import Final

import pytest
from enginewright_serving.transport.application import json_response
from enginewright_serving.transport.connection import RECEIVE_BYTES, Connection
from enginewright_serving.transport.head import HeadParser
from enginewright_serving.transport.http_application import HttpApplication
from enginewright_serving.transport.message import HttpRequest, HttpResponse
from enginewright_serving.transport.settings import TransportSettings
from typing_extensions import override

SETTINGS: Final = TransportSettings(connections=2, reserved_connections=1)
BODY: Final = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\na"
UNKNOWN: Final = b"POST /unknown HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n"
LARGE: Final = b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n"
LARGE_BYTES: Final = 32 * 1024 * 1024  # more than the kernel keeps for a client
GET: Final = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class App(HttpApplication[Connection]):
    """Answers every path but one with 200."""

    @override
    def admit(self, request: HttpRequest) -> HttpResponse | None:
        return self.refuse(404, "not found") if request.target == b"/unknown" else None

    @override
    def serve(self, connection: Connection, request: HttpRequest) -> HttpResponse | None:
        if request.target == b"/large":
            return HttpResponse(200, b"", [bytes(LARGE_BYTES)], LARGE_BYTES)
        return json_response(200, {})


class Clients:
    """Clients of one application."""

    def __init__(self, server: asyncio.Server) -> None:
        self._port: int = server.sockets[0].getsockname()[1]

    async def open(self, sent: bytes) -> Streams:
        """Connect, send, and let the application read it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(sent)
        await asyncio.sleep(0.15)  # what has sent nothing by then is silent
        return reader, writer


async def status(client: Streams, sent: bytes, seconds: float = 20) -> int | None:
    """Send, and return the status of the response, if there is one within so many seconds."""
    reader, writer = client
    writer.write(sent)
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), seconds)
    except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
        return None
    finally:
        writer.close()
    return int(head.split()[1])


async def hold_connections(
    settings: TransportSettings, *held_by: tuple[bytes, bytes], seconds: float = 20
) -> list[int | None]:
    """Hold connections that have sent the first parts; return the status of a further one's request.

    Those of the held connections follow, after their second parts, each waited for so many seconds.
    """
    app, heads, buffer = App(settings), HeadParser(), bytearray(RECEIVE_BYTES)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(app, heads, buffer), "127.0.0.1", 0)
    clients = Clients(server)
    waiting = [(await clients.open(first), second) for first, second in held_by]
    statuses = [await status(await clients.open(GET), b"")]
    statuses += [await status(client, second, seconds) for client, second in waiting]
    server.close()
    return statuses


def test_a_body_that_is_arriving_is_replaced_after_one_that_sends_nothing() -> None:
    statuses = asyncio.run(hold_connections(SETTINGS, (BODY, b"b"), (b"", GET), (BODY, b"b")))
    assert statuses == [200, 200, None, 200]


def test_of_bodies_that_arrive_the_first_is_replaced() -> None:
    assert asyncio.run(hold_connections(SETTINGS, *[(BODY, b"b")] * 3)) == [200, None, 200, 200]


def test_a_response_that_nobody_reads_is_replaced_like_a_body() -> None:
    assert asyncio.run(hold_connections(SETTINGS, *[(LARGE, b"")] * 3))[0] == 200


@pytest.mark.parametrize("first", [b"", b"GET / HT"])
def test_connections_without_a_request_are_replaced_oldest_first(first: bytes) -> None:
    second = GET[len(first) :]
    assert asyncio.run(hold_connections(SETTINGS, *[(first, second)] * 3)) == [200, None, 200, 200]


@pytest.mark.parametrize(("drained", "refused"), [(2, None), (1, 404), (0, 404)])
def test_a_refused_body_is_waited_for_up_to_its_limit(drained: int, refused: int | None) -> None:
    settings = replace(SETTINGS, drained_body_bytes=drained)
    seconds = 2 if refused is None else 20
    statuses = asyncio.run(hold_connections(settings, (UNKNOWN, b""), seconds=seconds))
    assert statuses == [200, refused]


def test_a_client_that_has_its_last_response_is_replaced() -> None:
    settings = replace(SETTINGS, drained_body_bytes=0)
    assert asyncio.run(hold_connections(settings, *[(UNKNOWN, b"")] * 3))[0] == 200
