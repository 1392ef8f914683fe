"""Values of bodies beside each other have names of their own, and the model stays what it is."""

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from enginewright_runtime.graph.raw.schemas import attribute
from enginewright_runtime.graph.scoped.element_types import format_type, types_of
from enginewright_runtime.graph.scoped.inference import infer
from enginewright_runtime.graph.scoped.scopes import rename_apart, separate_names
from enginewright_runtime.graph.scoped.shape_nodes import shape_nodes
from enginewright_runtime.prepare.convert.translating import translate
from enginewright_runtime.session.operator_signatures import element_types
from onnx import GraphProto, ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tests.support.broken_models import parse_text
from tests.support.optional import present

X = np.array([[1.5, -2.0]], np.float32)


def build_nested() -> ModelProto:
    """Return an If in whose branches and in whose Loop `t`, `out`, `w` and `k` mean other things each."""
    return parse_text(
        """(float[1, 2] x, int64 i, bool c) => (float[1, 2] y) { [if] y = If (c) <
            else_branch = floats () => (float[1, 2] out) <float w = {0.5}, int64 two = {2}> {
                t = Loop (two, , x) <body = turn
                    (int64 n, bool go, float[1, 2] state) => (bool go_on, float[1, 2] k) {
                    t = Relu(state) k = Add(t, w) go_on = Identity(go) }>
                out = Neg(t) },
            then_branch = ints () => (float[1, 2] out) <int64 w = {70000}> {
                t = Add(i, w) k = Cast <to = 1> (t) out = Mul(x, k) }> }"""
    )


def answers(model: ModelProto, condition: bool) -> list[Any]:
    feeds = {"x": X, "i": np.array(1, np.int64), "c": np.array(condition)}
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    defined: Any = ReferenceEvaluator(model).run(None, feeds)
    return [session.run(None, feeds)[0], defined[0]]


def copy_model(model: ModelProto) -> ModelProto:
    changed = ModelProto()
    changed.CopyFrom(model)
    return changed


def test_the_source_model_is_unchanged() -> None:
    source = build_nested()
    onnx.checker.check_model(source, full_check=True)
    changed = copy_model(source)
    assert rename_apart(changed)
    onnx.checker.check_model(changed, full_check=True)
    for condition in (True, False):
        np.testing.assert_array_equal(answers(source, condition), answers(changed, condition))
    assert changed.graph.input == source.graph.input
    assert changed.graph.output == source.graph.output
    assert not rename_apart(changed)


def test_a_model_without_shared_names_is_left_as_it_is() -> None:
    source = build_nested()
    before = source.SerializeToString()
    assert separate_names(source) is not source
    assert source.SerializeToString() == before
    told_apart = separate_names(source)
    assert separate_names(told_apart) is told_apart
    assert rename_apart(copy_model(told_apart)) is False


@pytest.mark.parametrize("types", [types_of, element_types])
def test_every_value_has_its_own_type(types: Any) -> None:
    model = separate_names(build_nested())
    typed = types(model)
    second, first = (item.g.node[0] for item in model.graph.node[0].attribute)
    ints, floats = first.output[0], second.attribute[0].g.node[0].output[0]
    assert (typed[ints], typed[floats]) == ("tensor(int64)", "tensor(float)")
    kinds = {name: kind.tensor_type.elem_type for name, kind in infer(model).items()}
    assert (kinds[ints], kinds[floats]) == (TensorProto.INT64, TensorProto.FLOAT)


def inner_types(model: ModelProto) -> dict[str, str | None]:
    return {name: format_type(kind) for name, kind in infer(model).items()}


READERS = pytest.mark.parametrize("types", [types_of, element_types, inner_types])


def choosing(nodes: str, after: str = "", *, says: tuple[str, int]) -> ModelProto:
    """Return a model of which one branch runs `nodes`, before others, and that says a value's type."""
    model = parse_text(
        f"""(float[1, 2] x, int64 i, bool c) => (float[1, 2] y) {{ y = If (c) <
            then_branch = then () => (float[1, 2] out) {{ {nodes} out = Neg(t) }},
            else_branch = else () => (float[1, 2] out) {{ out = Neg(x) }}> {after} }}"""
    )
    model.graph.value_info.append(helper.make_tensor_value_info(says[0], says[1], []))
    return model


def then(model: ModelProto) -> GraphProto:
    branch = present(attribute(model.graph.node[0], "then_branch"))
    return branch.g


@READERS
def test_a_graph_says_nothing_of_values_that_are_not_its_own(types: Any) -> None:
    model = separate_names(choosing("t = Relu(x)", says=("t", TensorProto.INT64)))
    assert types(model)["t"] == "tensor(float)"


@READERS
def test_a_renamed_value_has_no_type_of_a_body(types: Any) -> None:
    """As shape inference leaves it: of `t` in the branch, of which the other `t` knows nothing."""
    source = choosing(
        """t = Relu(x) deep = If (c) <
            then_branch = one () => (float[1, 2] out) <float[1, 2] t> { out = Neg(t) },
            else_branch = two () => (float[1, 2] out) { out = Neg(t) }>""",
        "t = Neg(i)",
        says=("nothing", TensorProto.INT64),
    )
    assert types(separate_names(source))["t"] == "tensor(int64)"


@READERS
def test_a_new_name_is_none_that_a_type_is_known_for(types: Any) -> None:
    model = separate_names(choosing("t = Relu(x)", "t = Neg(i)", says=("t_2", TensorProto.INT64)))
    (made,) = then(model).node[0].output
    assert types(model)[made] == "tensor(float)"


def test_bodies_are_translated_by_their_own_types_and_constants() -> None:
    """Two axes of one name, in branches beside each other: each is its own attribute before 13."""
    branch = """() => (float[1, 2] out) {
        axis = Constant <value_ints: ints = [%d]> ()
        wide = Unsqueeze(x, axis) out = ReduceSum <keepdims = 0> (wide, axis) }"""
    model = parse_text(
        f"""(float[1, 2] x, bool c) => (float[1, 2] y) {{ y = If (c) <
            else_branch = b {branch % 2}, then_branch = a {branch % 0}> }}"""
    )
    translate(model, 12)
    axes = [
        attribute.ints[0]
        for branch in model.graph.node[0].attribute
        for node in branch.g.node
        for attribute in node.attribute
        if attribute.name == "axes"
    ]
    assert axes == [2, 2, 0, 0]  # else_branch comes first


# fault: Outputs | an If sorted before what its bodies read | nodes are sorted by what bodies
#   capture | at `validate`
def test_bodies_are_ordered_by_captured_values() -> None:
    """The If reads `size` in its bodies alone; ONNX Runtime loads the nodes in any order."""
    branch = "() => (int64 rows) { [rows] rows = Gather(size, zero) }"
    model = parse_text(
        f"""(float[1, 2] x, bool c) => (int64 r) <int64 zero = {{0}}> {{
            [if] r = If (c) <then_branch = then {branch}, else_branch = else {branch}>
            [size] size = Shape(x) }}"""
    )
    ordered = copy_model(model)
    del ordered.graph.node[:]
    ordered.graph.node.extend(reversed(model.graph.node))
    onnx.checker.check_model(ordered, full_check=True)
    ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert set(shape_nodes(model)) == set(shape_nodes(ordered)) == {"size (Shape)", "rows (Gather)"}
