"""Requests that leave the queue while others wait in it: the others are served, together or one by one."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import grpc
import numpy as np
import onnx
import pytest
from enginewright_serving.server.protocol.grpc.messages import InferRequest

from tests.support.batches import BATCHES_PAY
from tests.support.broken_models import parse_text
from tests.support.serving import Server, Wire, write_artifact
from tests.support.turns import queue_depth, slow_request
from tests.support.waiting import until

INFER = "/inference.GRPCInferenceService/ModelInfer"
QUEUE = 3
HELD = 7  # the input of a run that takes as long as a test wants
SOON, LATER = 50_000, 60_000_000  # microseconds: timeouts that pass, and that do not

# For `Server(before=...)`: a run of `HELD` waits while a file exists.
HOLDS = """
import pathlib, time
from enginewright_runtime.session.runner import Runner
run = Runner.run
def hold(self, outputs, feeds, *arguments):
    while (feeds["turns"] == {held}).any() and pathlib.Path({file!r}).exists():
        time.sleep(0.005)
    return run(self, outputs, feeds, *arguments)
Runner.run = hold
"""

# Likewise: one request with a timeout of `SOON` finds no memory to be queued.
LACKS_MEMORY = f"""
from enginewright_serving.server.inference.waiting import Waiting
add, errors = Waiting.add, [MemoryError("no space")]
def fail_once(self, job):
    if errors and getattr(getattr(job, "plan", None), "timeout", 0) == {SOON / 1e6}:
        raise errors.pop()
    add(self, job)
