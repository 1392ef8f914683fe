"""The server with steps around its model: images and text from clients, over both protocols."""

import gzip
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest
from enginewright_contract.manifest import MANIFEST_NAME, Manifest, ProcessingStep
from enginewright_contract.task import ServeTask, ShapeProfile
from enginewright_runtime.session.extensions import bundled
from enginewright_runtime.session.processing.process import StepProcess
from enginewright_serving.server.protocol.grpc import messages
from onnx import TensorProto

from hack.samples import text_steps
from tests.support import processing
from tests.support.serving import Answer, Feeds, Server, tensor, write_artifact


def with_steps(
    root: Path,
    before: list[onnx.ModelProto],
    model: onnx.ModelProto,
    after: list[onnx.ModelProto],
    samples: list[Feeds],
    shapes: Sequence[ShapeProfile] = (),
) -> ServeTask:
    """Write an artefact with steps; the model is in its root as `write_artifact` has it."""
    task = write_artifact(root, model, samples, shapes=shapes)
    folder = root / "artifact"
    (folder / "model").mkdir()
    (folder / "model.onnx").rename(folder / "model/model.onnx")
    (folder / "extensions").mkdir()
    bundled.declare(folder / "extensions")
    paths = {}
    for stage, models in (("before", before), ("after", after)):
        for number, each in enumerate(models):
            path = folder / f"processing/{stage}-{number}/model.onnx"
            path.parent.mkdir(parents=True)
            onnx.save(each, path)
            paths[f"{stage}-{number}"] = path
    with StepProcess(paths, folder / "model/model.onnx", None) as process:
        steps = tuple(
            ProcessingStep(
                name=name, digest=f"{number}" * 8, inputs=facts.inputs, outputs=facts.outputs
            )
            for number, (name, facts) in enumerate(process.facts.items())
        )
    manifest = Manifest.model_validate_json((folder / MANIFEST_NAME).read_bytes())
    manifest = manifest.model_copy(update={"model": "model/model.onnx", "steps": steps})
    (folder / MANIFEST_NAME).write_text(manifest.to_json())
    return task


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("images")
    sample = {"pixels": np.linspace(0, 1, 192, dtype=np.float32).reshape(1, 3, 8, 8)}
    task = with_steps(
        root, [processing.decoder()], processing.classifier(), [processing.labeller()], [sample]
    )
    with Server(root, task) as server:
        yield server


def send_image(server: Server, data: bytes, **parameters: Any) -> Answer:
    head = {
        "inputs": [
            {
                "name": "image",
                "datatype": "UINT8",
                "shape": [len(data)],
                "parameters": {"binary_data_size": len(data)},
            }
        ]
    }
    with server.wire() as wire:
        wire.send(server.infer_request(head | parameters, data))
        return wire.receive()


def outputs(answer: Answer) -> dict[str, Any]:
    assert answer.status == 200, answer.body
    return {each["name"]: each["data"] for each in answer.json()["outputs"]}


def test_clients_send_a_jpeg_and_receive_its_label(images: Server) -> None:
    for color, label in (((200, 9, 9), "red"), ((9, 9, 200), "blue")):
        for kind in ("JPEG", "PNG"):
            found = outputs(send_image(images, processing.picture(color, kind)))
            assert found["label"] == [label]
            assert found["brightness"][0] == pytest.approx(218 / 3 / 255, abs=0.02)


def test_compressed_requests_reach_the_steps_expanded(images: Server) -> None:
    data = processing.picture((9, 9, 200))
    head = {
        "inputs": [
            {
                "name": "image",
                "datatype": "UINT8",
                "shape": [len(data)],
                "parameters": {"binary_data_size": len(data)},
            }
        ]
    }
    text = json.dumps(head).encode()
    answer = images.post(
        gzip.compress(text + data),
        headers={
            "Content-Encoding": "gzip",
            "Inference-Header-Content-Length": str(len(text)),
        },
    )
    assert outputs(answer)["label"] == ["blue"]


def test_the_metadata_is_that_of_the_chain(images: Server) -> None:
    found = images.get("/v2/models/m").json()
    assert found["inputs"] == [{"name": "image", "datatype": "UINT8", "shape": [-1]}]
    assert [each["name"] for each in found["outputs"]] == ["brightness", "label"]


def test_only_the_requested_outputs_are_computed(images: Server) -> None:
    data = processing.picture((0, 255, 0))
    found = outputs(send_image(images, data, outputs=[{"name": "brightness"}]))
    assert found.keys() == {"brightness"}
    found = outputs(send_image(images, data, outputs=[{"name": "label"}]))
    assert found == {"label": ["green"]}


