"""Values as the scoped graph knows them: every edit keeps the model what it is, and the use-def true."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import onnx
import pytest
from enginewright_runtime.graph.raw.graphs import copy_of, label, replace_nodes
from enginewright_runtime.graph.scoped.branches import take_constant_branches
from enginewright_runtime.graph.scoped.element_types import types_of
from enginewright_runtime.graph.scoped.scopes import (
    Names,
    Node,
    Scope,
    Value,
    rename,
    rename_apart,
    separate_names,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, helper, numpy_helper

from tests.support.effort import examples
from tests.support.nested_models import answers, draw_nested, is_valid

T = TypeVar("T")
FEW = settings(max_examples=examples(20))


def describe(scope: Scope) -> Any:
    """Return what a scope knows, as data that another reading of it can be compared with."""
    return {
        "values": {
            value.name: (
                None if value.producer is None else label(value.producer.proto),
                sorted(
                    label(reader.proto) if isinstance(reader, Node) else "output"
                    for reader in value.readers
                ),
            )
            for value in scope.own()
            if value.readers or value.producer is not None
        },
        "nodes": [
            (label(node.proto), [describe(body) for body in node.bodies]) for node in scope.nodes
        ],
    }


def everywhere(main: Scope) -> list[Scope]:
    return [main, *main.bodies()]


class Edits:
    """Edits that leave the outputs as they are."""

    def __init__(self, model: ModelProto, data: st.DataObject) -> None:
        self.main = Scope(model.graph)
        self._names = Names(model)
        self._data = data

    def _one(self, choices: list[T]) -> T:
        return self._data.draw(st.sampled_from(choices))

    def _node(self) -> Node:
        return self._one([node for scope in everywhere(self.main) for node in scope.nodes])

    def _value(self) -> Value:
        inner = [value for scope in everywhere(self.main) for value in scope.own()]
        outside = {"x", *(value.name for value in self.main.graph.output)}
        return self._one([item for item in inner if item.name not in outside])

    def rename(self) -> None:
        value = self._value()
        rename({value: self._names.fresh(f"{value.name}/renamed")})

    def read_a_copy(self) -> None:
        node = self._node()
        index = self._one([index for index, name in enumerate(node.proto.input) if name])
        fresh = self._names.fresh("before")
        node.insert_before(helper.make_node("Identity", [node.proto.input[index]], [fresh]))
        node.set_input(index, fresh)

    def make_a_copy(self) -> None:
        node = self._node()
        fresh, old = self._names.fresh("raw"), node.proto.output[0]
        node.set_output(0, fresh)
        node.insert_after(helper.make_node("Identity", [fresh], [old]))
        node.scope.sort()  # behind an earlier copy, which now reads it

    def replace(self) -> None:
        node = self._node()
        dead = helper.make_node("Neg", ["x"], [self._names.fresh("dead")])
        node.replace([dead, node.proto])

    def give_a_body_a_copy(self) -> None:
        captured = [
            (body, body.owner, value)
            for body in self.main.bodies()
            for value in body.find_captures()
            if body.owner is not None and value in body.owner.consumes()
        ]
        if not captured:
            return
        body, owner, value = self._one(captured)
        fresh = self._names.fresh("captured")
        owner.insert_before(helper.make_node("Identity", [value.name], [fresh]))
        value.replace_uses(fresh, within=body)
        assert value not in body.find_captures()

    def remove_unused(self) -> None:
        for scope in everywhere(self.main):
            scope.remove_unused()
            assert all(node.is_read() for node in scope.nodes)


EDITS: list[Callable[[Edits], None]] = [
    Edits.rename,
    Edits.read_a_copy,
    Edits.make_a_copy,
    Edits.replace,
    Edits.give_a_body_a_copy,
    Edits.remove_unused,
]


@FEW
@given(draw_nested(), st.data())
def test_edits_keep_the_model(model: ModelProto, data: st.DataObject) -> None:
    assert is_valid(model)
    expected = answers(model)
    edits = Edits(model, data)
    for edit in data.draw(st.lists(st.sampled_from(EDITS), min_size=1, max_size=6)):
        edit(edits)
    for scope in everywhere(edits.main):
        scope.write()
    assert is_valid(model)
    np.testing.assert_array_equal(answers(model), expected)
    assert describe(edits.main) == describe(Scope(model.graph))


@FEW
@given(draw_nested(hides=True))
def test_reading_keeps_the_bytes(model: ModelProto) -> None:
    before = model.SerializeToString()
    main = Scope(model.graph)
    main.sort()
    for scope in everywhere(main):
        scope.write()
    assert model.SerializeToString() == before


@FEW
@given(draw_nested(hides=True), st.data())
def test_nodes_are_sorted_in_every_body(model: ModelProto, data: st.DataObject) -> None:
    # the evaluator takes a value from outside for a hidden weight: each name stands for one value here
    expected = answers(separate_names(model))
    for scope in everywhere(Scope(model.graph)):
        replace_nodes(scope.graph, data.draw(st.permutations([*scope.graph.node])))
    main = Scope(model.graph)
    main.sort()
    np.testing.assert_array_equal(answers(separate_names(model)), expected)
    assert all(scope.order() == list(range(len(scope.nodes))) for scope in everywhere(main))


@FEW
@given(draw_nested())
def test_names_apart_stand_for_one_value_each(model: ModelProto) -> None:
    expected, source = answers(model), copy_of(model)
    renamed = rename_apart(model)
    names = [value.name for scope in everywhere(Scope(model.graph)) for value in scope.own()]
    assert len(names) == len({*names})
    assert renamed == (model != source)
    np.testing.assert_array_equal(answers(model), expected)


def test_a_circle_has_no_order() -> None:
    graph = helper.make_graph(
        [helper.make_node("Neg", ["b"], ["a"]), helper.make_node("Neg", ["a"], ["b"])], "g", [], []
    )
    main = Scope(graph)
    assert main.order() is None
    main.sort()
    assert [node.output[0] for node in graph.node] == ["a", "b"]


@pytest.mark.parametrize("name", ["new", "a"])
def test_a_fresh_name_is_like_the_wanted_one(name: str) -> None:
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["a"], name="a_2")], "g", [], [])
    names = Names(helper.make_model(graph))
    assert names.fresh(name) == {"new": "new", "a": "a_3"}[name]
    assert names.fresh(name) == {"new": "new_2", "a": "a_4"}[name]


def test_outputs_of_a_loop_have_the_types_of_its_body() -> None:
    loop = onnx.parser.parse_graph(
        """g (float[1] x, int64 steps, bool go) => (float[1] y) {
            h, k = Loop (steps, go, x, steps) <body = b (int64 i, bool c, float[1] a, int64 n)
                => (bool again, float[1] b, int64 m) {
                again = Identity (c)
                b = Neg (a)
                m = Identity (n)
            }>
            numbers = Range (k, k, k)
            y = Identity (h)
        }"""
    )
    model = helper.make_model(loop, opset_imports=[helper.make_opsetid("", 17)])
    types = types_of(model)
    assert types["h"] == "tensor(float)"
    assert types["k"] == types["numbers"] == "tensor(int64)"


def branching(branch: str) -> ModelProto:
    """Return a model that always takes a branch, which makes `y` of `x`."""
    graph = onnx.parser.parse_graph(
        f"""g (float[2] x) => (float[2] y) {{
            yes = Constant <value = bool {{1}}> ()
            y = If (yes) <then_branch = t () => (float[2] r) {{ {branch} }},
                          else_branch = e () => (float[2] r) {{ r = Neg (x) }}>
        }}"""
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_a_branch_that_is_taken_brings_its_sparse_weights() -> None:
    model = branching("r = Add (x, s)")
    body = model.graph.node[1].attribute[0].g
    values = numpy_helper.from_array(np.array([3.0], np.float32), "s")
    indices = numpy_helper.from_array(np.array([1], np.int64), "")
    body.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2]))
    assert take_constant_branches(model, {})
    (weight,) = model.graph.sparse_initializer
    (add,) = [item for item in model.graph.node if item.op_type == "Add"]
    assert weight.values.name in add.input


def test_outer_values_are_renamed_in_bodies() -> None:
    model = branching("r = Neg (x)")
    body = model.graph.node[1].attribute[0].g
    annotation = body.quantization_annotation.add(tensor_name="r")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="x")
    main = Scope(model.graph)
    rename({main.values["x"]: "z"})
    assert annotation.quant_parameter_tensor_names[0].value == "z"
    assert model.graph.input[0].name == body.node[0].input[0] == "z"
