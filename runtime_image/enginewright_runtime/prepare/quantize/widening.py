"""Computes what a device computes in half precision, on a processor that has no such kernels. Pure.

ONNX Runtime's CPU provider runs FP16 nodes in single precision between casts of its own, and takes
away the casts that follow each other (onnxruntime/core/optimizer/insert_cast_transformer.cc): what overflows on a device is right there, so that
a comparison on it proves nothing. BF16 it does not run at all. Here every node of half precision is
widened instead, and each of its results is rounded to the format by casts that stay.
"""

from collections.abc import Mapping
from typing import Final

from onnx import ModelProto, NodeProto, TensorProto, helper

from enginewright_runtime.graph.scoped.scopes import Names, Node, Scope, rename_apart
from enginewright_runtime.prepare.quantize.signatures import OperatorSignatures, element_types

_HALVES: Final[Mapping[str, int]] = {
    "tensor(float16)": TensorProto.FLOAT16,
    "tensor(bfloat16)": TensorProto.BFLOAT16,
}
_LEFT_ALONE: Final = frozenset({"Cast", "Constant"})  # the CPU provider has them for halves
ROUNDING: Final = "/rounding"  # in the names of nodes that the model does not have


def widen(model: ModelProto) -> int:
    """Widen every node of half precision, in place; return how many.

    External data need not be loaded; it is referred to as before.
    """
    rename_apart(model)
    scope = Scope(model.graph)
    scope.sort()
    widener = _Widener(model)
    widener.widen(scope, {})
    return widener.count


class _Widener:
    def __init__(self, model: ModelProto) -> None:
        self._types = element_types(model)
        self._signatures = OperatorSignatures(model)
        self._names = Names(model)
        self.count = 0

    def widen(self, scope: Scope, outer: Mapping[str, str]) -> None:
        wide = dict(outer)
        for node in scope.nodes:
            for body in node.bodies:
                self.widen(body, wide)
            # a function of the model has nodes of its own, and gets what it is written for
            if not (
                node.bodies
                or node.proto.op_type in _LEFT_ALONE
                or self._signatures.of(node.proto) is None
            ):
                self._widen_node(node, wide)
        scope.write()

    def _widen_node(self, node: Node, wide: dict[str, str]) -> None:
        count = 0
        for index, name in enumerate(node.proto.input):
            if self._types.get(name) not in _HALVES:
                continue
            if name not in wide:
                wide[name] = self._names.fresh(f"{name}_single")
                node.insert_before(self._cast(name, wide[name], TensorProto.FLOAT))
            node.set_input(index, wide[name])
            count += 1
        for index, name in enumerate(node.proto.output):
            kind = self._types.get(name)
            if kind is not None and kind in _HALVES:
                exact = self._names.fresh(f"{name}_exact")
                node.set_output(index, exact)
                node.insert_after(self._cast(exact, name, _HALVES[kind]))
                count += 1
        self.count += bool(count)

    def _cast(self, source: str, target: str, element: int) -> NodeProto:
        name = self._names.fresh(f"{target}{ROUNDING}")
        return helper.make_node("Cast", [source], [target], name=name, to=element)
