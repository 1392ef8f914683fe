"""Writes operators that multiply UINT8 by INT8 as ones that multiply UINT8 by UINT8: their sums never saturate.

A weight plus 128, with a zero point plus 128, is the same number: products, sums and results stay equal, on every
processor (`saturation`). ONNX Runtime's session.x64quantprecision does so too, but not for all opsets, and above
graph optimization BASIC alone.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.schemas import STANDARD
from enginewright_runtime.graph.raw.storage import save
from enginewright_runtime.graph.scoped.scopes import Names, Node, Scope, rename_apart
from enginewright_runtime.session.operator_signatures import element_types

_DOMAINS: Final = frozenset({*STANDARD, "com.microsoft"})
# operator -> indices of the inputs that are a weight and its zero point; the first input is the activation
_WEIGHTS: Final[Mapping[str, tuple[tuple[int, int], ...]]] = {
    "QLinearConv": ((3, 5),),
    "QLinearMatMul": ((3, 5),),
    "QGemm": ((3, 5),),
    "ConvInteger": ((1, 3),),
    "MatMulInteger": ((1, 3),),
    "MatMulIntegerToFloat": ((1, 5),),
    "DynamicQuantizeMatMul": ((1, 3),),
    "DynamicQuantizeLSTM": ((1, 9), (2, 11)),
    "QAttention": ((1, 7),),
}
_INT8: Final = "tensor(int8)"
_OFFSET: Final = 128
_log: Final = logging.getLogger(__name__)
_SECONDS: Final = 900.0


def make_exact(model: Path, name: str) -> Path:
    """Write a copy without such operators, as `name` beside the model; return the model if it has none."""
    if not any(map(_multiplies, graphs.walk_nodes(graphs.parse(model)))):
        return model
    out = model.with_name(name)
    _log.info("shifting INT8 weights to UINT8, whose products do not saturate on this processor")
    limits = Limits.of_model(_SECONDS)
    Call(write_exact, "shifting the model's weights", limits).run(model, out)
    return out


def write_exact(model: Path, out: Path) -> None:
    """Write the copy beside the model's weights. Called in a child process."""
    proto = graphs.parse(model)
    shift_weights(proto)
    save(proto, out)


def shift_weights(model: ModelProto) -> None:
    """Shift the weights of such operators, in place, by nodes that ONNX Runtime folds; external data is not read."""
    rename_apart(model)
    scope = Scope(model.graph)
    scope.sort()
    _Shifter(model, scope).shift(scope)


def _multiplies(node: NodeProto) -> bool:
    return node.op_type in _WEIGHTS and node.domain in _DOMAINS


class _Shifter:
    def __init__(self, model: ModelProto, main: Scope) -> None:
        self._types = element_types(model)
        self._names = Names(model)
        self._offset = self._names.fresh("/offset")
        self._zero_point = self._names.fresh("/zero_point")
        main.add_weight(numpy_helper.from_array(np.array(_OFFSET, np.int32), self._offset))
        main.add_weight(numpy_helper.from_array(np.array(_OFFSET, np.uint8), self._zero_point))

    def shift(self, scope: Scope) -> None:
        for node in scope.nodes:
            for body in node.bodies:
                self.shift(body)
            if _multiplies(node.proto) and self._types.get(node.proto.input[0]) != _INT8:
                for weight, zero_point in _WEIGHTS[node.proto.op_type]:
                    self._shift_weight(node, weight, zero_point)
        scope.write()

    def _shift_weight(self, node: Node, weight: int, zero_point: int) -> None:
        if self._types.get(node.proto.input[weight]) != _INT8:
            return
        self._shift_input(node, weight)
        while len(node.proto.input) <= zero_point:
            node.proto.input.append("")
        if node.proto.input[zero_point]:
            self._shift_input(node, zero_point)
        else:
            node.set_input(zero_point, self._zero_point)

    def _shift_input(self, node: Node, index: int) -> None:
        name = node.proto.input[index]
        wide, moved, shifted = (
            self._names.fresh(f"{name}_{form}") for form in ("int32", "moved", "uint8")
        )
        node.insert_before(
            helper.make_node("Cast", [name], [wide], to=TensorProto.INT32),
            helper.make_node("Add", [wide, self._offset], [moved]),
            helper.make_node("Cast", [moved], [shifted], to=TensorProto.UINT8),
        )
        node.set_input(index, shifted)