def test_grpc_clients_send_images_too(images: Server) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{images.grpc_port}") as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        data = processing.picture((0, 0, 255), "PNG")
        request = messages.InferRequest(
            model_name="m",
            inputs=[{"name": "image", "datatype": "UINT8", "shape": [len(data)]}],
            outputs=[{"name": "label"}],
            raw_input_contents=[data],
        )
        answer = messages.InferResponse.FromString(infer(request.SerializeToString()))
        assert bytes(answer.raw_output_contents[0]) == b"\x04\0\0\0blue"
        request.raw_input_contents[0] = b"GIF89a" + bytes(len(data) - 6)
        with pytest.raises(grpc.RpcError) as refusal:
            infer(request.SerializeToString())
        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "neither a JPEG nor a PNG" in refusal.value.details()


def test_answers_in_batches_are_those_alone(images: Server) -> None:
    colors = [(200, 9, 9), (9, 200, 9), (9, 9, 200), (90, 80, 70)]
    pictures = [processing.picture(color) for color in colors]
    alone = [outputs(send_image(images, each)) for each in pictures]
    wanted = [(each, found) for each, found in zip(pictures, alone, strict=True)] * 8

    def ask(case: tuple[bytes, dict[str, Any]]) -> bool:
        return outputs(send_image(images, case[0])) == case[1]

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, wanted))


def test_the_sidecars_requests_have_the_inputs_of_the_model(images: Server) -> None:
    pixels = np.full((1, 3, 8, 8), 0.5, np.float32)
    document = {
        "inputs": [
            {
                "name": "pixels",
                "datatype": "FP32",
                "shape": [1, 3, 8, 8],
                "data": pixels.reshape(-1).tolist(),
            }
        ]
    }
    found = outputs(images.post(document, headers=images.probe_header()))
    assert found == {"scores": [0.5, 0.5, 0.5], "brightness": [0.5]}
    refused = images.post(document)
    assert refused.status == 400
    assert "the model's inputs are 'image'" in refused.json()["error"]


def test_copies_of_clients_requests_go_through_the_steps(images: Server) -> None:
    data = processing.picture((0, 255, 0))
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "image",
                    "datatype": "UINT8",
                    "shape": [len(data)],
                    "parameters": {"binary_data_size": len(data)},
                }
            ]
        }
    ).encode()
    for headers in ({}, images.probe_header()):
        with images.wire() as wire:
            marked = {"Enginewright-Shadow": "1"} | headers
            wire.send(images.infer_request(head, data, headers=marked))
            assert outputs(wire.receive())["label"] == ["green"]


def test_the_execution_and_the_metrics_have_the_steps(images: Server) -> None:
    outputs(send_image(images, processing.picture((1, 2, 3))))
    steps = images.get("/v2/models/m/execution").json()["steps"]
    assert [each["name"] for each in steps] == ["before-0", "after-0"]
    text = images.get("/metrics").body.decode()
    for stage in ("preprocess", "postprocess"):
        name = "enginewright_request_duration_seconds_count"
        found = [line for line in text.splitlines() if name in line and f'"{stage}"' in line]
        assert float(found[0].rpartition(" ")[2]) > 0


GOOD = processing.picture((200, 9, 9))


# fault: Hostile | a PNG of some kilobytes has gigabytes of pixels | the size in its header: 400 |
#   before it is decoded
# fault: Hostile | an image has two headers, the second with another size | 400 | before it is decoded
# fault: Requests | a truncated JPEG, which the decoder of onnxruntime-extensions would never return from |
#   Pillow decodes first: 400 | the request itself
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GIF89a" + bytes(100), "neither a JPEG nor a PNG"),
        (b"", "neither a JPEG nor a PNG"),
        (GOOD[:30], "truncated"),
        (GOOD[:-40], "Truncated"),
        (processing.huge_png(30000, 30000), "30000 x 30000 pixels, more than"),
        (processing.two_sizes("PNG", (8, 8), (9000, 9000)), "headers with different sizes"),
        (processing.two_sizes("JPEG", (8, 8), (9000, 9000)), "headers with different sizes"),
        (processing.huge_png(40, 40)[:60], "image file is truncated"),
        (GOOD[:20] + bytes([0xFF, 0xDA]) * 4, "without the header of a frame"),
    ],
)
def test_hostile_images_are_refused(images: Server, data: bytes, message: str) -> None:
    answer = send_image(images, data)
    assert answer.status == 400, answer.body
    assert message in answer.json()["error"]
    assert outputs(send_image(images, GOOD))["label"] == ["red"]
    assert "Traceback" not in images.log()


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("texts")
    sample = {"input_ids": np.array([[2, 5, 3]], np.int64)}
    task = with_steps(root, [text_steps.tokenizer()], text_steps.mood(), [], [sample])
    with Server(root, task) as server:
        yield server


