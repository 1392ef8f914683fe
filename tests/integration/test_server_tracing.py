"""Spans of requests, of a real server, as a receiver of OTLP/HTTP decodes them."""

import os
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from enginewright_contract.serving_options import TracingTask
from enginewright_contract.task import ServeTask

from tests.integration.test_server_access_log import call, x
from tests.support.collector import Collector, attributes
from tests.support.ports import free_port
from tests.support.programs import run_program
from tests.support.serving import Server, linear_model, write_artifact
from tests.support.waiting import until

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{SPAN}-01"
SERVER, INTERNAL, ERROR = 2, 1, 2


def trace_task(root: Path, endpoint: str | None, share: float) -> ServeTask:
    task = write_artifact(root, linear_model(), [{"x": np.ones((2, 8), np.float32)}])
    return task.model_copy(update={"tracing": TracingTask(endpoint=endpoint, share=share)})


def count_dropped(server: Server) -> float:
    return server.metric('enginewright_request_records_dropped_total{kind="trace"')


def of_requests(collector: Collector) -> list[Any]:
    return [span for span in collector.spans if span.kind == SERVER]


def test_a_request_has_a_span_below_its_clients(tmp_path: Path) -> None:
    with Collector() as collector:
        with Server(tmp_path, trace_task(tmp_path, collector.url, 0.0)) as server:
            began = time.time_ns()
            headers = {"traceparent": SAMPLED, "tracestate": "a=1,b=2", "X-Request-Id": "mine"}
            answer = server.post(x(), headers=headers)
            assert answer.status == 200
            until(lambda: len(collector.spans) >= 3, "its spans arrived")
            took = time.time_ns() - began
        (span,) = of_requests(collector)
        children = {item.name: item for item in collector.spans if item.kind == INTERNAL}
    assert collector.paths == ["/v1/traces"]
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, SPAN)
    assert span.trace_state == "a=1,b=2"
    assert span.name == "POST /v2/models/m/infer"
    assert attributes(span) == {
        "client.address": "127.0.0.1",
        "enginewright.request.id": "mine",
        "http.request.method": "POST",
        "http.route": "/v2/models/m/infer",
        "url.path": "/v2/models/m/infer",
        "url.scheme": "http",
        "http.response.status_code": 200,
        "http.request.body.size": len(server.infer_request(x()).partition(b"\r\n\r\n")[2]),
        "http.response.body.size": len(answer.body),
    }
    assert children.keys() == {"queue", "compute"}
    for child in children.values():
        assert (child.trace_id, child.parent_span_id) == (span.trace_id, span.span_id)
    queue, compute = children["queue"], children["compute"]
    moments = [
        *(began, span.start_time_unix_nano, queue.start_time_unix_nano, queue.end_time_unix_nano),
        *(compute.start_time_unix_nano, compute.end_time_unix_nano, span.end_time_unix_nano),
    ]
    slack = 5_000_000  # the clock of the day may be adjusted
    assert all(a <= b + slack for a, b in pairwise(moments))
    assert span.end_time_unix_nano - span.start_time_unix_nano < took
    assert collector.resources[0]["service.name"] == "m"
    assert collector.resources[0]["service.version"] == "r1"


def test_the_sampled_flag_and_else_the_share_decide(tmp_path: Path) -> None:
    with Collector() as collector:
        with Server(tmp_path, trace_task(tmp_path, collector.url, 1.0)) as server:
            for parent in (SAMPLED[:-2] + "00", SAMPLED, "rubbish", None):
                headers = {"traceparent": parent} if parent else {}
                assert server.post(x(), headers=headers).status == 200
            assert server.post(x(), headers=server.probe_header()).status == 200
            assert server.post(b"{").status == 400
            assert call(server, ("traceparent", SAMPLED))[0] == "OK"
            assert call(server, rows=2)[0] == "INVALID_ARGUMENT"
            server.terminate()
            assert server.wait() == 0
        spans = of_requests(collector)
    http, grpc = (
        [span for span in spans if (span.name[:4] == "POST") is is_http]
        for is_http in (True, False)
    )
    assert [item.parent_span_id.hex() for item in http] == [SPAN, "", "", ""]
    assert len({item.trace_id for item in http}) == 4
    assert attributes(http[3])["http.response.status_code"] == 400
    assert {span.status.code for span in spans} == {0}, "a client's fault is no error of the server"
    assert [item.name for item in grpc] == ["inference.GRPCInferenceService/ModelInfer"] * 2
    assert [item.parent_span_id.hex() for item in grpc] == [SPAN, ""]
    assert [attributes(item)["rpc.grpc.status_code"] for item in grpc] == [0, 3]
    assert attributes(grpc[0])["rpc.system"] == "grpc"


def test_variables_of_opentelemetry_are_respected(tmp_path: Path) -> None:
    with Collector() as collector:
        set_variables = "import os\n" + "\n".join(
            f"os.environ[{name!r}] = {value!r}"
            for name, value in {
                "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
                "OTEL_EXPORTER_OTLP_HEADERS": "api-key=s3cret",
                "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
                "OTEL_SERVICE_NAME": "shop",
                "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test",
            }.items()
        )
        with Server(tmp_path, trace_task(tmp_path, None, 1.0), before=set_variables) as server:
            server.post(x())
            until(lambda: bool(of_requests(collector)), "its span arrived")
    assert collector.headers[0]["api-key"] == "s3cret"
    assert collector.headers[0]["content-encoding"] == "gzip"
    assert collector.resources[0]["service.name"] == "shop"
    assert collector.resources[0]["deployment.environment"] == "test"


# fault: Servers | the collector of traces is gone or hangs | requests are answered; traces are dropped and counted | bounded
@pytest.mark.parametrize("hangs", [True, False])
def test_without_a_collector_requests_are_answered(tmp_path: Path, hangs: bool) -> None:
    with Collector() as collector:
        collector.answers.clear()
        endpoint = collector.url if hangs else f"http://127.0.0.1:{free_port()}"
        with Server(tmp_path, trace_task(tmp_path, endpoint, 1.0)) as server:
            request = server.infer_request(x())
            with server.wire() as wire:
                for _ in range(3000):
                    wire.send(request)
                    assert wire.receive().status == 200
            until(lambda: count_dropped(server) > 0, "traces are counted as dropped")
            began = time.monotonic()
            server.terminate()
            assert server.wait() == 0
            assert time.monotonic() - began < 10, "it does not wait for the collector"
            assert server.log().count("no collector took") <= 1


def test_opentelemetry_is_imported_only_where_it_is_used() -> None:
    program = (
        "import sys, enginewright_serving.server.main\n"
        "print([each for each in sys.modules if each.startswith(('opentelemetry', 'requests'))])"
    )
    shown = run_program([sys.executable, "-c", program], env=os.environ)
    assert shown.stdout.strip() == "[]"
