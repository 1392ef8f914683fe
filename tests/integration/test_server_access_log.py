"""IDs of requests, and the lines of the access log, of a real server over both protocols."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from enginewright_contract.serving_options import AccessLogTask
from enginewright_serving.server.protocol.grpc.messages import InferRequest

from tests.support.serving import Server, json_inputs, linear_model, write_artifact
from tests.support.waiting import until

INFER = "/inference.GRPCInferenceService/ModelInfer"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HOSTILE = ['a" level=error msg="forged', "a\tb", "a" * 200, "\x1b[31mred", "%0d%0aSet-Cookie:"]


def logging_server(root: Path, *, before: str = "", **options: Any) -> Server:
    """Return the server of the linear model with an access log in the file `access`."""
    task = write_artifact(root, linear_model(), [{"x": np.ones((2, 8), np.float32)}])
    if options:
        task = task.model_copy(update={"access_log": AccessLogTask(**options)})
    to_file = f"import os\nos.dup2(os.open({str(root / 'access')!r}, os.O_CREAT | os.O_WRONLY), 1)"
    return Server(root, task, before=before or to_file)


def lines(root: Path) -> list[dict[str, str]]:
    """Return the fields of every line of the log."""
    text = (root / "access").read_text()
    return [dict(re.findall(r'(\w+)=("[^"]*"|\S+)', line)) for line in text.splitlines()]


def x(columns: int = 8) -> dict[str, Any]:
    return json_inputs(x=np.ones((1, columns), np.float32))


def call(server: Server, *metadata: tuple[str, str], rows: int = 1) -> tuple[str, dict[str, str]]:
    """Send an inference over gRPC; return its status and the metadata of the answer."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [rows, 8]}
    request = InferRequest(model_name="m", inputs=[tensor], raw_input_contents=[b"\0" * 32])
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        calling = channel.unary_unary(INFER).future(
            request.SerializeToString(), timeout=20, metadata=metadata
        )
        status = calling.code().name
        answered = (*calling.initial_metadata(), *calling.trailing_metadata())
        return status, {name: value for name, value in answered if isinstance(value, str)}


def count_dropped(server: Server) -> float:
    return server.metric('enginewright_request_records_dropped_total{kind="access_log"')


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with logging_server(tmp_path_factory.mktemp("silent")) as server:
        yield server


def test_an_id_is_echoed_in_every_answer(silent: Server) -> None:
    mine = {"X-Request-Id": "mine-1"}
    assert silent.post(x(), headers=mine).headers["x-request-id"] == "mine-1"
    assert silent.post(b"{", headers=mine).headers["x-request-id"] == "mine-1"
    for head in (
        "GET /v2 HTTP/1.1\r\nHost: h\r\n",
        "GET /none HTTP/1.1\r\nHost: h\r\n",
        "POST /v2 HTTP/1.1\r\nHost: h\r\n",
        "GET /v2 HTTP/1.1\r\n",  # without Host
        "GET /v2 HTTP/1.1\r\nHost: h\r\nExpect: much\r\n",
        "POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999\r\n",
    ):
        answer = silent.send(f"{head}X-Request-Id: mine-2\r\n\r\n".encode())
        assert answer.headers["x-request-id"] == "mine-2", head
    for rows, status in ((1, "OK"), (2, "INVALID_ARGUMENT")):
        status_name, metadata = call(silent, ("x-request-id", "mine-3"), rows=rows)
        assert (status_name, metadata["x-request-id"]) == (status, "mine-3")


def test_without_an_id_there_is_none_and_nothing_is_logged(silent: Server) -> None:
    assert "x-request-id" not in silent.post(x()).headers
    assert "x-request-id" not in call(silent)[1]
    assert (silent.root / "access").read_bytes() == b""


@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_id_is_not_echoed(silent: Server, value: str) -> None:
    answer = silent.post(x(), headers={"X-Request-Id": value})
    assert answer.status in (200, 400)  # 400: the parser of HTTP refuses control characters
    assert "x-request-id" not in answer.headers
    assert "set-cookie" not in answer.headers


@pytest.fixture(scope="module")
def logging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with logging_server(tmp_path_factory.mktemp("logging"), share=1.0) as server:
        yield server


def wait_for_lines(server: Server, before: int, count: int) -> list[dict[str, str]]:
    """Return the lines after the first ones, of which there must be so many."""
    until(lambda: len(lines(server.root)) >= before + count, "all are logged")
    added = lines(server.root)[before:]
    assert len(added) == count
    return added


