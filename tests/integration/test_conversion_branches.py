"""Branches that are always taken, and values that follow from sizes."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.scoped.branches import take_constant_branches
from enginewright_runtime.graph.scoped.inference import infer
from enginewright_runtime.graph.scoped.propagation import known_values
from enginewright_runtime.graph.scoped.scopes import Scope
from onnx import GraphProto, ModelProto, TensorProto, helper

from tests.support.broken_models import build, value
from tests.support.converting import copy, feeds, operators, real, run, same, weight

INT64 = TensorProto.INT64
BOOL = TensorProto.BOOL


def branch(name: str, operator: str, *weights: TensorProto) -> GraphProto:
    """Return a body of one node over the value "a" around it, with inner names that others have."""
    inputs = ["a", *(tensor.name for tensor in weights)]
    node = helper.make_node(operator, inputs, ["inner"], name="same-name")
    return helper.make_graph([node], name, [], [value("inner")], list(weights))


def conditional(*condition: onnx.NodeProto) -> ModelProto:
    """Return x [batch, 4] > Relu > If: what "c" says decides between Exp and a sum with a weight."""
    then, other = branch("then", "Exp"), branch("else", "Add", weight("w", 4))
    return build(
        [
            helper.make_node("Relu", ["x"], ["a"], name="relu"),
            *condition,
            helper.make_node("If", ["c"], ["out"], name="if", then_branch=then, else_branch=other),
            helper.make_node("Identity", ["out"], ["y"], name="last"),
        ],
        [value("x", "batch", 4)],
        [value("y", "batch", 4)],
        ir_version=10,
    )


def constant(name: str, number: int) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value_ints=[number])


def last_size_is(number: int) -> ModelProto:
    """Return a model that asks whether the last dimension is `number`, as exporters do."""
    return conditional(
        helper.make_node("Shape", ["a"], ["shape"]),
        constant("index", -1),
        helper.make_node("Gather", ["shape", "index"], ["size"]),
        constant("one", number),
        helper.make_node("Equal", ["size", "one"], ["equal"]),
        helper.make_node("Squeeze", ["equal"], ["c"]),
    )


@pytest.mark.parametrize(("size", "taken"), [(4, "Exp"), (5, "Add")])
def test_a_condition_on_a_known_size_beside_an_open_one(size: int, taken: str) -> None:
    source = last_size_is(size)
    model = copy(source)
    assert take_constant_branches(model, {}) == ["if (If)"]
    # the condition's nodes are gone with it
    assert operators(model) == ["Relu", taken, "Identity"]
    onnx.checker.check_model(model, full_check=True)
    same(run(source, feeds(source)), run(model, feeds(model)))


def test_a_condition_on_an_open_size_is_left_unless_the_size_is_the_same_for_all() -> None:
    model = conditional(
        helper.make_node("Shape", ["a"], ["shape"]),
        constant("index", 0),
        helper.make_node("Gather", ["shape", "index"], ["size"]),
        constant("one", 2),
        helper.make_node("Equal", ["size", "one"], ["equal"]),
        helper.make_node("Squeeze", ["equal"], ["c"]),
    )
    before = model.SerializeToString()
    assert take_constant_branches(model, {}) == []
    assert model.SerializeToString() == before
    assert take_constant_branches(model, {"x": [2, 4]}) == ["if (If)"]


def test_a_condition_that_a_caller_gives_is_left() -> None:
    model = conditional()
    model.graph.input.append(value("c", kind=BOOL))
    assert take_constant_branches(model, {}) == []
    # a default that a caller may replace is no constant to the server, which cannot replace it
    assert "If" in operators(model)


def test_the_ifs_of_a_real_model_follow_from_one_another(models: Path) -> None:
    """Sizes go through a Pad whose pads are computed, and ranks through the Ifs before."""
    source = graphs.parse(real(models, "silero_vad_half.onnx"))
    model = copy(source)
    taken = take_constant_branches(model, {"input": [None, 576]})
    assert len(taken) == 6
    assert "If" not in operators(model)
    onnx.checker.check_model(model, full_check=True)
    generator = np.random.default_rng(0)
    for batch in (1, 3):
        inputs = {
            "input": generator.uniform(-1, 1, (batch, 576)).astype(np.float32),
            "state": generator.uniform(-1, 1, (2, batch, 128)).astype(np.float32),
        }
        same(run(source, inputs), run(model, inputs), share=0)
    assert [graphs.inputs_of(each) for each in (model,)] == [graphs.inputs_of(source)]
    assert graphs.outputs_of(model) == graphs.outputs_of(source)


def test_branches_that_are_never_taken_are_not_worked_out_with_sizes(models: Path) -> None:
    """Of the 8 kHz branch no sense can be made with a window of 16 kHz, and nothing has to be."""
    source = graphs.parse(real(models, "data/silero_vad.onnx"))
    model = copy(source)
    assert take_constant_branches(model, {"input": [None, 576]})
    inputs = {
        "input": np.random.default_rng(0).uniform(-1, 1, (2, 576)).astype(np.float32),
        "state": np.zeros((2, 2, 128), np.float32),
        "sr": np.array(16000),
    }
    same(run(source, inputs), run(model, inputs), share=0)


def test_known_values_are_exact_about_what_is_not_known() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Size", ["shape"], ["rank"]),
        constant("first", 0),
        constant("second", 1),
        helper.make_node("Gather", ["shape", "first"], ["batch"]),
        helper.make_node("Gather", ["shape", "second"], ["four"]),
        helper.make_node("Concat", ["four", "batch"], ["both"], axis=0),
        helper.make_node("Slice", ["both", "first", "second"], ["four_again"]),
        helper.make_node("Mul", ["four_again", "four"], ["sixteen"]),
        helper.make_node("Mul", ["batch", "four"], ["elements"]),
        helper.make_node("RandomNormalLike", ["four"], ["random"], dtype=1),
        helper.make_node("Identity", ["x"], ["y"]),
    ]
    model = build(nodes, [value("x", "batch", 4)], [value("y", "batch", 4)])
    known = known_values(model.graph, infer(model), 17)
    assert {name: array.tolist() for name, array in known.items()} == {
        "first": [0],
        "second": [1],
        "rank": 2,
        "four": [4],
        "four_again": [4],
        "sixteen": [16],
    }


def test_what_no_output_needs_is_removed_and_inputs_stay() -> None:
    model = last_size_is(4)
    model.graph.initializer.extend([weight("unused", 3), weight("x_default", 1)])
    model.graph.input.append(value("unread", 1))
    model.graph.output.pop()
    model.graph.output.append(value("a", "batch", 4))
    Scope(model.graph).remove_unused()
    assert operators(model) == ["Relu"]
    assert [each.name for each in model.graph.input] == ["x", "unread"]
    assert not model.graph.initializer
