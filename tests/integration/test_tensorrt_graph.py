"""Cutting models apart and putting them together: nothing is lost, and ONNX's checker agrees."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from enginewright_runtime.graph.raw.graphs import outputs_of
from enginewright_runtime.graph.scoped import parts as graph
from enginewright_runtime.graph.scoped.parts import Part, TensorProfile, TensorType
from enginewright_runtime.graph.scoped.scopes import Scope
from enginewright_runtime.tensorrt import context
from enginewright_runtime.tensorrt.flavor import FLAVORS
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.support.broken_models import parse_text, value
from tests.support.engines import build_mixed, weights
from tests.support.optional import present

FLOAT = TensorProto.FLOAT
RTX = FLAVORS["tensorrt-rtx"]


def types(model: ModelProto) -> dict[str, TensorType]:
    """Return float types of two dimensions for all that nodes make and take."""
    names = {name for node in model.graph.node for name in (*node.input, *node.output)}
    return {name: TensorType(FLOAT, ("n", 4)) for name in names}


def chain(*operators: str) -> ModelProto:
    """Return x to y through operators of one input."""
    names = ["x", *(f"t{index}" for index in range(1, len(operators))), "y"]
    nodes = " ".join(
        f"[n{index}] {names[index + 1]} = {operator}({names[index]})"
        for index, operator in enumerate(operators)
    )
    return parse_text(f'(float["n", 4] x) => (float["n", 4] y) {{ {nodes} }}')


def test_a_part_runs_as_the_whole_does() -> None:
    model = chain("Relu", "Exp", "Neg", "Abs")
    part = present(graph.Cutter(model, types(model)).part([1, 2]))
    assert (part.inputs, part.outputs, part.origins) == (("t1",), ("t3",), (1, 2))
    onnx.checker.check_model(part.model, full_check=True)
    session = ort.InferenceSession(part.model.SerializeToString())
    given = np.ones((2, 4), np.float32)
    assert np.allclose(session.run(None, {"t1": given})[0], -np.exp(given))


def test_constants_go_wherever_they_are_used() -> None:
    model = parse_text(
        """(float["n", 4] x) => (float["n", 4] y) {
        [c] c = Constant <value = float[4] {1, 2, 3, 4}> ()
        [add] a = Add(x, c) [mul] m = Mul(a, c) [sub] y = Sub(m, w) }""",
        weights("w", 4),
    )
    assert graph.computing(model, range(4)) == [1, 2, 3]
    part = present(graph.Cutter(model, types(model)).part([1]))
    assert (part.inputs, part.outputs) == (("x",), ("a",))
    assert [node.op_type for node in part.model.graph.node] == ["Constant", "Add"]
    assert [part.origin(index) for index in range(3)] == [0, 1, None]
    assert not part.model.graph.initializer
    made = present(compose_parts(model, [part]))
    assert [node.op_type for node in made.graph.node] == ["EPContext", "Constant", "Mul", "Sub"]
    assert [tensor.name for tensor in made.graph.initializer] == ["w"]


def test_captured_values_are_inputs_and_stay_outputs() -> None:
    body = '() => (float["n", 4] b) { [inner] b = Add(outer, x) }'
    model = parse_text(
        f"""(float["n", 4] x, bool flag) => (float["n", 4] y) {{ [exp] outer = Exp(x)
        [if] y = If (flag) <then_branch = body {body}, else_branch = body {body}> }}"""
    )
    read = Scope(model.graph).nodes[1].consumes()
    assert {item.name for item in read} == {"flag", "outer", "x"}
    assert graph.labels(model.graph.node[1]) == ["if (If)", "inner (Add)", "inner (Add)"]
    first = graph.Cutter(model, types(model)).part([0])
    second = graph.Cutter(model, types(model) | {"flag": TensorType(TensorProto.BOOL, ())}).part(
        [1]
    )
    assert first is not None
    assert second is not None
    assert first.outputs == ("outer",)
    assert set(second.inputs) == {"flag", "outer", "x"}


def test_parts_that_cannot_be_extracted() -> None:
    model = chain("Relu", "Exp")
    kinds = types(model)
    assert graph.Cutter(model, kinds | {"t1": kinds["x"]}).part([0]) is not None
    del kinds["t1"]
    assert graph.Cutter(model, kinds).part([0]) is None, "a sequence, say, has no tensor type"
    alone = parse_text("() => (float[2] y) { [r] y = RandomNormal <shape = [2]> () }")
    assert graph.Cutter(alone, types(alone)).part([0]) is None, "no inputs"


def compose_parts(model: ModelProto, parts: list[Part]) -> ModelProto | None:
    contexts = [
        context.Context(
            f"part-{index}", f"part-{index}.engine", part.origins, part.inputs, part.outputs
        )
        for index, part in enumerate(parts)
    ]
    nodes = [context.node(item, RTX, "1.7.1.116", "8.9") for item in contexts]
    return context.compose(model, contexts, nodes, types(model))


def test_parts_that_need_each_other_are_no_model() -> None:
    model = parse_text(
        """(float["n", 4] x) => (float["n", 4] z) {
        [a1] a1 = Relu(x) [b1] b1 = Exp(x) [a2] a2 = Add(b1, x)
        [b2] y = Add(a1, a2) [out] z = Neg(y) }"""
    )
    crossed = [graph.Cutter(model, types(model)).part(row) for row in ([0, 2], [1, 3])]
    assert compose_parts(model, [part for part in crossed if part]) is None
    straight = [graph.Cutter(model, types(model)).part(row) for row in ([0, 1, 2], [3])]
    made = present(compose_parts(model, [part for part in straight if part]))
    assert [node.name for node in made.graph.node] == ["part-0", "part-1", "out"]


def test_the_wrapper_has_the_models_face() -> None:
    model = build_mixed()
    model.metadata_props.add(key="author", value="the author")
    whole = context.whole(model, "model", "model.engine")
    made = present(
        context.compose(model, [whole], [context.node(whole, RTX, "1.7.1.116", "8.9")], {})
    )
    onnx.checker.check_model(made, full_check=True)
    assert (made.graph.input, made.graph.output) == (model.graph.input, model.graph.output)
    assert (made.ir_version, made.metadata_props) == (model.ir_version, model.metadata_props)
    assert not made.graph.initializer
    attributes = {
        item.name: helper.get_attribute_value(item) for item in made.graph.node[0].attribute
    }
    assert attributes == {
        "main_context": 1,
        "embed_mode": 0,
        "ep_cache_context": b"model.engine",
        "ep_sdk_version": b"1.7.1.116",
        "hardware_architecture": b"89",
        "onnx_model_filename": b"model.onnx",
        "partition_name": b"model",
        "source": b"NvTensorRTRTXExecutionProvider",
    }


def test_inputs_that_are_weights_are_no_inputs_of_the_wrapper() -> None:
    """Before IR version 4 every weight was among the inputs."""
    model = build_mixed()
    model.graph.input.append(value("w1", 8, 3, 3, 3))
    whole = context.whole(model, "model", "model.engine")
    assert whole.inputs == ("x",)
    made = present(context.compose(model, [whole], [context.node(whole, RTX, "1", "8.9")], {}))
    assert [item.name for item in made.graph.input] == ["x"]


def test_remaining_weights_come_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    held = [weights("w1", 64, 64), weights("w2", 64, 64)]
    expected = numpy_helper.to_array(held[1])
    text = '(float["n", 64] x) => (float["n", 64] y) { [one] h = MatMul(x, w1) [two] y = MatMul(h, w2) }'
    model = parse_text(text, *held)
    onnx.save_model(
        model, source / "model.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    light = onnx.load(source / "model.onnx", load_external_data=False)
    part = present(graph.Cutter(light, types(light)).part([0]))
    assert [tensor.name for tensor in part.model.graph.initializer] == ["w1"]
    for limit, names in ((1 << 30, ["model.onnx"]), (1 << 10, ["model.onnx", "weights.bin"])):
        made = present(compose_parts(light, [part]))
        monkeypatch.setattr(context, "LARGEST_INSIDE", limit)
        target.mkdir(exist_ok=True)
        assert context.save(made, source, target) == names
        onnx.checker.check_model(str(target / "model.onnx"))
        loaded = onnx.load(target / "model.onnx")
        kept = numpy_helper.to_array(loaded.graph.initializer[0])
        assert np.array_equal(kept, expected)
        assert outputs_of(loaded) == outputs_of(model)


def test_names_that_stand_for_several_sizes() -> None:
    """What some exporters write for every open dimension; other names mean equal sizes."""
    model = parse_text(
        """(float["?", "?", "s"] x, float["n", "s"] z) => (float[?, ?] y) { [add] y = Add(x, z) }"""
    )
    profiles = [
        TensorProfile("x", (1, 4, 2), (1, 4, 2), (8, 4, 9)),
        TensorProfile("z", (1, 2), (1, 2), (8, 9)),
    ]
    assert graph.contradicts(model, profiles) == {"?"}
    graph.forget(model, {"?"})
    shape = model.graph.input[0].type.tensor_type.shape
    assert [item.dim_param for item in shape.dim] == ["", "", "s"]


def test_outputs_that_no_node_computes_are_no_outputs_of_the_engine(tmp_path: Path) -> None:
    model = parse_text(
        """(float["n", 4] x) => (float["n", 4] y, float["n", 4] x, float[4] w, float[4] c) {
        [c] c = Constant <value = float[4] {1, 2, 3, 4}> () [relu] y = Relu(x) }""",
        weights("w", 4),
    )
    alone = context.without_passed(model)
    assert [item.name for item in alone.graph.output] == ["y"]
    assert context.without_passed(alone) is alone
    whole = context.whole(model, "model", "model.engine")
    assert (whole.inputs, whole.outputs) == (("x",), ("y",))
    made = present(context.compose(model, [whole], [context.node(whole, RTX, "1", "8.9")], {}))
    assert [item.op_type for item in made.graph.node] == ["EPContext"]
    assert made.graph.output == model.graph.output
    assert {tensor.name for tensor in made.graph.initializer} == {"w", "c"}
    context.save(made, tmp_path, tmp_path)
    onnx.checker.check_model(tmp_path / "model.onnx", full_check=True)
