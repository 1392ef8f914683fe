"""Nodes brought to another opset say the same: against ONNX Runtime or ONNX's own definition."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.prepare.convert.translating import TranslationError, expand, translate
from onnx import ModelProto, TensorProto, helper

from tests.support.broken_models import parse_text
from tests.support.converting import (
    attention,
    copy,
    define,
    feeds,
    one,
    operators,
    real,
    run,
    same,
    weight,
)

INT64 = TensorProto.INT64


def integers(name: str, *numbers: int) -> TensorProto:
    return helper.make_tensor(name, INT64, [len(numbers)], numbers)


@dataclass(frozen=True)
class Down:
    """A model and the opsets that it is brought down to."""

    make: Callable[[], ModelProto]
    targets: tuple[int, ...]
    gone: str  # operator that the result does not have; "": the same operators are left


IMAGE = ("b", 4, 3, 3)
DOWN = {
    "attention-23": Down(lambda: attention(23), (22, 18, 17), "Attention"),
    "attention-24-causal": Down(lambda: attention(24, is_causal=1, scale=0.3), (23, 17), ""),
    "attention-25": Down(lambda: attention(25), (24, 22), ""),
    "group-norm-21": Down(
        lambda: one("GroupNormalization", 21, weight("s", 4), weight("b_", 4), num_groups=2),
        (20, 17),
        "GroupNormalization",
    ),
    "group-norm-18": Down(
        lambda: one("GroupNormalization", 18, weight("s", 2), weight("b_", 2), num_groups=2),
        (17,),
        "GroupNormalization",
    ),
    "layer-norm-17": Down(
        lambda: one("LayerNormalization", 17, weight("s", 3), weight("b_", 3)),
        (16, 13, 11),
        "LayerNormalization",
    ),
    "rms-norm-23": Down(
        lambda: one("RMSNormalization", 23, weight("s", 3)), (22, 17, 13), "RMSNormalization"
    ),
    "gelu-20": Down(lambda: one("Gelu", 20), (19, 13), "Gelu"),
    "gelu-20-tanh": Down(lambda: one("Gelu", 20, approximate="tanh"), (17,), "Gelu"),
    "swish-24": Down(lambda: one("Swish", 24), (23, 17), "Swish"),
    "mish-22": Down(lambda: one("Mish", 22), (18, 17), ""),
    "center-crop-pad-18": Down(
        lambda: one("CenterCropPad", 18, integers("size", 1, 4, 3, 2), out=(1, 4, 3, 2)),
        (17,),
        "CenterCropPad",
    ),
    "reduce-18": Down(
        lambda: one("ReduceMean", 18, integers("axes", 1), out=("b", 1, 3, 3)), (17, 11), ""
    ),
    "softmax-13-last": Down(lambda: one("Softmax", 13), (12, 11), ""),
    "softmax-13-inner": Down(lambda: one("Softmax", 13, axis=1), (12,), "Softmax"),
    "squeeze-13": Down(
        lambda: one("Unsqueeze", 13, integers("axes", 0), out=(1, *IMAGE)), (12, 11), ""
    ),
    "resize-19": Down(
        lambda: parse_text(
            """(float[1, 4, 3, 3] x) => (float[1, 4, 6, 6] y) <float[4] scales = {1, 1, 2, 2}> {
            y = Resize <mode = "linear"> (x, , scales) }""",
            opset=19,
        ),
        (18, 17, 13),
        "",
    ),
}


@pytest.mark.parametrize("case", DOWN.values(), ids=DOWN)
def test_an_older_opset_says_the_same(case: Down) -> None:
    source = case.make()
    inputs = feeds(source)
    want = run(source, inputs) if source.opset_import[0].version <= 24 else define(source, inputs)
    for target in case.targets:
        model = copy(source)
        translate(model, target)
        assert graphs.default_opset(model) == target
        assert not case.gone or case.gone not in operators(model)
        onnx.checker.check_model(model, full_check=True)
        same(want, run(model, inputs))
        assert (model.graph.input, model.graph.output) == (source.graph.input, source.graph.output)
        names = [node.name for node in graphs.walk_nodes(model)]
        assert len(set(names)) == len(names)


def test_converted_nodes_keep_the_name() -> None:
    model = attention(24)
    done = translate(model, 18)
    assert done.expanded == {"attention (Attention)": "Attention"}
    assert model.graph.node[0].name == "product"  # others keep theirs
    assert all(node.name.startswith("attention/") for node in model.graph.node[1:])


def test_an_equal_split_of_a_known_size_needs_no_count() -> None:
    def split(size: int) -> ModelProto:
        half = (size + 1) // 2
        return parse_text(
            f"""(float["b", {size}] x) => (float["b", {half}] y, float["b", {size - half}] z) {{
            [split] y, z = Split <num_outputs = 2, axis = 1> (x) }}""",
            opset=18,
        )

    model = split(4)
    translate(model, 13)
    same(run(split(4), feeds(model)), run(model, feeds(model)))
    with pytest.raises(TranslationError, match="splits 5 elements into 2 unequal parts"):
        translate(split(5), 13)


def test_every_node_in_the_way_is_named() -> None:
    model = attention(23)
    model.graph.node[0].CopyFrom(helper.make_node("Shape", ["q"], ["qw"], name="from-1", start=1))
    with pytest.raises(TranslationError) as caught:
        translate(model, 14)
    assert "from-1 (Shape)" in caught.value.refused


def test_nodes_in_bodies_are_brought_over(models: Path) -> None:
    """Axes are attributes of Squeeze before opset 13, and the body reads values around it."""
    source = graphs.parse(real(models, "silero_vad_half.onnx"))
    model = copy(source)
    done = translate(model, 13)
    assert any("Reshape" in label for label in done.rewritten)
    inputs = {
        "input": np.random.default_rng(0).uniform(-1, 1, (2, 576)).astype(np.float32),
        "state": np.zeros((2, 2, 128), np.float32),
    }
    same(run(source, inputs), run(model, inputs))


@pytest.mark.parametrize("target", [17, 21])
@pytest.mark.parametrize(
    "file",
    [
        "ch_PP-OCRv4_rec_infer.onnx",
        "ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "silero_vad_16k_sequence.onnx",
        "swift_f0/model.onnx",
    ],
)
def test_real_models_upwards(models: Path, file: str, target: int) -> None:
    source = graphs.parse(real(models, file))
    model = copy(source)
    translate(model, target)
    model.ir_version = max(model.ir_version, 8 if target == 17 else 10)
    assert graphs.default_opset(model) == target
    shapes = {"x": (1, 3, 48, 160), "audio": (1, 8000)}
    generator = np.random.default_rng(0)
    inputs = {
        spec.name: generator.uniform(
            -1,
            1,
            shapes.get(spec.name) or [size if isinstance(size, int) else 2 for size in spec.shape],
        ).astype(np.float32)
        for spec in graphs.inputs_of(source)
    }
    same(run(source, inputs), run(model, inputs), share=1e-4)


def test_functions_and_sparse_weights_survive_the_way_up() -> None:
    """ONNX's version converter drops both from a model; only the node concerned goes through it."""
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("w", TensorProto.FLOAT, [1], [3.0]),
        helper.make_tensor("w_at", INT64, [1], [2]),
        [4],
    )
    function = helper.make_function(
        "own", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 15)],
    )  # fmt: skip
    model = parse_text(
        """(float["b", 4] x) => (float["b", 1] y) {
        [sum] a = Add(x, w) [twice] b = own.Twice(a) [mean] y = ReduceMean <axes = [1]> (b) }""",
        opset=15,
        domains=[("own", 1)],
    )
    model.graph.sparse_initializer.append(sparse)
    model.functions.append(function)
    want = run(model, feeds(model))
    done = translate(model, 18)
    assert done.converted == ["mean (ReduceMean)"]
    assert (len(model.functions), len(model.graph.sparse_initializer)) == (1, 1)
    same(want, run(model, feeds(model)))


