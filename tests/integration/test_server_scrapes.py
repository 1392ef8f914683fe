"""Many requests for metrics at once cost one text, and connections that wait for it make space for others."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from enginewright_runtime.serve.server.input_turns import InputTurns
from enginewright_runtime.serve.server.message import HttpResponse
from enginewright_runtime.serve.server.pod_resources import PodResource, SharedAnswers
from enginewright_runtime.serve.server.scrapes import Scrapes
from enginewright_runtime.session.request_errors import RequestError

from tests.support.serving import Server, linear_model, write_artifact

GET = b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n"


class Waiting:
    """A connection whose request was taken."""

    def __init__(self) -> None:
        self.answers: list[HttpResponse] = []
        self.answered = asyncio.Event()

    def respond(self, response: HttpResponse) -> None:
        self.answers.append(response)
        self.answered.set()


async def test_those_that_wait_together_have_one_answer_and_later_ones_the_next() -> None:
    built: list[HttpResponse] = []

    def expose() -> HttpResponse:
        built.append(HttpResponse(200, b"", [b"x"], 1))
        return built[-1]

    scrapes = Scrapes(InputTurns(), expose)
    clients: list[Any] = [Waiting() for _ in range(100)]
    for client in clients:
        scrapes.take(client)
    assert not built
    await clients[0].answered.wait()
    late: Any = Waiting()
    scrapes.take(late)
    await late.answered.wait()
    assert [client.answers for client in clients] == [[built[0]]] * 100
    assert late.answers == [built[1]], "what was counted before its request is in its answer"


async def test_of_a_pod_those_that_ask_meanwhile_have_one_answer() -> None:
    class Pod:
        def __init__(self) -> None:
            self.asked: list[PodResource] = []
            self.go = asyncio.Event()

        async def answer(self, resource: PodResource, target: bytes) -> HttpResponse:
            self.asked.append(resource)
            await self.go.wait()
            if target == b"bad":
                raise RequestError(503, "none")
            return HttpResponse(200, b"", [target], 1)

    pod = Pod()
    shared = SharedAnswers(pod)
    pod.go.set()
    copies = [await shared.answer(PodResource.COPY, b"/c") for _ in range(2)]
    assert copies[0] is not copies[1], "each copy is taken once"
    pod.go.clear()
    asking = [asyncio.create_task(shared.answer(PodResource.METRICS, b"/m")) for _ in range(9)]
    await asyncio.sleep(0)
    pod.go.set()
    answers = await asyncio.gather(*asking)
    assert all(each is answers[0] for each in answers)
    assert pod.asked.count(PodResource.METRICS) == 1
    for _ in range(2):
        with pytest.raises(RequestError):
            await shared.answer(PodResource.METRICS, b"bad")
    assert pod.asked.count(PodResource.METRICS) == 3, "the next ones have an answer of their own"


@pytest.fixture(scope="module", params=[1, 2])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("scrapes")
    count = request.param
    task = write_artifact(root, linear_model(), [{"x": np.ones((2, 8), np.float32)}])
    task = task.model_copy(update={"processes": count})
    with Server(root, task, connections=16 * count, reserved_connections=4 * count) as it:
        yield it


def test_connections_that_all_wait_for_metrics_keep_no_probe_out(server: Server) -> None:
    with ExitStack() as stack:
        for _ in range(40 * server.task.processes):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            client.sendall(GET * 200)
        for _ in range(20):
            assert server.get("/v2/health/live").status == 200
    assert b"enginewright_requests_total" in server.get("/metrics").body
    assert server.get("/metrics", method="HEAD").status == 200


def test_the_server_is_still_well(server: Server) -> None:
    assert "Traceback" not in Path(server.root / "server.log").read_text()
