"""gRPC calls of the real server: what the model, its queue and its state answer."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import grpc
import numpy as np
import pytest
from enginewright_serving.exchanges import HEADER, ExchangeHead
from enginewright_serving.server.protocol.grpc.messages import (
    HealthRequest,
    HealthResponse,
    InferResponse,
    Live,
    Ready,
)

from tests.support import http2
from tests.support.serving import Server, infer_message, linear_model, slow_model, write_artifact
from tests.support.shared import share_server
from tests.support.turns import queue_depth
from tests.support.waiting import until

SERVICE = "inference.GRPCInferenceService"
INFER = f"/{SERVICE}/ModelInfer"
CHECK = "/grpc.health.v1.Health/Check"
SERVING = 1
NOT_SERVING = 2
LONG = 5_000  # turns: above a second
BEFORE_LIMIT = 8.0  # seconds: less than requests may take to arrive
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
STREAM_INFER = f"/{SERVICE}/ModelStreamInfer"


def in_flight(server: Server) -> float:
    return server.metric("enginewright_requests_in_flight")


class Client:
    """gRPC's own client without generated stubs."""

    def __init__(self, server: Server) -> None:
        self.channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def method(self, path: str) -> Any:
        return self.channel.unary_unary(path)

    def call(self, path: str, message: Any = None, **options: Any) -> bytes:
        data = b"" if message is None else message.SerializeToString()
        answer: bytes = self.method(path)(data, timeout=120, **options)
        return answer

    def call_refused(self, path: str, message: Any = None, **options: Any) -> tuple[str, str]:
        """Return code and details of the error that the call ends with."""
        with pytest.raises(grpc.RpcError) as caught:
            self.call(path, message, **options)
        return caught.value.code().name, caught.value.details()

    def call_unended(self, path: str, message: Any = None, **options: Any) -> tuple[str, str]:
        """Return code and details of the error of a call whose client keeps its side open, as for a stream of messages."""
        answered = threading.Event()

        def send() -> Iterator[bytes]:
            yield b"" if message is None else message.SerializeToString()
            answered.wait(60)

        # a server that waited for the end, or for its time limit, would exceed the deadline
        call = self.channel.stream_stream(path)(send(), timeout=BEFORE_LIMIT, **options)
        try:
            with pytest.raises(grpc.RpcError) as caught:
                next(call)
        finally:
            answered.set()
        return caught.value.code().name, caught.value.details()

    def health(self, service: str = "") -> int:
        status: int = parse_message(
            HealthResponse, self.call(CHECK, HealthRequest(service=service))
        ).status
        return status


def parse_message(kind: Any, data: bytes) -> Any:
    message = kind()
    message.ParseFromString(data)
    return message


def turns(count: int) -> Any:
    return infer_message(turns=np.array([count]))


def batch(rows: int) -> Any:
    return infer_message(x=np.ones((rows, 8), np.float32))


slow = share_server(
    slow_model,
    {"turns": np.array([1])},
    options={"max_queue": 1},
    body_bytes=100_000,
    inflight_bytes=400_000,
)


def test_the_health_service_tells_whether_the_server_is_ready(slow: Server) -> None:
    with Client(slow) as client:
        assert client.health() == client.health(SERVICE) == SERVING
        code, details = client.call_refused(CHECK, HealthRequest(service="mine"))
        assert (code, details) == ("NOT_FOUND", f"service 'mine' is unknown; use '{SERVICE}'")
        assert client.call_refused("/grpc.health.v1.Health/Watch")[0] == "UNIMPLEMENTED"


@pytest.mark.parametrize("path", [STREAM_INFER, REFLECTION])
def test_an_unknown_method_is_refused_although_its_client_keeps_the_stream_open(
    slow: Server, path: str
) -> None:
    with Client(slow) as client:
        code, details = client.call_unended(path, turns(1))
        assert code == "UNIMPLEMENTED"
        words = "streams of inferences" if path == STREAM_INFER else path
        assert words in details
        assert client.call(INFER, turns(1)), "the connection goes on"


def test_a_full_queue_is_unavailable(slow: Server) -> None:
    with Client(slow) as client:
        infer = client.method(INFER)
        first = infer.future(turns(LONG).SerializeToString())
        until(lambda: in_flight(slow) == 1, "the first is accepted")
        waiting = infer.future(turns(1).SerializeToString())
        until(lambda: (in_flight(slow), queue_depth(slow)) == (2, 1), "the second waits")
        code, details = client.call_refused(INFER, turns(1))
        assert (code, details) == (
            "UNAVAILABLE",
            "the queue is full with 1 requests; try again later",
        )
        assert client.health() == SERVING, "a full queue is no reason to receive no requests"
        for item in (first, waiting):
            assert parse_message(InferResponse, item.result(60)).outputs[0].name == "done"
    assert slow.metric('code="503"') == 1


def test_parameters_of_a_client_itself_are_ignored(slow: Server) -> None:
    values: list[dict[str, Any]] = [
        *({"bool_param": True}, {"int64_param": -7}, {"string_param": "np"}),
        *({"double_param": 0.5}, {"uint64_param": 2**64 - 1}, {}),
    ]
    own = [{"key": f"mine{number}", "value": value} for number, value in enumerate(values)]
    request = turns(3)
    request.outputs.add(name="done")
    for part in (request, *request.inputs, *request.outputs):
        for parameter in own:
            part.parameters.add(**parameter)
    with Client(slow) as client:
        answer = parse_message(InferResponse, client.call(INFER, request))
        assert np.frombuffer(answer.raw_output_contents[0], np.int64).tolist() == [3]
        request.parameters.add(key="sequence_end", value={"bool_param": True})
        code, details = client.call_refused(INFER, request)
    assert code == "INVALID_ARGUMENT"
    assert "'sequence_end' of the request: sequences are not supported" in details


