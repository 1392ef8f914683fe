"""The first drifting node in real models, of which one node was tampered with."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from enginewright_runtime.core import isolated
from enginewright_runtime.core.children import name_of
from enginewright_runtime.proof.parity import drift
from enginewright_runtime.proof.parity.drift import Drift, Side, find_drift, search
from enginewright_runtime.proof.parity.tolerances import Tolerances
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
    numpy_helper,
)

from tests.support import broken_models as broken
from tests.support.converting import real
from tests.support.optional import present
from tests.support.programs import run_program

Feeds = dict[str, np.ndarray[Any, Any]]
GENERATOR = np.random.default_rng(3)
MAGIKA: Feeds = {"bytes": GENERATOR.integers(0, 256, (2, 2048)).astype(np.int32)}
IMAGE: Feeds = {"x": GENERATOR.random((1, 3, 96, 96), np.float32)}
SPEECH: Feeds = {
    "input": GENERATOR.normal(0, 0.1, (1, 512)).astype(np.float32),
    "state": np.zeros((2, 1, 128), np.float32),
    "sr": np.array(16000),
}
PITCH: Feeds = {
    "audio": GENERATOR.normal(0, 0.1, (1, 8000)).astype(np.float32),
    "fmin": np.array([50], np.float32),
    "fmax": np.array([2000], np.float32),
}


def walk(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from walk(attribute.g)


def scale_weight(model: ModelProto, operator: str, index: int) -> str:
    """Make the weights of one node 5% too large; return its name."""
    node = [item for item in model.graph.node if item.op_type == operator][index]
    held = [tensor for tensor in model.graph.initializer if tensor.name == node.input[1]]
    held += [item.attribute[0].t for item in model.graph.node if item.output[0] == node.input[1]]
    array = numpy_helper.to_array(held[0])
    held[0].CopyFrom(numpy_helper.from_array((array * 1.05).astype(array.dtype), held[0].name))
    return str(node.name or node.output[0])


def set_attribute(model: ModelProto, operator: str, index: int, **given: float) -> str:
    """Set an attribute of one node; return its name."""
    node = [item for item in model.graph.node if item.op_type == operator][index]
    kept = [item for item in node.attribute if item.name not in given]
    made = [helper.make_attribute(name, value) for name, value in given.items()]
    del node.attribute[:]
    node.attribute.extend([*kept, *made])
    return str(node.name or node.output[0])


class Pair:
    """A model, and one to be tampered with."""

    def __init__(self, folder: Path, model: ModelProto, feeds: Feeds, **saving: Any) -> None:
        self.right, self.judged = folder / "right/model.onnx", folder / "judged/model.onnx"
        for path in (self.right, self.judged):
            path.parent.mkdir()
        onnx.save(model, self.right, **saving)
        self.inputs = folder / "inputs.npz"
        named: dict[str, Any] = {f"s/{name}": array for name, array in feeds.items()}
        np.savez(self.inputs, **named)
        self.output = model.graph.output[0].name
        self.model = model

    def find(self, rtol: float | None = None) -> Drift | None:
        onnx.save(self.model, self.judged)
        drift = find_drift(
            Side(self.right),
            Side(self.judged),
            self.inputs,
            "s",
            self.output,
            tolerances=Tolerances(rtol=rtol),
        )
        left = [path.name for path in self.judged.parent.parent.rglob("drift-*")]
        assert not left
        return drift


@pytest.mark.parametrize(
    ("file", "feeds", "tamper"),
    [
        ("standard_v3_3/model.onnx", MAGIKA, lambda model: scale_weight(model, "Conv", 0)),
        ("standard_v3_3/model.onnx", MAGIKA, lambda model: scale_weight(model, "MatMul", -1)),
        ("PP-OCRv4_det_infer.onnx", IMAGE, lambda model: scale_weight(model, "Conv", 30)),
        (
            "PP-OCRv4_det_infer.onnx",
            IMAGE,
            lambda model: set_attribute(model, "HardSigmoid", 3, alpha=0.3),
        ),
        ("swift_f0/model.onnx", PITCH, lambda model: scale_weight(model, "Conv", 2)),
    ],
    ids=["first-conv", "last-matmul", "conv-among-672", "attribute", "unnamed-nodes"],
)
def test_one_node_was_tampered_with(
    file: str, feeds: Feeds, tamper: Callable[[ModelProto], str], models: Path, tmp_path: Path
) -> None:
    pair = Pair(tmp_path, onnx.load(real(models, file)), feeds)
    name = tamper(pair.model)
    drift = present(pair.find())
    assert drift.label.startswith(f"{name} (")
    assert "of its elements (largest absolute error" in str(drift)


def test_a_node_inside_an_if_is_reported_by_the_if(models: Path, tmp_path: Path) -> None:
    pair = Pair(tmp_path, onnx.load(real(models, "data/silero_vad.onnx")), SPEECH)
    branch = next(node for node in pair.model.graph.node if node.op_type == "If")
    for node in (proto for attribute in branch.attribute for proto in walk(attribute.g)):
        held = node.attribute[0].t if node.op_type == "Constant" else TensorProto()
        if held.data_type == TensorProto.FLOAT and len(held.dims) == 3:
            array = numpy_helper.to_array(held) * np.float32(1.3)
            held.CopyFrom(numpy_helper.from_array(array))
    drift = present(pair.find())
    assert drift.label.endswith("(If)")


# fault: Outputs | noise inside a model named as the first node that drifts | a second run of the
#   reference | at once
def test_noise_inside_is_no_drift(tmp_path: Path) -> None:
    """What differs from itself in the right model says nothing of the other, though it comes first."""
    model = broken.parse_text(
        """(float[1, 64] x) => (float[1, 64] y) {
        [noise] noise = RandomNormalLike <seed = 1.0> (x) [little] little = Mul(noise, tiny)
        [shaken] shaken = Add(x, little) [sign] sign = Sign(shaken)
        [product] product = Mul(sign, weight) [last] y = Tanh(product) }""",
        broken.initializer("tiny", 1e-2),
        broken.initializer("weight", 0.5),
    )
    feeds: Feeds = {"x": np.tile(np.array([-1, 1], np.float32), 32)[None]}
    pair = Pair(tmp_path, model, feeds)
    model.graph.node[0].attribute[0].f = 2.0  # another seed: other noise, of the same distribution
    model.graph.initializer[1].CopyFrom(broken.initializer("weight", 0.6))
    drift = present(pair.find())
    assert drift.label == "product (Mul)"


def test_external_weights_are_shared(tmp_path: Path) -> None:
    model = broken.parse_text(
        """(float[1, 64] x) => (float[1, 64] xabc) {
        [a] xa = MatMul(x, a) [b] xab = MatMul(xa, b) [c] xabc = MatMul(xab, c) }""",
        *(broken.initializer(name, GENERATOR.random((64, 64))) for name in "abc"),
    )
    pair = Pair(
        tmp_path,
        model,
        {"x": np.ones((1, 64), np.float32)},
        save_as_external_data=True,
        location="weights",
        size_threshold=0,
    )
    pair.model = onnx.load(pair.right)
    scale_weight(pair.model, "MatMul", 1)
    drift = present(pair.find())
    assert (drift.label, drift.tensor) == ("b (MatMul)", "xab")


WORDS: Feeds = {"x": np.array(["Some", "Words"])}
STRINGS = broken.parse_text(
    """(string[2] x) => (string[2] y) {
    [suffixed] longer = StringConcat(x, suffix) [twice] y = StringConcat(longer, longer) }""",
    broken.initializer("suffix", ["!"], object),
    opset=20,
)
TRUTHS = broken.parse_text(
    """(float[1, 4] x) => (bool[1, 4] y) {
    [compared] large = Greater(x, limit) [turned] y = Not(large) }""",
    broken.initializer("limit", 0.5),
)


@pytest.mark.parametrize(
    ("model", "feeds", "weight", "label"),
    [
        (
            STRINGS,
            WORDS,
            broken.initializer("suffix", ["?"], object),
            "suffixed (StringConcat)",
        ),
        (
            TRUTHS,
            {"x": np.linspace(0, 1, 4, dtype=np.float32)[None]},
            broken.initializer("limit", 0.9),
            "compared (Greater)",
        ),
    ],
    ids=["strings", "booleans"],
)
def test_outputs_that_are_not_numbers(
    model: ModelProto, feeds: Feeds, weight: TensorProto, label: str, tmp_path: Path
) -> None:
    pair = Pair(tmp_path, model, feeds)
    pair.model = ModelProto.FromString(model.SerializeToString())
    pair.model.graph.initializer[0].CopyFrom(weight)
    drift = present(pair.find())
    assert drift.label == label
    assert "differs in" in drift.description


def test_the_tolerance_decides_the_drift(tmp_path: Path) -> None:
    model = broken.parse_text(
        """(float[1, 4] x) => (float[1, 4] y) { [first] xa = Mul(x, a) [second] y = Relu(xa) }""",
        broken.initializer("a", 1),
    )
    pair = Pair(tmp_path, model, {"x": np.linspace(1, 2, 4, dtype=np.float32)[None]})
    pair.model.graph.initializer[0].CopyFrom(broken.initializer("a", 1.0002))
    assert pair.find() is None
    drift = present(pair.find(rtol=1e-5))
    assert drift.label == "first (Mul)"


def test_time_is_up(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "_SECONDS", 0.05)
    pair = Pair(tmp_path, onnx.load(real(models, "standard_v3_3/model.onnx")), MAGIKA)
    scale_weight(pair.model, "Conv", 0)
    assert pair.find() is None


def test_on_another_backend(models: Path, openvino_python: Path, tmp_path: Path) -> None:
    """The reference and OpenVINO in one process, as where OpenVINO serves."""
    pair = Pair(tmp_path, onnx.load(real(models, "PP-OCRv4_det_infer.onnx")), IMAGE)
    name = set_attribute(pair.model, "HardSigmoid", 3, alpha=0.3)
    onnx.save(pair.model, pair.judged)
    arguments = {
        "reference": {"model": str(pair.right), "backend": "cpu"},
        "judged": {"model": str(pair.judged), "backend": "openvino"},
        "inputs": str(pair.inputs),
        "sample": "s",
        "output": pair.output,
        "precision": "FP32",
        "rtol": 0.01,
    }
    done = run_program(
        [openvino_python, "-m", isolated.__name__, name_of(search), json.dumps(arguments)],
        timeout=200,
    )
    assert json.loads(done.stdout.splitlines()[-1])["result"]["label"] == f"{name} (HardSigmoid)"
