"""Tensors without elements, such as the empty past of a decoder: declared, proven, asked and served."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from enginewright_cli.preflight import options
from enginewright_contract.task import ShapeProfile
from enginewright_contract.verdict import Check
from enginewright_runtime.engine.builder import build

from tests.support.broken_models import initializer, parse_text
from tests.support.engines import build_request
from tests.support.open_models import decoder
from tests.support.preparing import Workplace
from tests.support.serving import Server, binary_inputs, json_inputs, real_model
from tests.support.sidecar import Sidecar, artifact, change_manifest

SHAPES = (
    ShapeProfile(input="ids", min=(1, 1), opt=(1, 8), max=(2, 16)),
    ShapeProfile(input="mask", min=(1, 1), opt=(1, 12), max=(2, 32)),
    ShapeProfile(input="past_key", min=(1, 4, 0, 16), opt=(1, 4, 4, 16), max=(2, 4, 16, 16)),
    ShapeProfile(input="past_value", min=(1, 4, 0, 16), opt=(1, 4, 4, 16), max=(2, 4, 16, 16)),
)
BEGIN = {
    "ids": np.array([[5, 6]]),
    "mask": np.ones((1, 2), np.int64),
    "past_key": np.zeros((1, 4, 0, 16), np.float32),
    "past_value": np.zeros((1, 4, 0, 16), np.float32),
}


def test_a_least_size_of_0_is_proven(place: Workplace) -> None:
    place.complete(place.task(place.put("m.onnx", decoder()), shapes=SHAPES))
    with np.load(place.root / "work/golden/inputs.npz") as golden:
        assert golden["min/past_key"].shape == (1, 4, 0, 16)
        assert golden["max/past_key"].shape == (2, 4, 16, 16)


def test_an_empty_past_is_asked_by_the_sidecar_and_by_clients(tmp_path: Path) -> None:
    task = artifact(tmp_path, decoder(), [BEGIN])
    change_manifest(tmp_path, profiles=SHAPES)
    with Server(tmp_path, task) as server, Sidecar(tmp_path, task, server.port) as sidecar:
        sidecar.until_state(Check.GOLDEN, "ok")
        plain = server.post(json_inputs(**BEGIN))
        assert plain.status == 200, plain.body
        document, tensors = binary_inputs(**BEGIN)
        binary = server.post({"inputs": document["inputs"]}, tensors)
        assert binary.status == 200, binary.body
        assert binary.json()["outputs"] == plain.json()["outputs"]


def test_an_engine_is_built_for_an_empty_past(tmp_path: Path) -> None:
    built = build(build_request(tmp_path, decoder(), SHAPES))
    assert built.engine.nodes_accelerated == built.engine.nodes_total


def test_preflight_takes_a_least_size_of_0() -> None:
    profile = options.shape("past=1x4x0x16:1x4x4x16:2x4x16x16")
    assert profile.min == (1, 4, 0, 16)
    with pytest.raises(options.OptionError, match="OPT > 0"):
        options.shape("past=0:0:4")


# fault: Requests | an empty batch ends the process in LSTM or GRU on ONNX Runtime's CPU kernels |
#   the server: 400 | prevented
@pytest.mark.parametrize("operator", ["LSTM", "GRU"])
def test_an_empty_batch_does_not_end_the_process(tmp_path: Path, operator: str) -> None:
    """ONNX Runtime's own kernels abort there, so one request would restart the pod."""
    gates = {"LSTM": 4, "GRU": 3}[operator]
    recurrent = parse_text(
        f"""(float[steps, batch, 8] x) => (float[?, 1, ?, 4] y) {{
        y = {operator} <hidden_size = 4> (x, w, r) }}""",
        initializer("w", np.ones((1, gates * 4, 8))),
        initializer("r", np.ones((1, gates * 4, 4))),
    )
    task = artifact(tmp_path, recurrent, [{"x": np.ones((2, 1, 8), np.float32)}])
    with Server(tmp_path, task) as server:
        for shape in ((2, 0, 8), (0, 1, 8)):
            answer = server.post(json_inputs(x=np.ones(shape, np.float32)))
            assert answer.status == 400, answer.body
            assert "is empty: dimension" in answer.json()["error"]
        assert server.post(json_inputs(x=np.ones((1, 1, 8), np.float32))).status == 200


# fault: Requests | an empty batch ends the process in LSTM or GRU on ONNX Runtime's CPU kernels
def test_an_empty_batch_of_a_real_recurrent_model_is_refused(tmp_path: Path) -> None:
    state = np.zeros((2, 1, 128), np.float32)
    feeds = {"input": np.zeros((1, 512), np.float32), "state": state, "sr": np.array(16000)}
    task = artifact(tmp_path, onnx.load(real_model("silero_vad.onnx")), [feeds])
    empty = feeds | {"input": feeds["input"][:0], "state": state[:, :0]}
    with Server(tmp_path, task) as server:
        assert server.post(json_inputs(**empty)).status == 400
        assert server.get("/v2/health/live").status == 200