def test_a_message_above_the_limit_is_refused(slow: Server) -> None:
    large = turns(1)
    large.raw_input_contents[0] = bytes(200_000)
    with Client(slow) as client:
        code, details = client.call_refused(INFER, large)
        assert (code, details) == (
            "RESOURCE_EXHAUSTED",
            "the body exceeds the limit of 100000 bytes",
        )
        assert client.call_unended(INFER, large)[0] == "RESOURCE_EXHAUSTED"
        question = HealthRequest(service="x" * 70_000)
        assert client.call_refused(CHECK, question)[0] == "RESOURCE_EXHAUSTED"
        assert client.call(INFER, turns(1)), "the connection goes on"


def test_a_call_whose_deadline_has_passed_before_it_began_counts_as_one(slow: Server) -> None:
    def count(code: int) -> float:
        return slow.metric("enginewright_requests_total", f'code="{code}"')

    before = count(504)
    client = http2.Client()
    with socket.create_connection(("127.0.0.1", slow.grpc_port)) as connection:
        late = client.call(1, INFER, turns(1).SerializeToString(), ("grpc-timeout", "1n"))
        connection.sendall(http2.Client.opening + late)
        until(lambda: count(504) == before + 1, "it is counted")


def test_bytes_that_are_no_message_are_refused(slow: Server) -> None:
    with Client(slow) as client:
        for path, data in ((INFER, b"\xff"), (INFER, b""), (CHECK, b"\x0a\x05a")):
            with pytest.raises(grpc.RpcError) as caught:
                client.method(path)(data, timeout=20)
            expected = "NOT_FOUND" if data == b"" else "INVALID_ARGUMENT"  # "" is no model's name
            assert caught.value.code().name == expected


def test_a_call_that_waits_is_dropped_with_its_connection(slow: Server) -> None:
    def count() -> float:
        return slow.metric('enginewright_requests_total{code="499"')

    before = count()
    with Client(slow) as client:
        left = client.method(INFER).future(turns(LONG).SerializeToString())
        until(lambda: in_flight(slow) == 1, "it is accepted")
    assert left.cancelled() or left.exception() is not None
    until(lambda: count() != before, "its end is counted")
    assert count() == before + 1
    with Client(slow) as client:
        assert client.call(INFER, turns(1))


def take_copy(server: Server) -> tuple[ExchangeHead, bytes]:
    """Return the next copy as the sidecar takes it, and ask for all requests."""
    answer = server.get("/v2/models/m/shadow?share=1", headers=server.probe_header())
    return ExchangeHead.read(answer.headers[HEADER.lower()].encode()), answer.body


@pytest.mark.parametrize("typed", [False, True])
def test_the_sidecar_takes_copies_of_calls_in_the_form_of_http(tmp_path: Path, typed: bool) -> None:
    task = write_artifact(tmp_path, linear_model(), [{"x": np.ones((2, 8), np.float32)}])
    rows = batch(3)
    if typed:
        rows.inputs[0].contents.fp32_contents.extend([1.0] * 24)
        del rows.raw_input_contents[:]
    with Server(tmp_path, task) as server, Client(server) as client:
        assert take_copy(server)[0].request == 0
        client.call(INFER, rows)
        while not (copy := take_copy(server))[0].request:
            time.sleep(0.05)
        head, body = copy
        request, answer = body[: head.request], body[head.request :]
        assert head.dropped == 0
        sent = json.loads(request[: head.request_json])
        assert sent["inputs"][0]["shape"] == [3, 8]
        assert request[head.request_json :] == np.ones((3, 8), np.float32).tobytes()
        document = json.loads(answer[: head.answer_json])
        assert [output["name"] for output in document["outputs"]] == ["y", "total"]
        # what the sidecar sends to the canary
        header, tensors = request[: head.request_json], request[head.request_json :]
        assert server.post(header, tensors).body == answer


def test_before_the_model_is_ready_and_while_it_drains(tmp_path: Path) -> None:
    task = write_artifact(tmp_path, slow_model(), [{"turns": np.array([1], np.int64)}])
    waits = "import time\nfrom enginewright_serving.server.startup import prepare as startup\n"
    waits += "read = startup.read_manifest\n"
    waits += "startup.read_manifest = lambda *each: (time.sleep(2), read(*each))[1]\n"
    server = Server(tmp_path, task, before=waits)
    try:
        with Client(server) as client:
            grpc.channel_ready_future(client.channel).result(30)
            assert client.health() == NOT_SERVING
            assert parse_message(Live, client.call(f"/{SERVICE}/ServerLive")).live
            assert not parse_message(Ready, client.call(f"/{SERVICE}/ServerReady")).ready
            code, details = client.call_refused(INFER, turns(1))
            assert code == "UNAVAILABLE"
            assert details.startswith("the model is not ready: ")
            assert client.call_unended(INFER, turns(1)) == (code, details)
            assert client.call_refused(f"/{SERVICE}/ModelMetadata")[0] == "NOT_FOUND"
            server.wait_until_ready()
            assert client.health() == SERVING
            last = client.method(INFER).future(turns(LONG).SerializeToString())
            until(lambda: in_flight(server) == 1, "it is accepted")
            server.terminate()
            ended: list[int] = []
            thread = threading.Thread(target=lambda: ended.append(server.wait(60)))
            thread.start()
            until(lambda: client.health() == NOT_SERVING, "the drain")
            assert client.call(INFER, turns(2)), "accepted while endpoints are being removed"
            assert parse_message(InferResponse, last.result(60)).outputs
            thread.join(60)
            assert ended == [0]
    finally:
        server.stop()
