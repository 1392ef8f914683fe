"""INT8 and FP8 with the rest in FP16: types, what stays single, and that TensorRT-RTX fuses it."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from enginewright_contract.layers import LAYERS_NAME, ArtifactLayers
from enginewright_contract.reasons import Reason
from enginewright_contract.task import Recipe
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.prepare.quantize import scales
from enginewright_runtime.prepare.quantize.forms import FP8, INT8
from enginewright_runtime.prepare.quantize.static import EXCLUDED
from enginewright_runtime.prepare.quantize.widening import widen
from enginewright_runtime.proof.rounding.half_rules import HALVES
from enginewright_runtime.session.operator_signatures import element_types
from enginewright_runtime.session.optimization import LEVELS
from onnx import ModelProto, NodeProto

from tests.support.broken_models import extend, initializer, parse_text, value
from tests.support.converting import recipe, run
from tests.support.quantizing import (
    Arrays,
    attention,
    build_engine,
    collapsing,
    convolutions,
    copy_weights,
    cosine,
    dense,
    make_calibration,
    mix_precisions,
    operators,
    random,
    weight,
    work,
)

X = {"x": random(4, 64)}
IMAGE = {"x": random(2, 3, 16, 16)}
TOKENS = {"x": random(2, 8, 32)}
HALF = HALVES["FP16"]
BASIC = LEVELS["BASIC"]
RTX = "tensorrt-rtx"
SINGLE, SIXTEEN = "tensor(float)", "tensor(float16)"


def simulate(path: Path) -> ModelProto:
    model = onnx.load(path)
    widen(model)
    return model


def list_sources(model: ModelProto, node: NodeProto, count: int = 2) -> list[str]:
    """Return the operators that produce the first inputs of a node."""
    makers = {name: maker.op_type for maker in model.graph.node for name in maker.output}
    return [makers.get(name, "") for name in node.input[:count]]


def find_node(model: ModelProto, name: str) -> NodeProto:
    node: NodeProto = next(node for node in model.graph.node if node.name == name)
    return node


@pytest.mark.parametrize("opset", [19, 21, 23])
@pytest.mark.parametrize(("precision", "least"), [("INT8", 0.999), ("FP8", 0.995)])
@pytest.mark.parametrize(
    ("source", "feeds"),
    [
        (convolutions(), IMAGE),
        (copy_weights(dense(operator="MatMul")), X),
        (attention(), TOKENS),
    ],
    ids=["conv", "matmul", "attention"],
)
def test_outputs_are_kept_with_no_cast_beside_quantized_nodes(
    source: ModelProto, feeds: Arrays, precision: str, least: float, opset: int, tmp_path: Path
) -> None:
    path, result = mix_precisions(tmp_path, source, feeds, precision, opset=opset)
    model = graphs.parse(path)
    kinds = element_types(model)
    quantized = [node for node in model.graph.node if graphs.label(node) in result.nodes]
    assert len(quantized) == len(result.nodes) > 2
    for node in quantized:
        assert list_sources(model, node) == ["DequantizeLinear"] * 2
        assert {kinds[name] for name in (*node.input, *node.output)} == {SIXTEEN}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear":
            assert kinds[node.input[0]] == kinds[node.input[1]]
    assert {item.type.tensor_type.elem_type for item in model.graph.output} == {1}
    assert least < cosine(run(source, feeds)[0], run(simulate(path), feeds, BASIC)[0]) < 1
    assert not {*result.rest} & {*result.nodes}


def test_values_are_quantized_as_their_producer_writes_them(tmp_path: Path) -> None:
    path, result = mix_precisions(tmp_path, convolutions(2), IMAGE)
    q, dq = "QuantizeLinear", "DequantizeLinear"
    # the input is single, and read so; the output's Cast is the only one
    assert operators(path) == [q, dq, dq, "Conv", "Relu", q, dq, dq, "Conv", "Relu", "Cast"]
    assert result.rest == ("relu-0 (Relu)", "relu-1 (Relu)")
    model = graphs.parse(path)
    kinds = element_types(model)
    first, second = [node for node in model.graph.node if node.op_type == q]
    assert [kinds[name] for name in first.input[:2]] == [SINGLE] * 2
    assert [kinds[name] for name in second.input[:2]] == [SIXTEEN] * 2
    arrays = {item.name: onnx.numpy_helper.to_array(item) for item in model.graph.initializer}
    pair = find_node(model, "x/DequantizeLinear")
    assert arrays[pair.input[1]].dtype == np.float16
    assert float(arrays[pair.input[1]]) == float(arrays[first.input[1]])  # one number in both types
    assert arrays["b1_float16"].dtype == np.float16
    assert not {"w0", "w1", "w0_float16", "w1_float16", "b0", "b1"} & arrays.keys()


def test_scales_cover_their_ranges_in_half_precision() -> None:
    for low, high in ((-1.0, 6.3), (0.0, 1e-3), (-3e4, 0.0)):
        scale = scales.quantizer(low, high, INT8, symmetric=True, half=HALF).scale
        assert np.float16(scale) == scale
        exact = scales.quantizer(low, high, INT8, symmetric=True).scale
        assert exact <= scale <= exact * 1.01
    array = random(8, 16) * np.logspace(-3, 3, 16, dtype=np.float32)
    weights = scales.quantize_weight(array, FP8, 1, HALF)
    assert (weights.scales.astype(np.float16) == weights.scales).all()
    assert np.abs(weights.values.astype(np.float32)).max() <= FP8.high
    # where there is no number near, the scale stays exact
    tiny = scales.quantizer(0.0, 1e-7, INT8, symmetric=True, half=HALF)
    assert tiny.scale == pytest.approx(1e-7 / 127, rel=1e-6)


@pytest.mark.parametrize(("small", "exact"), [(1e-3, False), (1e-7, True)])
def test_channel_that_half_precision_does_not_hold_keeps_the_scales_of_its_layer(
    small: float, *, exact: bool
) -> None:
    # fault: all weights of a channel are lost, as those of others beside it are large
    array = random(64, 4) * np.array([1, 1, small, 0], np.float32)
    own, rounded = (scales.quantize_weight(array, INT8, 1, half) for half in (None, HALF))
    assert (rounded.scales == own.scales).all() is np.bool_(exact)
    assert scales.has_numbers(HALF, rounded.scales) is not exact
    assert np.abs(rounded.values[:, :3].astype(int)).max(0).min() > 120


def test_layers_that_half_precision_does_not_hold_stay_single(tmp_path: Path) -> None:
    source = dense(5, operator="MatMul")
    for tensor in source.graph.initializer:
        factor = {"w1": 1e-7, "w2": 1e7, "w3": 1e6}.get(tensor.name)
        if factor is not None:
            array = onnx.numpy_helper.to_array(tensor) * np.float32(factor)
            tensor.CopyFrom(weight(tensor.name, array))
        elif tensor.name in {"b1", "b2", "b3"}:
            tensor.CopyFrom(weight(tensor.name, np.zeros(64)))
    path, result = mix_precisions(tmp_path, source, X)
    assert len(result.nodes) == 5
    assert result.single["matmul-1 (MatMul)"] == "FP16 has no numbers near the scales of w1"
    assert result.single["matmul-2 (MatMul)"] == "FP16 has no number near the scale of r1"
    assert "w3 has" in result.single["matmul-3 (MatMul)"]
    assert result.single["add-3 (Add)"] == "values of m3 approach the limit of FP16"
    model = graphs.parse(path)
    kinds = element_types(model)
    for name in ("matmul-1", "matmul-2", "matmul-3"):
        node = find_node(model, name)
        assert kinds[node.output[0]] == SINGLE
        assert list_sources(model, node) == ["DequantizeLinear"] * 2
    assert kinds[find_node(model, "matmul-0").output[0]] == SIXTEEN
    # what is produced in half precision is cast before it is quantized by a scale that has no half
    reads = next(node for node in model.graph.node if node.name == "r1_single/QuantizeLinear")
    assert list_sources(model, reads, 1) == ["Cast"]


def test_nodes_excluded_from_quantization_compute_in_half_precision(tmp_path: Path) -> None:
    path, result = mix_precisions(tmp_path, convolutions(), IMAGE, excluded=frozenset({2}))
    assert result.nodes == ("conv-0 (Conv)", "conv-2 (Conv)")
    assert result.kept == {"conv-1 (Conv)": EXCLUDED}
    assert "conv-1 (Conv)" in result.rest
    model = graphs.parse(path)
    assert list_sources(model, find_node(model, "conv-1")) == ["Relu", ""]


def test_nodes_excluded_from_half_precision_are_single_and_quantized(tmp_path: Path) -> None:
    path, result = mix_precisions(tmp_path, convolutions(), IMAGE, single=frozenset({2, 3}))
    assert len(result.nodes) == 3
    assert result.single == {"conv-1 (Conv)": EXCLUDED, "relu-1 (Relu)": EXCLUDED}
    model = graphs.parse(path)
    kinds = element_types(model)
    node = find_node(model, "conv-1")
    assert {kinds[name] for name in (*node.input, *node.output)} == {SINGLE}


def test_a_shared_value_is_dequantized_in_both_types(tmp_path: Path) -> None:
    source = convolutions(1)
    extend(
        source,
        '() => (float["n", 4, 16, 16] second) { [other] second = Conv(x, v) }',
        weight("v", random(4, 3, 1, 1)),
    )
    path, result = mix_precisions(tmp_path, source, IMAGE, single=frozenset({2}))
    assert len(result.nodes) == 2
    model = graphs.parse(path)
    kinds = element_types(model)
    assert kinds[find_node(model, "conv-0").input[0]] == SIXTEEN
    assert kinds[find_node(model, "other").input[0]] == SINGLE
    for expected, actual in zip(run(source, IMAGE), run(simulate(path), IMAGE, BASIC), strict=True):
        assert cosine(expected, actual) > 0.999


def test_a_result_that_is_an_output_is_quantized_before_its_cast(tmp_path: Path) -> None:
    source = convolutions(2)
    source.graph.output.append(value("r0", "n", 8, 16, 16))
    path, _ = mix_precisions(tmp_path, source, IMAGE)
    model = graphs.parse(path)
    _, second = [node for node in model.graph.node if node.op_type == "QuantizeLinear"]
    assert list_sources(model, second, 1) == ["Relu"]
    for expected, actual in zip(run(source, IMAGE), run(simulate(path), IMAGE, BASIC), strict=True):
        assert cosine(expected, actual) > 0.999


@pytest.mark.parametrize("precision", ["INT8", "FP8"])
@pytest.mark.parametrize(
    ("source", "feeds"),
    [(convolutions(), IMAGE), (attention(), TOKENS)],
    ids=["conv", "attention"],
)
def test_tensorrt_reads_halves_and_quantized_values_alone(
    source: ModelProto, feeds: Arrays, precision: str, tmp_path: Path
) -> None:
    path, _ = mix_precisions(tmp_path, source, feeds, precision)
    built = build_engine(tmp_path / "engine", path, "8.9", feeds["x"].shape)
    assert built.engine.nodes_accelerated == built.engine.nodes_total
    (file,) = (tmp_path / "engine").rglob(LAYERS_NAME)
    (engine,) = ArtifactLayers.model_validate_json(file.read_text()).engines
    kinds = {(layer.type, layer.precision) for layer in engine.layers}
    kinds = {pair for pair in kinds if pair[0] not in {"CONSTANT", "CAST", "SHAPE"}}
    assert ("QUANTIZE", precision) in kinds
    assert {kind for name, kind in kinds if name != "QUANTIZE"} == {"HALF"}


# the stage


def make_recipe(**changes: object) -> Recipe:
    """Return a recipe of INT8 for engines, with the rest in FP16."""
    quantization = make_calibration().model_copy(update={"rest": "FP16"})
    return recipe(RTX, **{"precision": "INT8", "quantization": quantization, **changes})


def test_the_stage_reports_both_precisions(tmp_path: Path) -> None:
    about = work(tmp_path, attention(), [TOKENS], make_recipe(), {"x": random(20, 8, 32)})
    report = about.run()
    assert report.ok
    assert (about.quantized.precision, about.quantized.opset) == ("INT8", 19)
    assert [change.kind for change in about.quantized.changes] == ["opset", "quantize", "precision"]
    assert "of the rest in FP16" in report.message
    assert report.facts["INT8"]["rest"]
    assert {cost.label for cost in about.quantized.node_costs if cost.count} >= {"query (MatMul)"}
    assert not [warned for warned in about.quantized.warnings if "profile" in warned.cause]
    assert about.leftovers() == []


def test_costly_nodes_are_excluded_from_quantization_into_half_precision(tmp_path: Path) -> None:
    feeds = {"x": random(8, 32, seed=9)}
    made = work(tmp_path, collapsing(), [feeds], make_recipe(), {"x": random(40, 32)}).make("INT8")
    assert made.agrees, made.disagreement
    assert made.excluded == ("matmul-5 (MatMul)",)
    assert made.excluded_rest == ()
    assert "matmul-5 (MatMul)" in made.rest


def test_nodes_that_half_precision_breaks_are_excluded_from_it_first(tmp_path: Path) -> None:
    source = cancelling()
    feeds = {"x": random(8, 64, seed=9)}
    made = work(tmp_path, source, [feeds], make_recipe(), {"x": random(40, 64)}).make("INT8")
    assert made.agrees, made.disagreement
    assert set(made.excluded_rest) == {"up (Add)", "down (Sub)"}
    assert made.excluded == ()
    assert made.single["down (Sub)"] == EXCLUDED
    assert len(made.changed) == 3


def cancelling() -> ModelProto:
    """Return layers between which a large number is added and taken away: FP16 loses what is beside it."""
    source = dense(3)
    text = "() => () { [up] big = Add(r0, large) [down] small = Sub(big, large) }"
    extend(source, text, weight("large", np.full(64, 12000.0)))
    first, relu, following, *others, up, down = source.graph.node
    following.input[0] = "small"
    nodes = [first, relu, up, down, following, *others]
    del source.graph.node[:]
    source.graph.node.extend(nodes)
    return source


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"backend": "cpu"}, "and backend cpu runs the rest of a quantized model in FP32 alone"),
        ({"target_opset": 17}, "INT8 with the rest in FP16 needs opset 19, and spec.targetOpset"),
    ],
)
def test_what_has_no_such_rest_is_refused(
    changes: dict[str, object], words: str, tmp_path: Path
) -> None:
    how = make_recipe().model_copy(update=changes)
    with pytest.raises(StageFailure) as caught:
        work(tmp_path, dense(), [X], how, {"x": random(20, 64)}).run()
    assert caught.value.reason is Reason.PRECISION_UNSUPPORTED
    assert words in caught.value.message


def test_the_rest_of_a_model_that_is_quantized_already_is_refused(tmp_path: Path) -> None:
    source = parse_text(
        """(float["n", 64] x) => (float["n", 64] y) {
        [quantize] q = QuantizeLinear(x, s) [dequantize] y = DequantizeLinear(q, s) }""",
        initializer("s", 0.1),
    )
    about = work(tmp_path, source, [X], make_recipe(), {"x": random(20, 64)})
    with pytest.raises(StageFailure) as caught:
        about.run()
    assert caught.value.reason is Reason.PRECISION_UNSUPPORTED
    assert "the model is already INT8" in caught.value.message
    assert "remove spec.quantization.rest" in caught.value.message
