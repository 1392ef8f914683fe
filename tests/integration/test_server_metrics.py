"""What the metrics say about requests, of a real server and of both protocols."""

import contextlib
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest
from enginewright_contract.serving_options import AccessLogTask
from enginewright_serving.server.protocol.grpc.messages import InferRequest
from enginewright_serving.transport.http2 import frames

from tests.support import http2
from tests.support.broken_models import initializer, parse_text
from tests.support.serving import (
    COPY,
    Feeds,
    Server,
    Wire,
    binary_inputs,
    infer_message,
    json_inputs,
    linear_model,
    slow_model,
    write_artifact,
)
from tests.support.shared import share_server
from tests.support.turns import slow_request
from tests.support.waiting import until

LONG = 4_000  # turns of the slow model: about a second
MODEL = 'model="m",revision="r1"'
IN_FLIGHT = f"enginewright_requests_in_flight{{{MODEL}}}"


SAMPLE: Feeds = {"x": np.ones((2, 8), np.float32)}
linear = share_server(linear_model, SAMPLE)


def series(server: Server, name: str) -> float:
    """Return the value of a series, given as in the exposition."""
    text = server.get("/metrics").body.decode()
    (number,) = re.findall(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(number)


def total(server: Server, code: str) -> float:
    labels = f'code="{code}",{MODEL}'
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


def test_the_time_of_a_response_ends_when_the_client_has_read_it(linear: Server) -> None:
    """A client that does not read keeps the request in flight, and it is in no figure."""
    rows = 600_000  # 9.6 MB of response: more than the kernel keeps

    def figures() -> tuple[float, float, float]:
        return series(linear, IN_FLIGHT), count_answers(linear, 200), total(linear, "2xx")

    _, answered, timed = figures()
    before = runs(linear)
    with linear.wire() as wire:
        wire.shrink(64 * 1024)
        wire.send(linear.infer_request(*binary_inputs(x=np.zeros((rows, 8), np.float32))))
        until(lambda: runs(linear) == before + 1, "the model has run")
        assert figures() == (1, answered, timed)
        assert wire.receive().status == 200
        until(lambda: figures() == (0, answered + 1, timed + 1), "it was read")


def send_broken(server: Server, code: int) -> None:
    """Have the server refuse an inference of which it never got the body."""
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\n"
    rest = {
        400: b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        408: b"Content-Length: 1000\r\n\r\nabc",
        413: b"Content-Length: 99999999999\r\n\r\n",
        415: b"Content-Encoding: br\r\nContent-Length: 3\r\n\r\nabc",
    }[code]
    assert server.send(head + rest).status == code


# waits a second for a body, and its clients must read
impatient = share_server(linear_model, SAMPLE, head_seconds=1.0, transfer_window=1.0)


def read_ended(server: Server) -> dict[str, float]:
    """Return how many requests have ended by every figure that counts them."""
    text = server.get("/metrics").body.decode()
    names = [
        *("requests_total", "request_duration_seconds_count"),
        *("request_bytes_count", "response_bytes_count"),
    ]
    return {
        name: sum(
            float(number)
            for number in re.findall(rf"^enginewright_{name}{{.*}} (\S+)$", text, re.MULTILINE)
        )
        for name in names
    } | {
        "statistics": sum(
            server.get("/v2/models/m/stats").json()["model_stats"][0]["inference_stats"][end][
                "count"
            ]
            for end in ("success", "fail")
        )
    }


# fault: Reports | two figures of the same requests differ: one counts what the other leaves out | each request is
#   counted once, at its end | prevented
@pytest.mark.parametrize("code", [400, 408, 413, 415])
def test_a_request_whose_body_is_not_taken_is_in_every_figure(impatient: Server, code: int) -> None:
    before, of_code = read_ended(impatient), count_answers(impatient, code)
    send_broken(impatient, code)
    until(lambda: count_answers(impatient, code) == of_code + 1, "it is counted")
    assert read_ended(impatient) == {name: count + 1 for name, count in before.items()}


INFER = "/inference.GRPCInferenceService/ModelInfer"
ONE_ROW = infer_message(x=np.ones((1, 8), np.float32)).SerializeToString()
INVALID_CALLS: dict[str, tuple[bytes, list[tuple[str, str]], int]] = {
    "truncated": (http2.message(ONE_ROW)[:-1], [], 13),
    "compressed, but not said": (http2.message(ONE_ROW, 1), [], 13),
    "no gzip": (http2.message(bytes(30), 1), [("grpc-encoding", "gzip")], 13),
    "without a message": (b"", [], 12),
    "of two messages": (http2.message(ONE_ROW) * 2, [], 12),
    "in an unknown compression": (http2.message(ONE_ROW), [("grpc-encoding", "br")], 12),
    "with an invalid timeout": (http2.message(ONE_ROW), [("grpc-timeout", "5")], 13),
}


# fault: Reports | a client's malformed calls count as errors of the model, and end a rollout | invalid calls count as 400 |
#   prevented
@pytest.mark.parametrize("name", INVALID_CALLS)
def test_an_invalid_call_is_a_400_in_every_figure_whatever_status_it_gets(
    impatient: Server, name: str
) -> None:
    content, more, status = INVALID_CALLS[name]
    before, of_code = read_ended(impatient), count_answers(impatient, 400)
    client = http2.Client()
    with Wire(impatient.grpc_port) as wire:
        head = client.headers(1, http2.call_headers(INFER, *more))
        wire.send(client.opening + head + http2.data(1, content, ends=True))
        until(lambda: count_answers(impatient, 400) == of_code + 1, "it is counted")
        received = wire._socket.recv(1 << 16)
    assert client.responses(received)[1].status == status
    assert read_ended(impatient) == {name: count + 1 for name, count in before.items()}


def leave_during_body(server: Server) -> None:
    with server.wire() as wire:
        wire.send(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n{")
        until(lambda: series(server, IN_FLIGHT) == 1, "its body is awaited")


def leave_unread(server: Server) -> None:
    before = runs(server)
    with server.wire() as wire:
        wire.shrink(64 * 1024)
        wire.send(server.infer_request(*binary_inputs(x=np.zeros((600_000, 8), np.float32))))
        until(lambda: runs(server) == before + 1, "the model has run")


def stay_and_not_read(server: Server) -> None:
    before = count_answers(server, 499)
    with server.wire() as wire:
        wire.shrink(64 * 1024)
        wire.send(server.infer_request(*binary_inputs(x=np.zeros((600_000, 8), np.float32))))
        until(lambda: count_answers(server, 499) == before + 1, "the server has given up")


def call_without_window(server: Server, wire: Wire) -> None:
    """Call the model over gRPC without accepting a byte of the response; return once the model has run."""
    before, client = runs(server), http2.Client()
    message = infer_message(x=np.zeros((1, 8), np.float32)).SerializeToString()
    wire.send(frames.PREFACE + http2.settings((frames.INITIAL_WINDOW_SIZE, 0)))
    wire.send(client.call(1, "/inference.GRPCInferenceService/ModelInfer", message))
    until(lambda: runs(server) == before + 1, "the model has run")


def leave_call_unread(server: Server) -> None:
    with Wire(server.grpc_port) as wire:
        call_without_window(server, wire)


def reset_call_unread(server: Server) -> None:
    before = count_answers(server, 499)
    with Wire(server.grpc_port) as wire:
        call_without_window(server, wire)
        wire.send(http2.frame(frames.RST_STREAM, 0, 1, bytes(4)))
        until(lambda: count_answers(server, 499) == before + 1, "the call has ended")


def stay_and_not_read_the_call(server: Server) -> None:
    before = count_answers(server, 499)
    with Wire(server.grpc_port) as wire:
        call_without_window(server, wire)
        until(lambda: count_answers(server, 499) == before + 1, "the server has given up")


@pytest.mark.parametrize(
    "leave",
    [
        *(leave_during_body, leave_unread, stay_and_not_read),
        *(leave_call_unread, reset_call_unread, stay_and_not_read_the_call),
    ],
)
def test_a_client_that_does_not_get_its_answer_is_a_499_in_every_figure(
    impatient: Server, leave: Callable[[Server], None]
) -> None:
    before, good = read_ended(impatient), count_answers(impatient, 200)
    left = count_answers(impatient, 499)
    leave(impatient)
    until(lambda: count_answers(impatient, 499) == left + 1, "it is counted")
    assert read_ended(impatient) == {name: count + 1 for name, count in before.items()}
    assert count_answers(impatient, 200) == good, "an answer that was not delivered is none"


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


def widening_model() -> onnx.ModelProto:
    weights = np.random.default_rng(0).random((8, 64), dtype=np.float32)
    return parse_text(
        "(float[b, 8] x) => (float[b, 64] y) { y = MatMul(x, w) }", initializer("w", weights, None)
    )


widening = share_server(
    widening_model,
    {"x": np.ones((1, 8), np.float32)},
    options={"access_log": AccessLogTask(share=0.0, failed="All")},
    body_bytes=2 << 20,
    inflight_bytes=8 << 20,
    inflight_largest=4,
)


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
    return series(server, f"enginewright_request_compute_seconds_count{{{MODEL}}}")


def test_an_answer_that_finds_no_space_once_it_is_encoded_counts_as_503(widening: Server) -> None:
    request, attempt = widening_request(widening), 0
    given, refused, left = (count_answers(widening, code) for code in (200, 503, 499))
    while True:
        attempt += 1
        with widening.wire() as unread, widening.wire() as other:
            unread.shrink(64 * 1024)
            unread.send(request)
            until(unread.is_readable, "the first answer begins")
            other.send(request)
            answer = other.receive()
        if answer.status == 503:
            break
        # the unread one was known as slow by then, and has been given up
    assert "responses are in flight" in answer.json()["error"]
    ended = left + attempt
    until(lambda: count_answers(widening, 499) == ended, "those that were not read have ended")
    assert count_answers(widening, 200) == given + attempt - 1
    assert count_answers(widening, 503) == refused + 1


def test_clients_that_leave_while_their_answers_are_encoded_count_as_499(widening: Server) -> None:
    """Answers are encoded in turn, so that some wait when all runs have ended."""
    ended, left = count_ended(widening), count_answers(widening, 499)
    with contextlib.ExitStack() as clients:
        send_widening(widening, clients)
    until(lambda: count_ended(widening) == ended + 3, "the answers have ended")
    assert count_answers(widening, 499) > left


def test_a_call_that_is_cancelled_before_it_is_encoded_counts_as_499(widening: Server) -> None:
    ended = count_ended(widening)
    with contextlib.ExitStack() as clients:
        channel = clients.enter_context(grpc.insecure_channel(f"127.0.0.1:{widening.grpc_port}"))
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        ran = send_widening(widening, clients)  # whose answers are encoded before
        cancelled = call.future(widening_call(), timeout=60)
        until(lambda: runs(widening) == ran + 1, "the model has run for gRPC")
        cancelled.cancel()
        until(lambda: list_calls(widening), "the call has ended")
    until(lambda: count_ended(widening) == ended + 4, "the answers have ended")
    (line,) = list_calls(widening)
    assert " code=499 grpc_code=CANCELLED " in line


def list_calls(server: Server) -> list[str]:
    """Return the lines of the access log about gRPC."""
    return [line for line in server.log().splitlines() if " protocol=grpc " in line]


def send_widening(server: Server, clients: contextlib.ExitStack) -> float:
    """Send three requests, each of another client, until the model has run; return its runs so far."""
    ran = runs(server) + 3
    for _ in range(3):
        wire = clients.enter_context(server.wire())
        wire.send(widening_request(server))
    until(lambda: runs(server) == ran, "the model has run for HTTP")
    return ran


def count_ended(server: Server) -> float:
    return sum(count_answers(server, code) for code in (200, 499, 503))