def test_a_line_has_the_outcome_of_a_request(logging: Server) -> None:
    server, before = logging, len(lines(logging.root))
    parent = f"00-{TRACE}-00f067aa0ba902b7-01"
    headers = {"X-Request-Id": "one", "traceparent": parent, "Authorization": "Bearer s3cret"}
    answer = server.post(x(), headers=headers)
    assert server.post(x(columns=7)).headers["x-request-id"]
    call(server, ("x-request-id", "three"))
    for value in HOSTILE[:3]:
        server.post(x(), headers={"X-Request-Id": value})
    assert server.post(x(), headers=server.probe_header()).status == 200
    assert server.get("/v2").status == 200
    # neither a probe nor what is no inference is logged
    first, refused, third, *hostile = wait_for_lines(server, before, 6)
    text = (server.root / "access").read_text()
    assert first.pop("ts")
    for name in ("total_ms", "queue_ms", "compute_ms"):
        assert float(first.pop(name)) >= 0
    assert first == {
        "level": "info",
        "stage": "serve",
        "msg": '"request"',
        "protocol": "http",
        "method": "POST",
        "code": "200",
        "request_bytes": str(len(server.infer_request(x()).partition(b"\r\n\r\n")[2])),
        "response_bytes": str(len(answer.body)),
        "request_id": "one",
        "trace_id": TRACE,
        "client": "127.0.0.1",
    }
    assert refused["code"] == "400"
    assert re.fullmatch("[0-9a-f]{16}", refused["request_id"])
    assert "compute_ms" not in refused
    assert [third[name] for name in ("protocol", "method", "grpc_code")] == [
        "grpc",
        "ModelInfer",
        "OK",
    ]
    assert third["request_id"] == "three"
    assert all(re.fullmatch("[0-9a-f]{16}", entry["request_id"]) for entry in hostile)
    for secret in ("s3cret", "forged", "inputs", "Bearer"):
        assert secret not in text


def test_unknown_models_and_abandoned_requests_are_logged(logging: Server) -> None:
    before = len(lines(logging.root))
    mine = {"X-Request-Id": "none"}
    assert logging.post(x(), path="/v2/models/other/infer", headers=mine).status == 404
    assert logging.get("/v2/models/m/infer").headers["x-request-id"]
    assert logging.get("/v2").status == 200
    with logging.wire() as wire:  # which leaves before its body is complete
        wire.send(logging.infer_request(x(), headers={"X-Request-Id": "gone"})[:-1])
        until(lambda: logging.metric("enginewright_requests_in_flight{") == 1, "its head is there")
    missing, method, gone = wait_for_lines(logging, before, 3)
    assert (missing["code"], missing["method"], missing["request_id"]) == ("404", "POST", "none")
    assert (method["code"], method["method"]) == ("405", "GET")
    assert (gone["code"], gone["request_id"], gone["client"]) == ("499", "gone", "127.0.0.1")


# fault: Servers | a flood of requests that fail | ten lines a second, the rest counted | bounded
def test_a_flood_of_failures_is_logged_in_part(tmp_path: Path) -> None:
    with logging_server(tmp_path, share=0.0, failed="All") as server:
        began = time.monotonic()
        request = server.infer_request(b"{")
        with server.wire() as wire:
            for _ in range(1000):
                wire.send(request)
                assert wire.receive().status == 400
        until(lambda: bool(lines(tmp_path)), "some are logged")
        assert server.post(x()).status == 200
        most = 100 + 10 * (time.monotonic() - began) + 1
        # the last line may be written a moment after its response
        until(
            lambda: count_dropped(server) + len(lines(tmp_path)) >= 1000,
            "each is logged or counted",
        )
        records = lines(tmp_path)
        assert 100 <= len(records) <= most
        assert count_dropped(server) == 1000 - len(records)
    assert {record["code"] for record in records} == {"400"}


# fault: Servers | no process reads the server's standard output | requests are answered; lines are dropped and counted | bounded
def test_a_full_pipe_holds_up_no_request(tmp_path: Path) -> None:
    full = "import os\nreading, writing = os.pipe()\nos.dup2(writing, 1)"
    with logging_server(tmp_path, before=full, share=1.0) as server:
        request = server.infer_request(x())
        with server.wire() as wire:
            while not count_dropped(server):
                for _ in range(200):
                    wire.send(request)
                    assert wire.receive().status == 200
        server.terminate()
        assert server.wait() == 0


def test_queued_lines_are_written_before_the_end(tmp_path: Path) -> None:
    with logging_server(tmp_path, share=1.0) as server:
        with server.wire() as wire:
            for _ in range(50):
                wire.send(server.infer_request(x()))
                wire.receive()
        server.terminate()
        assert server.wait() == 0
    assert len(lines(tmp_path)) == 50
