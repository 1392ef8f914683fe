"""Emulates a device's half precision on processors without such kernels.

ONNX Runtime's CPU provider runs FP16 nodes in single precision between casts, of which it removes
consecutive ones (onnxruntime/core/optimizer/insert_cast_transformer.cc), so that values do not
overflow there; it does not run BF16 at all. Here every half-precision node is widened, and its
results are rounded to the format by casts that remain: they are a device's except for the order of
summation.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from onnx import ModelProto, NodeProto, TensorProto, helper

from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.storage import save
from enginewright_runtime.graph.scoped.scopes import Names, Node, Scope, rename_apart
from enginewright_runtime.session.operator_signatures import OperatorSignatures, element_types

_HALVES: Final[Mapping[str, int]] = {
    "tensor(float16)": TensorProto.FLOAT16,
    "tensor(bfloat16)": TensorProto.BFLOAT16,
}
_NOT_WIDENED: Final = frozenset({"Cast", "Constant"})  # the CPU provider has half-precision kernels
ROUNDING: Final = "/rounding"  # in the names of inserted nodes
_log: Final = logging.getLogger(__name__)
_SECONDS: Final = 900.0


def widen(model: ModelProto) -> None:
    """Widen every half-precision node, in place; references to external data are kept."""
    rename_apart(model)
    scope = Scope(model.graph)
    scope.sort()
    _Widener(model).widen(scope, {})


def _is_bfloat16(model: ModelProto) -> bool:
    return (
        any(tensor.data_type == TensorProto.BFLOAT16 for tensor in graphs.walk_tensors(model))
        or any(
            value.type.tensor_type.elem_type == TensorProto.BFLOAT16
            for value in (*model.graph.input, *model.graph.output)
        )
        or any(
            attribute.name == "to" and attribute.i == TensorProto.BFLOAT16
            for node in graphs.walk_nodes(model)
            for attribute in node.attribute
        )
    )


def emulate(model: Path, name: str) -> Path | None:
    """Write a copy that the CPU provider runs, as `name` beside the model; None if it has no BF16."""
    if not _is_bfloat16(graphs.parse(model)):
        return None
    out = model.with_name(name)
    _log.info("widening BF16, for which ONNX Runtime's CPU provider has no kernels")
    limits = Limits.of_model(_SECONDS)
    Call(write_widened, "widening the model", limits).run(model, out)
    return out


def write_widened(model: Path, out: Path) -> None:
    """Write a widened copy, which ONNX Runtime's CPU provider runs, beside the model's weights."""
    proto = graphs.parse(model)
    widen(proto)
    save(proto, out)


class _Widener:
    def __init__(self, model: ModelProto) -> None:
        self._types = element_types(model)
        self._signatures = OperatorSignatures(model)
        self._names = Names(model)

    def widen(self, scope: Scope, outer: Mapping[str, str]) -> None:
        wide = dict(outer)
        for node in scope.nodes:
            for body in node.bodies:
                self.widen(body, wide)
            # calls of model-local functions keep their types, which the functions' nodes expect
            if not (
                node.bodies
                or node.proto.op_type in _NOT_WIDENED
                or self._signatures.of(node.proto) is None
            ):
                self._widen_node(node, wide)
        scope.write()

    def _widen_node(self, node: Node, wide: dict[str, str]) -> None:
        for index, name in enumerate(node.proto.input):
            if self._types.get(name) not in _HALVES:
                continue
            if name not in wide:
                wide[name] = self._names.fresh(f"{name}_single")
                node.insert_before(self._cast(name, wide[name], TensorProto.FLOAT))
            node.set_input(index, wide[name])
        for index, name in enumerate(node.proto.output):
            kind = self._types.get(name)
            if kind is not None and kind in _HALVES:
                exact = self._names.fresh(f"{name}_exact")
                node.set_output(index, exact)
                node.insert_after(self._cast(exact, name, _HALVES[kind]))

    def _cast(self, source: str, target: str, element: int) -> NodeProto:
        name = self._names.fresh(f"{target}{ROUNDING}")
        return helper.make_node("Cast", [source], [target], name=name, to=element)
