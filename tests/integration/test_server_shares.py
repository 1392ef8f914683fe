"""A client that fills the queue leaves places to others, which ask for few."""

import json
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from enginewright_serving.server.grpc.messages import InferRequest
from enginewright_serving.server.inference_request import LARGE_JSON

from tests.integration.test_server_load import arrived, depth, metric, turning
from tests.support import http2
from tests.support.serving import Server, Wire, slow_model, write_artifact
from tests.support.waiting import until

QUEUE = 8
DUE = 1024  # requests, of `ServerSettings.connections`
STREAMS = 128  # of a connection of HTTP/2
LONG = 20_000  # turns: some seconds
LONGEST = 400_000  # longer than the test takes
GREEDY, MODEST = "127.0.0.2", "127.0.0.3"
INFER = "/inference.GRPCInferenceService/ModelInfer"


def served(root: Path, max_queue: int) -> Server:
    task = write_artifact(root, slow_model(), [{"turns": np.array([1])}], max_queue=max_queue)
    return Server(root, task)


# fault: Requests | one client fills the queue | the client with the most requests gives up its
#   newest one for another's: 503 | when no more may wait
def test_a_client_that_fills_the_queue_gives_up_places_for_another(tmp_path: Path) -> None:
    with served(tmp_path, QUEUE) as server, ExitStack() as stack:

        def wire(source: str) -> Wire:
            return stack.enter_context(Wire(server.port, source=source, timeout=120))

        def refused(found: Wire) -> str:
            answer = found.receive()
            assert answer.status == 503
            assert answer.headers["retry-after"] == "1"
            return str(answer.json()["error"])

        running = wire(GREEDY)
        running.send(turning(server, LONG))
        arrived(server)
        until(lambda: depth(server) == 0)  # it runs
        greedy = [wire(GREEDY) for _ in range(QUEUE)]
        for count, each in enumerate(greedy, 1):
            each.send(turning(server, 1))
            until(lambda: depth(server) == count)  # noqa: B023 - called at once
        last = wire(GREEDY)
        last.send(turning(server, 1))
        assert "the queue is full with 8 requests" in refused(last)
        # whoever has 1 waiting, or will have, gets a place of one that has more than twice as many
        modest = [wire(MODEST) for _ in range(3)]
        for each in modest:
            each.send(turning(server, 1))
            arrived(server)
        assert "the queue is full with 8 requests" in refused(modest.pop())
        for _ in modest:  # the newest one first
            assert "other clients have fewer requests in it" in refused(greedy.pop())
        last.send(turning(server, 1))
        assert "the queue is full with 8 requests" in refused(last)
        urgent = wire(GREEDY)
        urgent.send(turning(server, 1, priority=1))  # priorities come first, as before
        assert "requests of a higher priority fill the queue" in refused(modest.pop())
        assert [each.receive().status for each in (running, urgent, *modest, *greedy)] == [200] * 9
        assert metric(server, 'code="503"') == 6
        assert depth(server) == 0


HOLDING = """
import threading, time
from pathlib import Path
from enginewright_serving.server.decode import Decoder
decode = Decoder.decode
def holding(self, *arguments):
    while threading.current_thread().name.startswith("codec") and Path({hold!r}).exists():
        time.sleep(0.01)
    return decode(self, *arguments)
Decoder.decode = holding
"""


def padded(server: Server) -> bytes:
    """Return a request whose JSON is so long that it is read beside the event loop."""
    text = json.dumps(
        {"inputs": [{"name": "turns", "datatype": "INT64", "shape": [1], "data": [1]}]}
    )
    return server.infer_request(text.ljust(LARGE_JSON + 1).encode())


# fault: Requests | one client fills what waits to be read | the client with the most requests gives up its
#   newest one for another's: 503 | when no more may wait
def test_a_client_whose_large_requests_wait_gives_up_places_for_another(tmp_path: Path) -> None:
    task = write_artifact(tmp_path, slow_model(), [{"turns": np.array([1])}], max_queue=QUEUE)
    hold = tmp_path / "hold"
    hold.touch()
    with (
        Server(tmp_path, task, before=HOLDING.format(hold=str(hold))) as server,
        ExitStack() as stack,
    ):

        def send(source: str) -> Wire:
            wire = stack.enter_context(Wire(server.port, source=source))
            wire.send(padded(server))
            return wire

        greedy = [send(GREEDY) for _ in range(1 + QUEUE)]
        until(lambda: metric(server, "enginewright_requests_in_flight") == 1 + QUEUE)
        arrived(server)
        last = send(GREEDY).receive()
        assert last.status == 503
        assert "8 large requests wait to be read; try again" in last.json()["error"]
        modest = send(MODEST)
        until(lambda: metric(server, 'code="503"') == 2)
        hold.unlink()
        assert modest.receive().status == 200
        answers = [each.receive() for each in greedy]
        assert [each.status for each in answers].count(503) == 1
        (error,) = (each.json()["error"] for each in answers if each.status == 503)
        assert "8 large requests wait to be read, and other clients have fewer" in error


# fault: Requests | one client fills the queue
def test_calls_that_are_due_of_one_client_do_not_refuse_another(tmp_path: Path) -> None:
    client = http2.Client()
    client.encoder.header_table_size = 0  # the same bytes on every connection
    content = InferRequest(
        model_name="m",
        inputs=[{"name": "turns", "datatype": "INT64", "shape": [1]}],
        raw_input_contents=[np.array([1], np.int64).tobytes()],
    ).SerializeToString()
    calls = [client.call(stream, INFER, content) for stream in range(1, 2 * STREAMS, 2)]
    with served(tmp_path, 2 * DUE) as server, ExitStack() as stack:

        def hoard() -> None:
            wire = stack.enter_context(Wire(server.grpc_port, source=GREEDY))
            wire.send(client.opening + b"".join(calls))

        running = stack.enter_context(Wire(server.port, source=GREEDY))
        running.send(turning(server, LONGEST))
        arrived(server)
        until(lambda: depth(server) == 0)  # it runs
        for _ in range(DUE // STREAMS):
            hoard()
        until(lambda: depth(server) == DUE - 1)
        hoard()
        until(lambda: metric(server, 'code="503"') == 1 + STREAMS)
        with Wire(server.port, source=MODEST) as modest:
            modest.send(turning(server, 1, timeout=100_000))  # µs
            assert modest.receive().status == 504  # it waited
        assert metric(server, 'code="503"') == 2 + STREAMS
