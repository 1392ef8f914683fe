"""The sidecar of a server with steps: it proves the model itself, and takes copies of what clients sent."""

import json
import time
from collections.abc import Callable, Iterator

import grpc
import pytest
from enginewright_contract.task import ServeTask
from enginewright_contract.verdict import Check
from enginewright_serving.exchanges import HEADER, ExchangeHead
from enginewright_serving.server.protocol.grpc import messages

from tests.integration.test_processing_prepare import task_of
from tests.support import processing
from tests.support.preparing import Workplace
from tests.support.serving import Server
from tests.support.sidecar import Sidecar

PICTURE = processing.picture((0, 255, 0))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    space = Workplace(tmp_path_factory.mktemp("served"))
    task = task_of(space, [processing.decoder()], processing.classifier(), [processing.labeller()])
    _, outcome = space.prepare(task)
    key = outcome.published.key
    assert space.fetch_artifact(key).code == 0
    serving = ServeTask(model="m", revision="r1", prepared_key=key, backend="cpu")
    with Server(space.root, serving) as server:
        yield server


def test_golden_inferences_are_of_the_model_itself(served: Server) -> None:
    with Sidecar(served.root, served.task, served.port) as sidecar:
        sidecar.until_ready()
        sidecar.until_state(Check.PROBE_LATENCY, "ok", 60)
        verdict = sidecar.verdict()
        states = {each.check: each.state for each in verdict.checks}
        assert states[Check.GOLDEN] == states[Check.PLACEMENT] == "ok"
        assert (verdict.ready, verdict.admitted) == (True, True)


def taken(server: Server) -> tuple[ExchangeHead, bytes]:
    lines = "".join(f"{name}: {value}\r\n" for name, value in server.probe_header().items())
    with server.wire() as wire:
        wire.send(f"GET /v2/models/m/shadow?share=1 HTTP/1.1\r\nHost: h\r\n{lines}\r\n".encode())
        answer = wire.receive()
    return ExchangeHead.read(answer.headers[HEADER.lower()].encode()), answer.body


def by_http(server: Server) -> None:
    size = {"binary_data_size": len(PICTURE)}
    image = {"name": "image", "datatype": "UINT8", "shape": [len(PICTURE)], "parameters": size}
    with server.wire() as wire:
        wire.send(server.infer_request({"inputs": [image]}, PICTURE))
        assert wire.receive().status == 200


def by_grpc(server: Server) -> None:
    request = messages.InferRequest(
        model_name="m",
        inputs=[{"name": "image", "datatype": "UINT8", "shape": [len(PICTURE)]}],
        raw_input_contents=[PICTURE],
    )
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        infer(request.SerializeToString())


@pytest.mark.parametrize("send", [by_http, by_grpc])
def test_copies_have_what_clients_sent_and_what_they_received(
    served: Server, send: Callable[[Server], None]
) -> None:
    taken(served)
    send(served)
    deadline = time.monotonic() + 20
    head, body = taken(served)
    while not head.request and time.monotonic() < deadline:
        time.sleep(0.05)
        head, body = taken(served)
    request, answer = body[: head.request], body[head.request :]
    assert json.loads(request[: head.request_json])["inputs"][0]["name"] == "image"
    assert request[head.request_json :] == PICTURE
    with served.wire() as wire:  # as the sidecar sends it to the canary
        header, tensors = request[: head.request_json], request[head.request_json :]
        marked = {"Enginewright-Shadow": "1"}
        wire.send(served.infer_request(header, tensors, headers=marked))
        assert wire.receive().body == answer
    assert b"green" in answer
