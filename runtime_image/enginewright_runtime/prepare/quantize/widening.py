"""Computes what a device computes in half precision, on a processor that has no such kernels.

ONNX Runtime's CPU provider runs FP16 nodes in single precision between casts of its own, and takes
away the casts that follow each other (onnxruntime/core/optimizer/insert_cast_transformer.cc): what overflows on a device is right there, so that
a comparison on it proves nothing. BF16 it does not run at all. Here every node of half precision is
widened instead, and each of its results is rounded to the format by casts that stay: what comes out
is what a device computes but for the order of sums.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from onnx import ModelProto, NodeProto, TensorProto, helper

from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.core.limits import memory_of_child
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.storage import save
from enginewright_runtime.graph.scoped.scopes import Names, Node, Scope, rename_apart
from enginewright_runtime.prepare.quantize.signatures import OperatorSignatures, element_types

_HALVES: Final[Mapping[str, int]] = {
    "tensor(float16)": TensorProto.FLOAT16,
    "tensor(bfloat16)": TensorProto.BFLOAT16,
}
_LEFT_ALONE: Final = frozenset({"Cast", "Constant"})  # the CPU provider has them for halves
ROUNDING: Final = "/rounding"  # in the names of nodes that the model does not have
_log: Final = logging.getLogger(__name__)
_SECONDS: Final = 900.0


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


def _is_bfloat16(model: ModelProto) -> bool:
    """Tell whether a model has weights, inputs or outputs of BF16, or casts to it."""
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


def emulated(model: Path, name: str) -> Path | None:
    """Write the model so that the CPU provider runs it, as `name` beside it; None: it has no BF16.

    Args:
        model: of an IR version that ONNX Runtime loads; its external data is referred to.
        name: of the file, which is the caller's to remove.

    Raises:
        StageFailure: as `Call.run`; ModelTooLarge.
    """
    if not _is_bfloat16(graphs.parse(model)):
        return None
    out = model.with_name(name)
    _log.info("widening BF16, which ONNX Runtime's CPU provider has no kernels for")
    limits = Limits(seconds=_SECONDS, memory_bytes=memory_of_child())
    Call(write_widened, "widening the model", limits).run(model, out)
    return out


def write_widened(model: Path, out: Path) -> None:
    """Write a model of halves as one that ONNX Runtime's CPU provider runs, beside its weights."""
    proto = graphs.parse(model)
    widen(proto)
    save(proto, out)


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
