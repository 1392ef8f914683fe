"""Values of bodies beside each other have names of their own, and the model stays what it is."""

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from enginewright_runtime.graph.raw.schemas import attribute
from enginewright_runtime.graph.scoped.element_types import declared, types_of
from enginewright_runtime.graph.scoped.inference import infer
from enginewright_runtime.graph.scoped.scopes import apart, rename_apart
from enginewright_runtime.graph.scoped.shape_nodes import shape_nodes
from enginewright_runtime.prepare.convert.translating import translate
from enginewright_runtime.prepare.quantize.signatures import element_types
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.support.broken_models import build, value

INT, BOOL = TensorProto.INT64, TensorProto.BOOL
X = np.array([[1.5, -2.0]], np.float32)


def body(name: str, nodes: list[NodeProto], *weights: TensorProto, **given: int) -> GraphProto:
    """Return a body of one float output `out`."""
    inputs = [helper.make_tensor_value_info(each, kind, []) for each, kind in given.items()]
    return helper.make_graph(nodes, name, inputs, [value("out", 1, 2)], list(weights))


def nested() -> ModelProto:
    """Return an If in whose branches and in whose Loop `t`, `out`, `w` and `k` mean other things each."""
    ints = [
        helper.make_node("Add", ["i", "w"], ["t"]),
        helper.make_node("Cast", ["t"], ["k"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "k"], ["out"]),
    ]
    turn = helper.make_graph(
        [
            helper.make_node("Relu", ["state"], ["t"]),
            helper.make_node("Add", ["t", "w"], ["k"]),
            helper.make_node("Identity", ["go"], ["go_on"]),
        ],
        "turn",
        [
            helper.make_tensor_value_info("n", INT, []),
            helper.make_tensor_value_info("go", BOOL, []),
            value("state", 1, 2),
        ],
        [helper.make_tensor_value_info("go_on", BOOL, []), value("k", 1, 2)],
    )
    floats = [
        helper.make_node("Loop", ["two", "", "x"], ["t"], body=turn),
        helper.make_node("Neg", ["t"], ["out"]),
    ]
    branches = {
        "then_branch": body("ints", ints, numpy_helper.from_array(np.array(70000, np.int64), "w")),
        "else_branch": body(
            "floats",
            floats,
            numpy_helper.from_array(np.array(0.5, np.float32), "w"),
            numpy_helper.from_array(np.array(2, np.int64), "two"),
        ),
    }
    return build(
        [helper.make_node("If", ["c"], ["y"], name="if", **branches)],
        [value("x", 1, 2), value("i", kind=INT), value("c", kind=BOOL)],
        [value("y", 1, 2)],
    )


def answers(model: ModelProto, condition: bool) -> list[Any]:
    feeds = {"x": X, "i": np.array(1, np.int64), "c": np.array(condition)}
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    defined: Any = ReferenceEvaluator(model).run(None, feeds)
    return [session.run(None, feeds)[0], defined[0]]


def copied(model: ModelProto) -> ModelProto:
    changed = ModelProto()
    changed.CopyFrom(model)
    return changed


def test_the_model_stays_what_it_is() -> None:
    source = nested()
    onnx.checker.check_model(source, full_check=True)
    changed = copied(source)
    assert rename_apart(changed)
    onnx.checker.check_model(changed, full_check=True)
    for condition in (True, False):
        np.testing.assert_array_equal(answers(source, condition), answers(changed, condition))
    assert changed.graph.input == source.graph.input
    assert changed.graph.output == source.graph.output
    assert not rename_apart(changed)


def test_a_model_without_shared_names_is_left_as_it_is() -> None:
    source = nested()
    before = source.SerializeToString()
    assert apart(source) is not source
    assert source.SerializeToString() == before
    told_apart = apart(source)
    assert apart(told_apart) is told_apart
    assert rename_apart(copied(told_apart)) is False


@pytest.mark.parametrize("types", [types_of, element_types])
def test_every_value_has_its_own_type(types: Any) -> None:
    model = apart(nested())
    found = types(model)
    second, first = (each.g.node[0] for each in model.graph.node[0].attribute)
    ints, floats = first.output[0], second.attribute[0].g.node[0].output[0]
    assert (found[ints], found[floats]) == ("tensor(int64)", "tensor(float)")
    kinds = {name: kind.tensor_type.elem_type for name, kind in infer(model).items()}
    assert (kinds[ints], kinds[floats]) == (TensorProto.INT64, TensorProto.FLOAT)