Waiting.add = fail_once
"""


def turning() -> onnx.ModelProto:
    """Return a model that has batches, and whose runs are not in the event loop: it has a loop itself."""
    return parse_text(
        """(int64[batch] turns) => (int64[batch] done)
        <int64 many = {1000}, int64 zero = {0}, int64 one = {1}> {
        last = Loop (many, , zero) <body = body
            (int64 turn, bool go, int64 sum) => (bool go_on, int64 next) {
            next = Add(sum, one) go_on = Identity(go) }>
        done = Add(turns, last) }"""
    )


@pytest.fixture(scope="module", params=[None, 1], ids=["in batches", "one by one"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("server")
    samples = [{"turns": np.array([1, 1])}, {"turns": np.array([2, 1])}]
    task = write_artifact(root, turning(), samples, max_queue=QUEUE)
    if request.param is not None:
        task = task.model_copy(update={"batch_size": request.param})
    before = HOLDS.format(held=HELD, file=str(root / "hold"))
    with Server(root, task, before=before + BATCHES_PAY) as started:
        details = started.get("/v2/models/m/execution").json()["details"]
        assert (details["batching"]["max_size"] > 1) == (request.param is None), details
        yield started
        assert "unexpected" not in started.log()


class HttpRequest:
    """A request over HTTP, sent when it is made."""

    expired, evicted = "504", "503"

    def __init__(self, server: Server, turns: int = 1, **parameters: Any) -> None:
        self._wire = Wire(server.port)
        self._wire.send(slow_request(server, turns, **parameters))
        self._turns = turns

    def outcome(self) -> str:
        answer = self._wire.receive()
        if answer.status == 200:
            assert answer.json()["outputs"][0]["data"] == [self._turns + 1000]
        return str(answer.status)

    def leave(self) -> None:
        self._wire.__exit__()


class GrpcRequest:
    """A call over gRPC, sent when it is made. Its timeout is a deadline."""

    expired, evicted = "DEADLINE_EXCEEDED", "UNAVAILABLE"

    def __init__(self, server: Server, turns: int = 1, *, timeout: int = 0, **names: int) -> None:
        message = InferRequest(
            model_name="m",
            inputs=[{"name": "turns", "datatype": "INT64", "shape": [1]}],
            raw_input_contents=[np.array([turns], np.int64).tobytes()],
            parameters=[
                {"key": name, "value": {"int64_param": value}} for name, value in names.items()
            ],
        )
        address = f"127.0.0.1:{server.grpc_port}"
        self._channel = grpc.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        call: Any = self._channel.unary_unary(INFER)
        self._future = call.future(message.SerializeToString(), timeout=timeout / 1e6 or None)

    def outcome(self) -> str:
        error = self._future.exception(30)
        return "200" if error is None else str(error.code().name)

    def leave(self) -> None:
        self._future.cancel()
        self._channel.close()


PROTOCOLS = pytest.mark.parametrize("send", [HttpRequest, GrpcRequest], ids=["HTTP", "gRPC"])


class Running:
    """A run that does not end before `end`, and requests that wait for that."""

    def __init__(self, server: Server, send: Any) -> None:
        self._server, self._send = server, send
        self._hold = server.root / "hold"

    def __enter__(self) -> Self:
        self._hold.touch()
        until(lambda: self._server.metric("enginewright_requests_in_flight") == 0)
        self.request = self._send(self._server, HELD)
        until(lambda: self._server.metric("enginewright_requests_in_flight") == 1)
        until(lambda: queue_depth(self._server) == 0)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def add(self, **parameters: int) -> Any:
        """Send a request; return once it waits."""
        before = queue_depth(self._server)
        added = self._send(self._server, **parameters)
        until(lambda: queue_depth(self._server) == before + 1)
        return added

    def end(self) -> None:
        self._hold.unlink(missing_ok=True)


def outcomes(*requests: Any) -> list[str]:
    return [request.outcome() for request in requests]


def still_serves(server: Server) -> None:
    assert outcomes(HttpRequest(server), GrpcRequest(server)) == ["200"] * 2
    assert server.get("/v2/health/live").status == 200
    assert queue_depth(server) == 0


@PROTOCOLS
def test_requests_beside_one_that_expires_in_the_queue_are_served(
    server: Server, send: Any
) -> None:
    with Running(server, send) as running:
        first = running.add()
        assert send(server, timeout=SOON).outcome() == send.expired
        last = send(server, timeout=LATER)
        running.end()
        assert outcomes(running.request, first, last) == ["200"] * 3
    still_serves(server)


@PROTOCOLS
def test_requests_beside_an_abandoned_one_are_served(server: Server, send: Any) -> None:
    with Running(server, send) as running:
        first = running.add()
        running.add(timeout=LATER).leave()
        until(lambda: server.metric("enginewright_requests_in_flight") == 2)
        last = running.add(timeout=LATER)
        running.end()
        assert outcomes(running.request, first, last) == ["200"] * 3
    still_serves(server)


@PROTOCOLS
def test_requests_beside_one_that_gives_up_its_place_are_served(server: Server, send: Any) -> None:
    with Running(server, send) as running:
        first, other = running.add(), running.add(timeout=LATER)
        least = running.add(priority=5, timeout=LATER)
        urgent = send(server, priority=1)
        assert least.outcome() == send.evicted
        running.end()
        assert outcomes(running.request, first, other, urgent) == ["200"] * 4
    still_serves(server)


def test_requests_that_have_expired_take_no_place_in_the_queue(server: Server) -> None:
    with Running(server, HttpRequest) as running:
        live = running.add(timeout=LATER)
        for _ in range(2 * QUEUE):
            assert HttpRequest(server, timeout=SOON).outcome() == HttpRequest.expired
        assert queue_depth(server) == 1
        running.end()
        assert outcomes(running.request, live) == ["200"] * 2
    still_serves(server)


def test_a_request_that_cannot_be_queued_is_answered_once_and_takes_no_later_ones_answer(
    tmp_path: Path,
) -> None:
    task = write_artifact(tmp_path, turning(), [{"turns": np.array([1])}], max_queue=QUEUE)
    hold = tmp_path / "hold"
    hold.touch()
    before = HOLDS.format(held=HELD, file=str(hold)) + LACKS_MEMORY
    with Server(tmp_path, task, before=before, drain_linger=0.1) as server:
        with server.wire() as wire:
            wire.send(slow_request(server, 1, timeout=SOON))
            assert wire.receive().status == 500
            wire.send(slow_request(server, HELD))
            time.sleep(3 * SOON / 1e6)
            assert not wire.is_readable(), "the timeout was of the request before"
            hold.unlink()
            assert wire.receive().json()["outputs"][0]["data"] == [HELD + 1000]
        server.terminate()
        assert server.wait() == 0
        assert "drained in" in server.log()
