"""Batch normalizations folded ahead of a lower precision."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.prepare.convert.batch_norms import constants_to_initializers, fold
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.support.broken_models import parse_text, value
from tests.support.converting import copy, feeds, operators, real, run, same, weight
from tests.support.quantizing import copy_weights

NOWHERE = Path("nowhere")


def normalize(
    operator: str = "Conv", *, variance: float = 2.0, kernel: tuple[int, ...] = (4, 3, 3, 3)
) -> ModelProto:
    """Return x [batch, 3, 8, 8] > `operator` > BatchNormalization > Relu."""
    parameters = [
        weight("scale", 4, low=0.5, high=1.5),
        weight("shift", 4),
        weight("mean", 4),
        weight("variance", 4, low=variance / 2, high=variance),
    ]
    channels = 3 if kernel else 4
    return parse_text(
        f"""(float["batch", {channels}, 8, 8] x) => (float["batch", 4, ?, ?] y) {{
        [first] c = {operator}(x, {"w" if kernel else "x"})
        [norm] n = BatchNormalization <epsilon = 0.001> (c, scale, shift, mean, variance)
        [relu] y = Relu(n) }}""",
        *parameters,
        *([weight("w", *kernel)] if kernel else []),
    )


@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize(
    ("operator", "kernel"), [("Conv", (4, 3, 3, 3)), ("ConvTranspose", (3, 4, 3, 3))]
)
def test_folded_into_a_convolution(operator: str, kernel: tuple[int, ...], opset: int) -> None:
    source = normalize(operator, kernel=kernel)
    source.opset_import[0].version = opset
    model = copy(source)
    folded = fold(model, NOWHERE)
    assert folded.into_convolutions == ["norm (BatchNormalization)"]
    assert [node.name for node in model.graph.node] == ["first", "relu"]
    assert {item.name for item in model.graph.initializer} == {"w_folded", "first/bias_folded"}
    same(run(source, feeds(source)), run(model, feeds(model)))


def test_copies_of_weights_are_weights() -> None:
    source = copy_weights(normalize())
    model = copy(source)
    assert fold(model, NOWHERE).into_convolutions == ["norm (BatchNormalization)"]
    assert [node.name for node in model.graph.node] == ["first", "relu"]
    same(run(source, feeds(source)), run(model, feeds(model)))


def test_a_convolution_that_others_read_stays() -> None:
    source = normalize()
    source.graph.output.append(value("c", "batch", 4, None, None))
    model = copy(source)
    folded = fold(model, NOWHERE)
    assert not folded.into_convolutions
    assert model == source


def test_a_variance_beyond_fp16_becomes_arithmetic() -> None:
    source = normalize("Add", variance=1e8, kernel=())
    model = copy(source)
    assert fold(model, NOWHERE).into_arithmetic == ["norm (BatchNormalization)"]
    assert operators(model) == ["Add", "Mul", "Add", "Relu"]
    largest = max(np.abs(numpy_helper.to_array(item)).max() for item in model.graph.initializer)
    assert largest < 65504
    same(run(source, feeds(source)), run(model, feeds(model)))


def test_a_variance_within_fp16_stays() -> None:
    source = normalize("Add", kernel=())
    model = copy(source)
    fold(model, NOWHERE)
    assert model == source


def test_one_in_training_stays() -> None:
    source = normalize()
    source.graph.node[1].attribute.append(helper.make_attribute("training_mode", 1))
    source.graph.node[1].output.extend(["mean_out", "variance_out"])
    model = copy(source)
    fold(model, NOWHERE)
    assert model == source


def test_weights_outside_are_read_one_by_one(tmp_path: Path) -> None:
    source = normalize()
    path = tmp_path / "m.onnx"
    onnx.save(copy(source), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    model = graphs.parse(path)
    fold(model, tmp_path)
    same(run(source, feeds(source)), run(model, feeds(model)))


def test_constant_nodes_become_initializers(models: Path) -> None:
    source = onnx.load(real(models, "ch_ppocr_mobile_v2.0_cls_infer.onnx"))
    model = copy(source)
    made = constants_to_initializers(model)
    assert made > 100
    left = [node for node in graphs.walk_nodes(model) if node.op_type == "Constant"]
    assert all(node.attribute[0].t.data_type != TensorProto.FLOAT for node in left)
    inputs = {"x": np.random.default_rng(0).uniform(-1, 1, (2, 3, 48, 192)).astype(np.float32)}
    same(run(source, inputs), run(model, inputs))
