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

from hack.samples import text_steps
from tests.support import processing
from tests.support.broken_models import initializer, parse_text
from tests.support.serving import (
    Answer,
    Feeds,
    Server,
    binary_inputs,
    json_inputs,
    write_artifact,
)


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
        for number, proto in enumerate(models):
            path = folder / f"processing/{stage}-{number}/model.onnx"
            path.parent.mkdir(parents=True)
            onnx.save(proto, path)
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
    return server.post(image_document(data) | parameters, data)


def image_document(data: bytes) -> dict[str, Any]:
    document, _ = binary_inputs(image=np.frombuffer(data, np.uint8))
    return {"inputs": document["inputs"]}


def outputs(answer: Answer) -> dict[str, Any]:
    assert answer.status == 200, answer.body
    return {item["name"]: item["data"] for item in answer.json()["outputs"]}


def test_clients_send_a_jpeg_and_receive_its_label(images: Server) -> None:
    for color, label in (((200, 9, 9), "red"), ((9, 9, 200), "blue")):
        for kind in ("JPEG", "PNG"):
            values = outputs(send_image(images, processing.picture(color, kind)))
            assert values["label"] == [label]
            assert values["brightness"][0] == pytest.approx(218 / 3 / 255, abs=0.02)


def test_compressed_requests_reach_the_steps_expanded(images: Server) -> None:
    data = processing.picture((9, 9, 200))
    text = json.dumps(image_document(data)).encode()
    headers = {"Content-Encoding": "gzip", "Inference-Header-Content-Length": str(len(text))}
    answer = images.post(gzip.compress(text + data), headers=headers)
    assert outputs(answer)["label"] == ["blue"]


def test_the_metadata_is_that_of_the_chain(images: Server) -> None:
    metadata = images.get("/v2/models/m").json()
    assert metadata["inputs"] == [{"name": "image", "datatype": "UINT8", "shape": [-1]}]
    assert [item["name"] for item in metadata["outputs"]] == ["brightness", "label"]


def test_only_the_requested_outputs_are_computed(images: Server) -> None:
    data = processing.picture((0, 255, 0))
    values = outputs(send_image(images, data, outputs=[{"name": "brightness"}]))
    assert values.keys() == {"brightness"}
    values = outputs(send_image(images, data, outputs=[{"name": "label"}]))
    assert values == {"label": ["green"]}


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


def test_answers_in_batches_equal_single_answers(images: Server) -> None:
    colors = [(200, 9, 9), (9, 200, 9), (9, 9, 200), (90, 80, 70)]
    pictures = [processing.picture(color) for color in colors]
    alone = [outputs(send_image(images, picture)) for picture in pictures]
    cases = [(data, answer) for data, answer in zip(pictures, alone, strict=True)] * 8

    def ask(case: tuple[bytes, dict[str, Any]]) -> bool:
        return outputs(send_image(images, case[0])) == case[1]

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, cases))


def test_the_sidecars_requests_have_the_inputs_of_the_model(images: Server) -> None:
    document = json_inputs(pixels=np.full((1, 3, 8, 8), 0.5, np.float32))
    values = outputs(images.post(document, headers=images.probe_header()))
    assert values == {"scores": [0.5, 0.5, 0.5], "brightness": [0.5]}
    refused = images.post(document)
    assert refused.status == 400
    assert "the model's inputs are 'image'" in refused.json()["error"]


def test_the_execution_and_the_metrics_have_the_steps(images: Server) -> None:
    outputs(send_image(images, processing.picture((1, 2, 3))))
    steps = images.get("/v2/models/m/execution").json()["steps"]
    assert [step["name"] for step in steps] == ["before-0", "after-0"]
    for part in ("preprocess", "postprocess"):
        assert images.metric(f"enginewright_request_{part}_seconds_count") > 0


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
    return server.post(json_inputs(text=np.array([text], object)))


def test_clients_send_text(texts: Server) -> None:
    assert outputs(send_text(texts, "A very GOOD film, good!")) == {"score": [2.0]}
    assert outputs(send_text(texts, "bad")) == {"score": [-1.0]}


@pytest.mark.parametrize("text", ["", "\0", "a" * 200_000, "\u0301" * 50_000, "😀" * 50_000])
def test_hostile_texts_are_answered(texts: Server, text: str) -> None:
    assert send_text(texts, text).status in {200, 400}
    assert outputs(send_text(texts, "good")) == {"score": [1.0]}


def looping() -> onnx.ModelProto:
    """Return turns [1] -> x [1]: as many turns of a loop."""
    return parse_text(
        """(int64[1] turns) => (float[1] x) {
        count = Squeeze(turns)
        x = Loop (count, , zero) <body = body
            (int64 turn, bool go, float[1] state) => (bool go_on, float[1] next) {
            next = Add(state, one) go_on = Identity(go) }> }""",
        initializer("one", [1]),
        initializer("zero", [0]),
    )


def doubling() -> onnx.ModelProto:
    return parse_text("(float[n] x) => (float[n] y) { y = Add(x, x) }")


def send_turns(server: Server, turns: int, **parameters: Any) -> Answer:
    return server.post(json_inputs(turns=np.array([turns])) | parameters)


ENDLESS = 1 << 40


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
    return parse_text("(int64[1] turns) => (float[n] x) { x = ConstantOfShape(turns) }")


# fault: Requests | a step makes a small request large | at most half of what may be in flight leaves its
#   process: 400 | that request
def test_outputs_of_steps_are_limited(tmp_path: Path) -> None:
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
    onnx.save(doubling(), tmp_path / "step.onnx")
    with StepProcess({"before-0": tmp_path / "step.onnx"}, tmp_path / "m/m.onnx", None) as steps:
        feeds = {"x": np.ones(2, np.float32)}
        for _ in range(3):
            (output,) = steps.run(["before-0"], feeds, ["y"], 60.0, 1 << 20).values()
            assert output.tolist() == [2.0, 2.0]
            steps._child.kill()
            steps._child.wait(None)


def test_a_step_after_the_model_that_fails_is_an_error_of_the_server(tmp_path: Path) -> None:
    failing = parse_text(
        "(int64[n] best) => (string[n] label) { label = Gather(names, best) }",
        initializer("names", np.array(["a", "b"], object), None),
    )
    model = parse_text("(int64[n] number) => (int64[n] best) { best = Identity(number) }")
    task = with_steps(tmp_path, [], model, [failing], [{"number": np.array([1], np.int64)}])

    def ask(server: Server, number: int) -> Answer:
        return server.post(json_inputs(number=np.array([number])))

    with Server(tmp_path, task) as server:
        assert outputs(ask(server, 1)) == {"label": ["b"]}
        answer = ask(server, 9)
        assert answer.status == 500
        assert "step spec.processing.after[0] failed" in answer.json()["error"]
        assert server.metric("enginewright_requests_total", 'code="500"') == 1
        assert outputs(ask(server, 0)) == {"label": ["a"]}


def test_outputs_of_steps_must_fit_the_shape_profiles(tmp_path: Path) -> None:
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
        assert server.metric("enginewright_out_of_profile_total") == 1
