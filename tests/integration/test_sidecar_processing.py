"""The sidecar of a server with steps: it proves the model itself, and takes copies of what clients sent."""

import json
import time
from collections.abc import Callable, Iterator

import grpc
import numpy as np
import pytest
from enginewright_contract.task import ServeTask
from enginewright_contract.verdict import Check
from enginewright_serving.exchanges import HEADER, ExchangeHead

from tests.integration.test_processing_prepare import task_of
from tests.support import processing
from tests.support.preparing import Workplace
from tests.support.serving import COPY, SHADOW_TOKEN, Server, binary_inputs, infer_message
from tests.support.sidecar import Sidecar

PICTURE = processing.picture((0, 255, 0))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    space = Workplace(tmp_path_factory.mktemp("served"))
    task = task_of(space, [processing.decoder()], processing.classifier(), [processing.labeller()])
    _, outcome = space.prepare(task)
    key = outcome.published.key
    assert space.fetch_artifact(key).code == 0
    serving = ServeTask(
        model="m", revision="r1", prepared_key=key, backend="cpu", shadow_token=SHADOW_TOKEN
    )
    with Server(space.root, serving) as server:
        yield server


def test_golden_inferences_are_of_the_model_itself(served: Server) -> None:
    with Sidecar(served.root, served.task, served.port) as sidecar:
        sidecar.until_ready()
        sidecar.until_state(Check.PROBE_LATENCY, "ok", 60)
        verdict = sidecar.verdict()
        states = {check.check: check.state for check in verdict.checks}
        assert states[Check.GOLDEN] == states[Check.PLACEMENT] == "ok"
        assert (verdict.ready, verdict.admitted) == (True, True)


def take_copy(server: Server) -> tuple[ExchangeHead, bytes]:
    answer = server.get("/v2/models/m/shadow?share=1", headers=server.probe_header())
    return ExchangeHead.read(answer.headers[HEADER.lower()].encode()), answer.body


def by_http(server: Server) -> None:
    document, tensors = binary_inputs(image=np.frombuffer(PICTURE, np.uint8))
    assert server.post({"inputs": document["inputs"]}, tensors).status == 200


def by_grpc(server: Server) -> None:
    request = infer_message(image=np.frombuffer(PICTURE, np.uint8))
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        infer(request.SerializeToString())


@pytest.mark.parametrize("send", [by_http, by_grpc])
def test_copies_have_requests_and_answers_of_clients(
    served: Server, send: Callable[[Server], None]
) -> None:
    take_copy(served)
    send(served)
    while not (copy := take_copy(served))[0].request:
        time.sleep(0.05)
    head, body = copy
    request, answer = body[: head.request], body[head.request :]
    assert json.loads(request[: head.request_json])["inputs"][0]["name"] == "image"
    assert request[head.request_json :] == PICTURE
    # as the sidecar sends it to the canary
    header, tensors = request[: head.request_json], request[head.request_json :]
    again = served.post(header, tensors, headers=COPY)
    assert again.body == answer
    assert b"green" in answer