def test_newer_operators_inside_functions_are_brought_down() -> None:
    """Exporters put layers into functions; inside, no value has a type, so they are inlined."""
    body = [helper.make_node("Gelu", ["a"], ["b"]), helper.make_node("Add", ["b", "a"], ["c"])]
    function = helper.make_function(
        "own", "Layer", ["a"], ["c"], body, [helper.make_opsetid("", 20)]
    )
    model = parse_text(
        """(float["b", 4] x) => (float["b", 4] y) {
        [first] h = own.Layer(x) [second] y = own.Layer(h) }""",
        opset=20,
        domains=[("own", 1)],
    )
    model.functions.append(function)
    want = run(model, feeds(model))
    translate(model, 17)
    assert not {"Gelu", "Layer"} & set(operators(model))
    same(want, run(model, feeds(model)))


def test_external_weights_are_not_touched() -> None:
    model = attention(24)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="nowhere.bin")
    before = tensor.SerializeToString()
    translate(model, 18)
    assert model.graph.initializer[0].SerializeToString() == before


def test_expansion_in_the_same_opset_folds_constants() -> None:
    """OpenVINO refuses axes that are computed, although they follow from the rank."""
    model = one("RMSNormalization", 23, weight("s", 3), ir_version=11)
    want = run(model, feeds(model))
    assert expand(model, ["RMSNormalization"]).expanded == {
        "node (RMSNormalization)": "RMSNormalization"
    }
    assert graphs.default_opset(model) == 23
    assert not {"Range", "Size", "Shape"} & set(operators(model))
    same(want, run(model, feeds(model)))


def test_a_body_without_types_is_refused_with_its_node() -> None:
    model = one("LayerNormalization", 17, weight("s", 3))
    model.graph.node[0].input[0] = "unknown"
    mystery = helper.make_node("Mystery", ["x"], ["unknown"], domain="com.example")
    model.graph.node.insert(0, mystery)
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    with pytest.raises(TranslationError, match="ONNX has no body of LayerNorm"):
        expand(model, ["LayerNormalization"])
