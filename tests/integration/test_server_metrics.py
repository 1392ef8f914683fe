"""What the metrics say about requests, of a real server and of both protocols."""

import contextlib
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from enginewright_serving.server.protocol.grpc.messages import InferRequest

from tests.support.broken_models import initializer, parse_text
from tests.support.serving import (
    COPY,
    Server,
    binary_inputs,
    infer_message,
    json_inputs,
    linear_model,
    slow_model,
    write_artifact,
)
from tests.support.turns import slow_request
from tests.support.waiting import until

LONG = 4_000  # turns of the slow model: about a second
MODEL = 'model="m",revision="r1"'
IN_FLIGHT = f"enginewright_requests_in_flight{{{MODEL}}}"


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("linear")
    task = write_artifact(root, linear_model(), [{"x": np.ones((2, 8), np.float32)}])
    with Server(root, task) as server:
        yield server


def series(server: Server, name: str) -> float:
    """Return the value of a series, given as in the exposition."""
    text = server.get("/metrics").body.decode()
    (number,) = re.findall(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(number)


def total(server: Server, code: str) -> float:
    labels = f'code="{code}",{MODEL},stage="total"'
    return series(server, f"enginewright_request_duration_seconds_count{{{labels}}}")


def linear_call(server: Server) -> bytes:
    """Send one inference of the linear model over gRPC; return the answer's bytes."""
    request = infer_message(x=np.zeros((1, 8), np.float32))
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        answer: bytes = call(request.SerializeToString(), timeout=20)
        return answer


def x(columns: int = 8) -> dict[str, Any]:
    return json_inputs(x=np.ones((1, columns), np.float32))


def test_requests_of_both_protocols_are_timed_by_class_of_code(linear: Server) -> None:
    good, bad = total(linear, "2xx"), total(linear, "4xx")
    assert linear.post(x()).status == 200
    assert linear_call(linear)
    assert linear.post(x(columns=7)).status == 400
    with (
        pytest.raises(grpc.RpcError),
        grpc.insecure_channel(f"127.0.0.1:{linear.grpc_port}") as channel,
    ):
        channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(b"", timeout=20)
    assert total(linear, "2xx") == good + 2
    assert total(linear, "4xx") == bad + 2


def test_sizes_match_the_bodies(linear: Server) -> None:
    names = [
        f"enginewright_{what}_bytes_{item}"
        for what in ("request", "response")
        for item in ("sum", "count")
    ]
    before = [series(linear, f"{name}{{{MODEL}}}") for name in names]
    request = linear.infer_request(x())
    answer = linear.send(request)
    body = len(request.partition(b"\r\n\r\n")[2])
    after = [series(linear, f"{name}{{{MODEL}}}") for name in names]
    assert [b - a for a, b in zip(before, after, strict=True)] == [body, 1, len(answer.body), 1]


def test_only_inferences_of_clients_are_timed(linear: Server) -> None:
    before = [total(linear, code) for code in ("2xx", "4xx", "5xx")]
    assert linear.post(x(), headers=linear.probe_header()).status == 200
    assert linear.post(x(), headers=COPY).status == 200
    assert linear.get("/v2/models/m").status == 200
    assert linear.get("/v2/models/m/infer").status == 405
    assert linear.get("/none").status == 404
    assert [total(linear, code) for code in ("2xx", "4xx", "5xx")] == before


def test_a_refused_body_counts_as_far_as_it_came(linear: Server) -> None:
    name = f"enginewright_request_bytes_sum{{{MODEL}}}"
    before = series(linear, name)
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999\r\n\r\n"
    assert linear.send(head).status == 413
    assert series(linear, name) == before


def test_the_time_of_a_response_ends_when_the_client_has_read_it(tmp_path: Path) -> None:
    """A client that does not read keeps the request in flight, and its response is not counted."""
    task = write_artifact(tmp_path, linear_model(), [{"x": np.ones((2, 8), np.float32)}])
    rows = 600_000  # 9.6 MB of response: more than the kernel keeps
    requests = f'enginewright_requests_total{{code="200",{MODEL}}}'
    with Server(tmp_path, task) as server, server.wire() as wire:
        assert series(server, IN_FLIGHT) == 0
        wire.shrink(64 * 1024)
        wire.send(server.infer_request(*binary_inputs(x=np.zeros((rows, 8), np.float32))))
        until(lambda: series(server, requests) == 1, "it was answered")
        assert series(server, IN_FLIGHT) == 1
        assert total(server, "2xx") == 0
        assert wire.receive().status == 200
        until(lambda: total(server, "2xx") == 1, "it was read")
        assert series(server, IN_FLIGHT) == 0


def test_requests_are_in_flight_from_head_to_response(tmp_path: Path) -> None:
    task = write_artifact(tmp_path, slow_model(), [{"turns": np.array([1], np.int64)}])
    with Server(tmp_path, task) as server:
        request = slow_request(server, 1)
        head = request.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
        with server.wire() as wire:
            wire.send(head)
            until(lambda: series(server, IN_FLIGHT) == 1, "its body is awaited")
        until(lambda: series(server, IN_FLIGHT) == 0, "the client has left")
        calling = threading.Thread(target=grpc_slowly, args=(server,))
        calling.start()
        until(lambda: series(server, IN_FLIGHT) == 1, "the model runs")
        calling.join()
        assert series(server, IN_FLIGHT) == 0


def grpc_slowly(server: Server) -> None:
    request = infer_message(turns=np.array([LONG]))
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        assert call(request.SerializeToString(), timeout=60)


# Answers that are encoded in a thread.

TYPED_ROWS = 1_000  # what gRPC answers with typed contents
ROWS = 40_000  # 1.3 MB of request, 25 MB or more of JSON


@pytest.fixture
def widening(tmp_path: Path) -> Iterator[Server]:
    weights = np.random.default_rng(0).random((8, 64), dtype=np.float32)
    wide = parse_text(
        "(float[b, 8] x) => (float[b, 64] y) { y = MatMul(x, w) }", initializer("w", weights, None)
    )
    task = write_artifact(tmp_path, wide, [{"x": np.ones((1, 8), np.float32)}])
    with Server(
        tmp_path, task, body_bytes=2 << 20, inflight_bytes=8 << 20, inflight_largest=4
    ) as server:
        yield server


def count_answers(server: Server, code: int) -> float:
    """Return how many requests were counted with `code`."""
    return server.metric(f'enginewright_requests_total{{code="{code}"')


def widening_request(server: Server) -> bytes:
    x = np.random.default_rng(1).random((ROWS, 8), dtype=np.float32)
    document, tensors = binary_inputs(x=x)
    return server.infer_request(document | {"parameters": {}}, tensors)


def widening_call() -> bytes:
    described = {"name": "x", "datatype": "FP32", "shape": [TYPED_ROWS, 8]}
    contents = {"fp32_contents": [0.5] * (TYPED_ROWS * 8)}
    request = InferRequest(model_name="m", inputs=[described | {"contents": contents}])
    return bytes(request.SerializeToString())


def runs(server: Server) -> float:
    labels = f'{MODEL},stage="compute"'
    return series(server, f"enginewright_request_duration_seconds_count{{{labels}}}")


def test_an_answer_that_finds_no_space_once_it_is_encoded_counts_as_503(widening: Server) -> None:
    request = widening_request(widening)
    attempt = 0
    while True:
        attempt += 1
        with widening.wire() as unread, widening.wire() as other:
            unread.shrink(64 * 1024)
            unread.send(request)
            until(
                lambda: (
                    series(widening, IN_FLIGHT) == 1
                    and count_answers(widening, 200) == 2 * attempt - 1  # noqa: B023 - called at once
                ),
                "the first",
            )
            other.send(request)
            answer = other.receive()
        if answer.status == 503:
            break
        # the unread one was known as slow by then, and has been given up
    assert "responses are in flight" in answer.json()["error"]
    assert (count_answers(widening, 200), count_answers(widening, 503)) == (2 * attempt - 1, 1)


def test_clients_that_leave_while_their_answers_are_encoded_count_as_499(widening: Server) -> None:
    """Answers are encoded in turn, so that some wait when all runs have ended."""
    with contextlib.ExitStack() as clients:
        send_widening(widening, clients)
    until(lambda: count_ended(widening) == 3, "the answers have ended")
    assert count_answers(widening, 499) >= 1


def test_a_call_that_is_cancelled_before_it_is_encoded_counts_as_499(widening: Server) -> None:
    with contextlib.ExitStack() as clients:
        channel = clients.enter_context(grpc.insecure_channel(f"127.0.0.1:{widening.grpc_port}"))
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        send_widening(widening, clients)  # whose answers are encoded before
        cancelled = call.future(widening_call(), timeout=60)
        until(lambda: runs(widening) == 4, "the model has run for gRPC")
        cancelled.cancel()
        until(lambda: count_ended(widening) == 4, "the answers have ended")
        assert count_answers(widening, 499) == 1


def send_widening(server: Server, clients: contextlib.ExitStack) -> None:
    """Send three requests, each of another client; return when the model has run."""
    for _ in range(3):
        wire = clients.enter_context(server.wire())
        wire.send(widening_request(server))
    until(lambda: runs(server) == 3, "the model has run for HTTP")


def count_ended(server: Server) -> float:
    return sum(count_answers(server, code) for code in (200, 499, 503))