def send_text(server: Server, text: str) -> Answer:
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [text]}
    return server.post({"inputs": [tensor]})


def test_clients_send_text(texts: Server) -> None:
    assert outputs(send_text(texts, "A very GOOD film, good!")) == {"score": [2.0]}
    assert outputs(send_text(texts, "bad")) == {"score": [-1.0]}


@pytest.mark.parametrize("text", ["", "\0", "a" * 200_000, "\u0301" * 50_000, "😀" * 50_000])
def test_hostile_texts_are_answered(texts: Server, text: str) -> None:
    assert send_text(texts, text).status in {200, 400}
    assert outputs(send_text(texts, "good")) == {"score": [1.0]}


def looping() -> onnx.ModelProto:
    """Return turns [1] -> x [1]: as many turns of a loop."""
    body = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Add", ["state", "one"], ["next"]),
            onnx.helper.make_node("Identity", ["go"], ["go_on"]),
        ],
        "body",
        [
            tensor("turn", TensorProto.INT64),
            tensor("go", TensorProto.BOOL),
            tensor("state", TensorProto.FLOAT, 1),
        ],
        [tensor("go_on", TensorProto.BOOL), tensor("next", TensorProto.FLOAT, 1)],
    )
    return processing.chain_model(
        [
            onnx.helper.make_node("Squeeze", ["turns"], ["count"]),
            onnx.helper.make_node("Loop", ["count", "", "zero"], ["x"], body=body),
        ],
        [tensor("turns", TensorProto.INT64, 1)],
        [tensor("x", TensorProto.FLOAT, 1)],
        {"one": np.ones(1, np.float32), "zero": np.zeros(1, np.float32)},
    )


def doubling() -> onnx.ModelProto:
    return processing.chain_model(
        [onnx.helper.make_node("Add", ["x", "x"], ["y"])],
        [tensor("x", TensorProto.FLOAT, "n")],
        [tensor("y", TensorProto.FLOAT, "n")],
    )


def send_turns(server: Server, turns: int, **parameters: Any) -> Answer:
    one = {"name": "turns", "datatype": "INT64", "shape": [1], "data": [turns]}
    return server.post({"inputs": [one]} | parameters)


ENDLESS = 1 << 40
ONE_PROCESS = """
from enginewright_serving.server.inference.processing import served
served.threads = lambda: 1
"""


# fault: Requests | a step of spec.processing hangs | its process is ended: 504 | 10 s
def test_a_step_that_hangs_is_stopped_and_others_are_answered(tmp_path: Path) -> None:
    sample = {"x": np.ones(1, np.float32)}
    task = with_steps(tmp_path, [looping()], doubling(), [], [sample])
    with Server(tmp_path, task, step_seconds=0.5) as server:
        answer = send_turns(server, ENDLESS)
        assert answer.status == 504
        assert "took longer than 0.5 s" in answer.json()["error"]
        assert outputs(send_turns(server, 3)) == {"y": [6.0]}
        assert server.get("/v2/health/live").status == 200


def filling() -> onnx.ModelProto:
    """Return turns [1] -> x [turns]: zeros."""
    return processing.chain_model(
        [onnx.helper.make_node("ConstantOfShape", ["turns"], ["x"])],
        [tensor("turns", TensorProto.INT64, 1)],
        [tensor("x", TensorProto.FLOAT, "n")],
    )


# fault: Requests | a step makes a small request large | at most half of what may be in flight leaves its
#   process: 400 | that request
def test_what_steps_make_of_a_request_is_limited(tmp_path: Path) -> None:
    task = with_steps(tmp_path, [filling()], doubling(), [], [{"x": np.ones(1, np.float32)}])
    with Server(tmp_path, task) as server:
        answer = send_turns(server, 40_000_000)
        assert answer.status == 400
        assert (
            "their outputs take 160,000,000 bytes, more than 134,217,728" in answer.json()["error"]
        )
        assert outputs(send_turns(server, 2)) == {"y": [0.0, 0.0]}


def test_too_many_waiting_requests_are_refused(tmp_path: Path) -> None:
    sample = {"x": np.ones(1, np.float32)}
    task = with_steps(tmp_path, [looping()], doubling(), [], [sample])
    task = task.model_copy(update={"max_queue": 6})
    with (
        Server(tmp_path, task, step_seconds=2.0) as server,
        ThreadPoolExecutor(12) as threads,
    ):
        answers = list(threads.map(lambda _: send_turns(server, ENDLESS).status, range(12)))
        assert set(answers) == {503, 504}
        assert outputs(send_turns(server, 3)) == {"y": [6.0]}


