"""Branches that are always taken, and values that follow from sizes."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.scoped.branches import take_constant_branches
from enginewright_runtime.graph.scoped.inference import infer
from enginewright_runtime.graph.scoped.propagation import find_constant_values
from enginewright_runtime.graph.scoped.scopes import Scope
from onnx import ModelProto, TensorProto

from tests.support.broken_models import parse_text, value
from tests.support.converting import copy, feeds, operators, real, run, same, weight

INT64 = TensorProto.INT64
BOOL = TensorProto.BOOL


def conditional(condition: str = "") -> ModelProto:
    """Return x [batch, 4] > Relu > If: what "c" says decides between Exp and a sum with a weight.

    The branches' nodes read the value "a" around them, and have inner names that others have.
    """
    model = parse_text(
        f"""(float["batch", 4] x) => (float["batch", 4] y) {{ [relu] a = Relu(x) {condition}
        [if] out = If (c) <
            else_branch = else () => (float inner) {{ ["same-name"] inner = Add(a, w) }},
            then_branch = then () => (float inner) {{ ["same-name"] inner = Exp(a) }}>
        [last] y = Identity(out) }}""",
        ir_version=10,
    )
    model.graph.node[-2].attribute[0].g.initializer.append(weight("w", 4))
    return model


def size_is(index: int, number: int) -> ModelProto:
    """Return a model that asks whether a dimension is `number`, as exporters do."""
    return conditional(
        f"""shape = Shape(a) index = Constant <value_ints: ints = [{index}]> ()
        size = Gather(shape, index) one = Constant <value_ints: ints = [{number}]> ()
        equal = Equal(size, one) c = Squeeze(equal)"""
    )


@pytest.mark.parametrize(("size", "taken"), [(4, "Exp"), (5, "Add")])
def test_a_condition_on_a_known_size_beside_an_open_one(size: int, taken: str) -> None:
    source = size_is(-1, size)
    model = copy(source)
    assert take_constant_branches(model, {}) == ["if (If)"]
    # the condition's nodes are gone with it
    assert operators(model) == ["Relu", taken, "Identity"]
    onnx.checker.check_model(model, full_check=True)
    same(run(source, feeds(source)), run(model, feeds(model)))


def test_a_condition_on_an_open_size_is_left_unless_the_size_is_the_same_for_all() -> None:
    model = size_is(0, 2)
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


def test_known_values_mark_unknown_elements() -> None:
    model = parse_text(
        """(float["batch", 4] x) => (float["batch", 4] y) {
        shape = Shape(x) rank = Size(shape)
        first = Constant <value_ints: ints = [0]> () second = Constant <value_ints: ints = [1]> ()
        batch = Gather(shape, first) four = Gather(shape, second)
        both = Concat <axis = 0> (four, batch) four_again = Slice(both, first, second)
        sixteen = Mul(four_again, four) elements = Mul(batch, four)
        random = RandomNormalLike <dtype = 1> (four) y = Identity(x) }"""
    )
    constants = find_constant_values(model.graph, infer(model), 17)
    assert {name: array.tolist() for name, array in constants.items()} == {
        "first": [0],
        "second": [1],
        "rank": 2,
        "four": [4],
        "four_again": [4],
        "sixteen": [16],
    }


def test_unneeded_nodes_are_removed_and_inputs_stay() -> None:
    model = size_is(-1, 4)
    model.graph.initializer.extend([weight("unused", 3), weight("x_default", 1)])
    model.graph.input.append(value("unread", 1))
    model.graph.output.pop()
    model.graph.output.append(value("a", "batch", 4))
    Scope(model.graph).remove_unused()
    assert operators(model) == ["Relu"]
    assert [item.name for item in model.graph.input] == ["x", "unread"]
    assert not model.graph.initializer
