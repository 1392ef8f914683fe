"""Who makes and who reads every value, as onnx_ir has it: real models, and drawn ones of many bodies."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from enginewright_runtime.graph.raw.graphs import parse, replace_nodes
from enginewright_runtime.graph.scoped.scopes import Node, Scope
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto

from tests.support.effort import examples
from tests.support.nested_models import draw_nested

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
FEW = settings(max_examples=examples(40), deadline=None)
# of a graph: who makes each value, who reads it with which input, and the same of its nodes' bodies
Described = dict[str, Any]


def ours(scope: Scope, path: str = "") -> Described:
    """Return what a scope says; nodes are called by where they are."""
    places = _places(scope, path)
    values = {}
    for value in scope.own():
        readers = [
            (places[reader], index)
            for reader in value.readers
            if isinstance(reader, Node)
            for index, name in enumerate(reader.proto.input)
            if name == value.name
        ]
        if scope in value.readers:
            readers.append((path, -1))
        if readers or value.producer is not None:
            maker = None if value.producer is None else places[value.producer]
            values[value.name] = (maker, sorted(readers))
    inner = [
        ours(body, f"{path}/{index}.{number}")
        for index, node in enumerate(scope.nodes)
        for number, body in enumerate(node.bodies)
    ]
    return {"values": values, "bodies": inner}


def _places(scope: Scope, path: str) -> dict[Node, str]:
    names = {node: f"{path}/{index}" for index, node in enumerate(scope.nodes)}
    for index, node in enumerate(scope.nodes):
        for number, body in enumerate(node.bodies):
            names |= _places(body, f"{path}/{index}.{number}")
    return names


def graphs_of(node: ir.Node) -> list[ir.Graph]:
    return [
        attribute.as_graph()
        for attribute in node.attributes.values()
        if attribute.type == ir.AttributeType.GRAPH
    ]


def theirs(graph: ir.Graph | ir.Function, path: str = "") -> Described:
    """Return what onnx_ir says of a graph, in the same form."""
    places = dict(_their_places(graph, path))
    given = [*graph.inputs]
    if isinstance(graph, ir.Graph):
        given += [
            initializer for initializer in graph.initializers.values() if initializer not in given
        ]
    values = {}
    for value in (*given, *(made for node in graph for made in node.outputs)):
        readers = [(places[use.node], use.idx) for use in value.uses()]
        if any(value is output for output in graph.outputs):
            readers.append((path, -1))
        maker = value.producer()
        if value.name and (readers or maker is not None):
            values[value.name] = (None if maker is None else places[maker], sorted(readers))
    inner = [
        theirs(body, f"{path}/{index}.{number}")
        for index, node in enumerate(graph)
        for number, body in enumerate(graphs_of(node))
    ]
    return {"values": values, "bodies": inner}


def _their_places(graph: ir.Graph | ir.Function, path: str) -> Iterator[tuple[ir.Node, str]]:
    for index, node in enumerate(graph):
        yield node, f"{path}/{index}"
        for number, body in enumerate(graphs_of(node)):
            yield from _their_places(body, f"{path}/{index}.{number}")


def agree(model: ModelProto) -> ir.Model:
    """Hold a model's values against onnx_ir's, those of functions too."""
    other = ir.serde.deserialize_model(model)
    assert ours(Scope(model.graph)) == theirs(other.graph)
    functions = [ours(Scope(function)) for function in model.functions]
    assert functions == [theirs(function) for function in other.functions.values()]
    return other


def is_ordered(graph: ir.Graph) -> bool:
    """Tell whether every node comes after the makers of what it and its bodies read."""
    done: set[ir.Node] = set()
    for node in graph:
        inside = {inner for body in graphs_of(node) for inner in body.all_nodes()}
        reads = [value for item in (node, *inside) for value in item.inputs if value is not None]
        makers = {value.producer() for value in reads} - {None} - inside
        if any(maker.graph is graph and maker not in done for maker in makers if maker):
            return False
        if not all(is_ordered(body) for body in graphs_of(node)):
            return False
        done.add(node)
    return True


def test_real_models(models: Path) -> None:
    paths = [*sorted(models.rglob("*.onnx")), *sorted(LIGHT.glob("light_*.onnx"))]
    assert len(paths) > 15
    for path in paths:
        agree(parse(path))


@FEW
@given(draw_nested(hides=True))
def test_drawn_models(model: ModelProto) -> None:
    assert is_ordered(agree(model).graph)


@FEW
@given(draw_nested(), st.data())
def test_sorted_nodes_are_in_order(model: ModelProto, data: st.DataObject) -> None:
    main = Scope(model.graph)
    for scope in (main, *main.bodies()):
        replace_nodes(scope.graph, data.draw(st.permutations([*scope.graph.node])))
    Scope(model.graph).sort()
    assert is_ordered(agree(model).graph)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_a_circle_is_one_for_both(order: tuple[str, str]) -> None:
    first, second = order
    made = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 17]> g (float[1] x) => (float[1] y) {{'
        f"{first} = Neg({second}) {second} = Neg({first}) y = Add(a, x) }}"
    )
    assert Scope(made.graph).order() is None
    with pytest.raises(ValueError, match="cycle"):
        agree(made).graph.sort()
