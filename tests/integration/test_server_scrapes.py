"""Many requests for metrics at once cost one text, and connections that wait for it make space for others."""

import asyncio
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from enginewright_serving.server.api.scrapes import Scrapes
from enginewright_serving.transport.input_turns import InputTurns
from enginewright_serving.transport.message import HttpRequest, HttpResponse

from tests.support.serving import Server, linear_model
from tests.support.shared import share_server

GET = b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n"


class Waiting:
    """A connection whose request was taken."""

    def __init__(self) -> None:
        self.request = HttpRequest(b"/metrics")
        self.answers: list[HttpResponse] = []
        self.answered = asyncio.Event()

    def respond(self, request: HttpRequest, response: HttpResponse) -> None:
        assert request is self.request
        self.answers.append(response)
        self.answered.set()


async def test_concurrent_scrapes_share_one_answer() -> None:
    built: list[HttpResponse] = []

    def expose() -> HttpResponse:
        built.append(HttpResponse(200, b"", [b"x"], 1))
        return built[-1]

    scrapes = Scrapes(InputTurns(), expose)
    clients: list[Any] = [Waiting() for _ in range(100)]
    for client in clients:
        scrapes.take(client, client.request)
    assert not built
    await clients[0].answered.wait()
    late: Any = Waiting()
    scrapes.take(late, late.request)
    await late.answered.wait()
    assert [client.answers for client in clients] == [[built[0]]] * 100
    assert late.answers == [built[1]], "what was counted before its request is in its answer"


server = share_server(
    linear_model, {"x": np.ones((2, 8), np.float32)}, connections=16, reserved_connections=4
)


def test_connections_that_all_wait_for_metrics_keep_no_probe_out(server: Server) -> None:
    with ExitStack() as stack:
        for _ in range(40):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            client.sendall(GET * 200)
        for _ in range(20):
            assert server.get("/v2/health/live").status == 200
    assert b"enginewright_requests_total" in server.get("/metrics").body
    assert server.get("/metrics", method="HEAD").status == 200


def test_the_server_is_still_well(server: Server) -> None:
    assert "Traceback" not in Path(server.root / "server.log").read_text()