def inner_types(model: ModelProto) -> dict[str, str | None]:
    return {name: declared(kind) for name, kind in infer(model).items()}


READERS = pytest.mark.parametrize("types", [types_of, element_types, inner_types])


def choosing(node: NodeProto, *after: NodeProto, says: tuple[str, int]) -> ModelProto:
    """Return a model of which one branch runs `node`, before others, and that says a value's type."""
    branches = {
        "then_branch": body("then", [node, helper.make_node("Neg", ["t"], ["out"])]),
        "else_branch": body("else", [helper.make_node("Neg", ["x"], ["out"])]),
    }
    model = build(
        [helper.make_node("If", ["c"], ["y"], **branches), *after],
        [value("x", 1, 2), value("i", kind=INT), value("c", kind=BOOL)],
        [value("y", 1, 2)],
    )
    model.graph.value_info.append(helper.make_tensor_value_info(says[0], says[1], []))
    return model


def then(model: ModelProto) -> GraphProto:
    found = attribute(model.graph.node[0], "then_branch")
    assert found is not None
    return found.g


@READERS
def test_a_graph_says_nothing_of_values_that_are_not_its_own(types: Any) -> None:
    model = apart(choosing(helper.make_node("Relu", ["x"], ["t"]), says=("t", INT)))
    assert types(model)["t"] == "tensor(float)"


@READERS
def test_what_a_body_says_of_a_value_around_it_ends_when_that_is_renamed(types: Any) -> None:
    """As shape inference leaves it: of `t` in the branch, of which the other `t` knows nothing."""
    inside = {
        name: body(name, [helper.make_node("Neg", ["t"], ["out"])]) for name in ("one", "two")
    }
    inside["one"].value_info.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, [1, 2]))
    relu = helper.make_node("Relu", ["x"], ["t"])
    source = choosing(relu, helper.make_node("Neg", ["i"], ["t"]), says=("nothing", INT))
    branch = then(source)
    nested_if = helper.make_node(
        "If", ["c"], ["deep"], then_branch=inside["one"], else_branch=inside["two"]
    )
    branch.node.insert(1, nested_if)
    assert types(apart(source))["t"] == "tensor(int64)"


@READERS
def test_a_new_name_is_none_that_a_type_is_known_for(types: Any) -> None:
    after = helper.make_node("Neg", ["i"], ["t"])
    model = apart(choosing(helper.make_node("Relu", ["x"], ["t"]), after, says=("t_2", INT)))
    (made,) = then(model).node[0].output
    assert types(model)[made] == "tensor(float)"


def test_bodies_are_translated_by_their_own_types_and_constants() -> None:
    """Two axes of one name, in branches beside each other: each is its own attribute before 13."""

    def squeezed(name: str, axis: int) -> GraphProto:
        return helper.make_graph(
            [
                helper.make_node("Constant", [], ["axis"], value_ints=[axis]),
                helper.make_node("Unsqueeze", ["x", "axis"], ["wide"]),
                helper.make_node("ReduceSum", ["wide", "axis"], ["out"], keepdims=0),
            ],
            name,
            [],
            [value("out", 1, 2)],
        )

    model = build(
        [
            helper.make_node(
                "If", ["c"], ["y"], then_branch=squeezed("a", 0), else_branch=squeezed("b", 2)
            )
        ],
        [value("x", 1, 2), value("c", kind=BOOL)],
        [value("y", 1, 2)],
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
def test_bodies_are_ordered_by_what_they_capture() -> None:
    """The If reads `size` in its bodies alone; ONNX Runtime loads the nodes in any order."""
    branch = helper.make_graph(
        [helper.make_node("Gather", ["size", "zero"], ["rows"], name="rows")],
        "branch",
        [],
        [helper.make_tensor_value_info("rows", INT, [])],
    )
    nodes = [
        helper.make_node("If", ["c"], ["r"], name="if", then_branch=branch, else_branch=branch),
        helper.make_node("Shape", ["x"], ["size"], name="size"),
    ]
    model = build(
        nodes,
        [value("x", 1, 2), value("c", kind=BOOL)],
        [helper.make_tensor_value_info("r", INT, [])],
        [numpy_helper.from_array(np.array(0, np.int64), "zero")],
    )
    ordered = copied(model)
    del ordered.graph.node[:]
    ordered.graph.node.extend(reversed(nodes))
    onnx.checker.check_model(ordered, full_check=True)
    ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert set(shape_nodes(model)) == set(shape_nodes(ordered)) == {"size (Shape)", "rows (Gather)"}
