"""Finds what computes the angles of Sin, Cos and Tan out of positions and frequencies. Pure.

An angle counts modulo 2 pi, so that its absolute error matters: rounded to FP16, position 4,000 is off by a radian. Golden
samples hold small positions and steps, and would not show it. Angles that a network computes, as a periodic
activation reads them, are small.
"""

from collections.abc import Mapping
from typing import Final

from onnx import GraphProto, NodeProto

from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.proof.rounding.moved_values import MOVING

ABSOLUTE: Final = "it computes angles, of which the absolute error matters"
_PERIODIC: Final = frozenset({"Sin", "Cos", "Tan"})
# what exporters write between positions and angles: products with frequencies, and the frequencies themselves
_COMPUTING: Final = MOVING | {
    *("Mul", "MatMul", "Einsum", "Add", "Sub", "Div", "Exp", "Pow", "Reciprocal", "Sqrt", "Floor", "Mod"),
}  # fmt: skip
# positions are integers, or counted
_BEGINNING: Final = frozenset({"Cast", "Constant", "ConstantOfShape", "Range", "CumSum"})


def find_angles(graph: GraphProto) -> frozenset[str]:
    """Return the names of the results of Sin, Cos and Tan, and of all nodes between these and constants, integers and inputs.

    Empty where anything else computes the angles.
    """
    nodes = [*graphs.nodes_in(graph.node)]
    makers = {name: node for node in nodes for name in node.output if name}
    angles: set[str] = set()
    for node in nodes:
        if node.op_type in _PERIODIC and (computed := _trace(node.input[0], makers)) is not None:
            angles |= {*computed, *node.output}
    return frozenset(angles)


def _trace(name: str, makers: Mapping[str, NodeProto]) -> set[str] | None:
    """Return the names of the values that an angle is computed of, without those that it begins with; None if it is not computed so."""
    traced: set[str] = set()
    waiting = [name]
    while waiting:
        node = makers.get(value := waiting.pop())
        if value in traced or node is None or node.op_type in _BEGINNING:
            continue
        if node.op_type not in _COMPUTING:
            return None
        traced.add(value)
        waiting += filter(None, node.input)
    return traced