def test_requests_that_wait_for_a_step_are_answered_at_their_timeout(tmp_path: Path) -> None:
    sample = {"x": np.ones(1, np.float32)}
    task = with_steps(tmp_path, [looping()], doubling(), [], [sample])
    answers: list[str] = []
    with (
        Server(tmp_path, task, step_seconds=4.0, before=ONE_PROCESS) as server,
        ThreadPoolExecutor(2) as threads,
        server.wire() as hanging,
    ):
        one = {"name": "turns", "datatype": "INT64", "shape": [1], "data": [ENDLESS]}
        hanging.send(server.infer_request({"inputs": [one]}))
        assert server.get("/v2/health/live").status == 200

        def wait() -> None:
            answer = send_turns(server, 3, parameters={"timeout": 200_000})
            assert answer.status == 504, answer.body
            assert "waited longer than its timeout for a step" in answer.json()["error"]
            answers.append("timeout")

        waiting = threads.submit(wait)
        assert hanging.receive().status == 504
        answers.append("step")
        waiting.result()
        assert outputs(send_turns(server, 3)) == {"y": [6.0]}
    assert answers == ["timeout", "step"]


# fault: Requests | the library of a step crashes or ends its process | steps have processes of their
#   own: 400, and the process is restarted | at once; only that request fails
def test_a_library_that_ends_its_process_fails_one_request(tmp_path: Path) -> None:
    """The decoder exits on a GIF; behind another operator, its images are not checked before."""
    decoder = processing.decoder()
    decoder.graph.node.insert(0, onnx.helper.make_node("Identity", ["image"], ["same"]))
    decoder.graph.node[1].input[0] = "same"
    sample = {"pixels": np.zeros((1, 3, 8, 8), np.float32)}
    task = with_steps(tmp_path, [decoder], processing.classifier(), [], [sample])
    with Server(tmp_path, task) as server:
        answer = send_image(server, b"GIF89a" + bytes(100))
        assert answer.status == 400
        assert "its library ended the process" in answer.json()["error"]
        assert "scores" in outputs(send_image(server, GOOD))


def test_a_process_that_was_killed_is_replaced(tmp_path: Path) -> None:
    """As by the kernel, when memory is short: between two requests, nobody notices."""
    onnx.save(doubling(), tmp_path / "step.onnx")
    with StepProcess({"before-0": tmp_path / "step.onnx"}, tmp_path / "m/m.onnx", None) as steps:
        feeds = {"x": np.ones(2, np.float32)}
        for _ in range(3):
            (found,) = steps.run(["before-0"], feeds, ["y"], 60.0, 1 << 20).values()
            assert found.tolist() == [2.0, 2.0]
            steps._child.kill()
            steps._child.wait(None)


def test_a_step_after_the_model_that_fails_is_an_error_of_the_server(tmp_path: Path) -> None:
    failing = processing.chain_model(
        [onnx.helper.make_node("Gather", ["names", "best"], ["label"])],
        [tensor("best", TensorProto.INT64, "n")],
        [tensor("label", TensorProto.STRING, "n")],
        {"names": np.array(["a", "b"], object)},
    )
    model = processing.chain_model(
        [onnx.helper.make_node("Identity", ["number"], ["best"])],
        [tensor("number", TensorProto.INT64, "n")],
        [tensor("best", TensorProto.INT64, "n")],
    )
    task = with_steps(tmp_path, [], model, [failing], [{"number": np.array([1], np.int64)}])

    def ask(server: Server, number: int) -> Answer:
        one = {"name": "number", "datatype": "INT64", "shape": [1], "data": [number]}
        return server.post({"inputs": [one]})

    with Server(tmp_path, task) as server:
        assert outputs(ask(server, 1)) == {"label": ["b"]}
        answer = ask(server, 9)
        assert answer.status == 500
        assert "step spec.processing.after[0] failed" in answer.json()["error"]
        counted = server.get("/metrics").body.decode()
        assert 'enginewright_requests_total{code="500",model="m",revision="r1"} 1.0' in counted
        assert outputs(ask(server, 0)) == {"label": ["a"]}


def test_what_the_steps_produce_must_fit_the_models_profiles(tmp_path: Path) -> None:
    profile = ShapeProfile(input="input_ids", min=(1, 1), opt=(1, 4), max=(1, 5))
    sample = {"input_ids": np.array([[2, 5, 3]], np.int64)}
    task = with_steps(
        tmp_path, [text_steps.tokenizer()], text_steps.mood(), [], [sample], shapes=(profile,)
    )
    with Server(tmp_path, task) as server:
        assert send_text(server, "good bad good").status == 200
        answer = send_text(server, "good bad good bad good")
        assert answer.status == 400
        assert "dimension 1 is 7, allowed 1 to 5" in answer.json()["error"]
        assert "enginewright_out_of_profile_total" in server.get("/metrics").body.decode()
