"""Converts a model to half precision, FP16 or BF16, with single precision where half is unsafe.

Inputs and outputs keep their types: casts are inserted at the boundaries. A node stays in single
precision, and is reported, if `half_rules` demands it, by its operator, its weights, or the
observed values; if it computes sizes, which must be exact; or if it costs too much accuracy
(`searching`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto
from typing_extensions import override

from enginewright_runtime.core.labels import format_label
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.constants import Constants
from enginewright_runtime.graph.raw.signatures import OperatorSignature, bindings
from enginewright_runtime.graph.scoped.passes import Needs, PassResult
from enginewright_runtime.graph.scoped.scopes import Node, Scope
from enginewright_runtime.prepare.quantize.static import EXCLUDED
from enginewright_runtime.prepare.quantize.subject import ModelEditor, PrecisionPass
from enginewright_runtime.prepare.quantize.tensors import Sink
from enginewright_runtime.proof.rounding.half_rules import HALVES, Half, Judge
from enginewright_runtime.session.operator_signatures import OperatorSignatures, element_types

_FLOAT: Final = "tensor(float)"


@dataclass(frozen=True)
class Halves(PrecisionPass):
    """Converts all nodes to half precision for which it is safe."""

    order = 10
    needs = Needs(precisions=frozenset(HALVES))
    widened = True
    half: Half
    # largest absolute value observed, by the name of the value in the main graph
    largest: Mapping[str, float]

    @override
    def change(self, model: ModelProto, sink: Sink, excluded: frozenset[int]) -> PassResult:
        return _Lowering(model, self, sink, excluded).run()


_Forms = dict[str, str]  # a value's names by type string


class _Lowering(ModelEditor):
    def __init__(
        self, model: ModelProto, how: Halves, sink: Sink, excluded: frozenset[int]
    ) -> None:
        super().__init__(model, how.subject, sink)
        self._half = how.half
        self._excluded = excluded
        self._signatures = OperatorSignatures(self.model)
        self._types = element_types(self.model)
        self._judge = Judge(how.half, how.largest, graphs.default_opset(self.model) or 0)
        self._pinned = {  # must keep name and type
            name
            for graph in graphs.graphs_in(self.model.graph)
            for name in graphs.outputs_named(graph)
        }
        self._constants = {self.scope: self.subject.constants}
        # of a value, by the scope that sees them; absent: unchanged, or of another type
        self._forms: dict[tuple[Scope, str], _Forms] = {}
        self._lowered: list[str] = []
        self._kept: dict[str, str] = {}

    def run(self) -> PassResult:
        units = []
        for index, node in enumerate(self.scope.nodes):
            before = len(self._lowered)
            self._node(node, excluded=index in self._excluded)
            if len(self._lowered) > before:
                units.append(index)
        self._finish(self.scope)
        return PassResult(nodes=tuple(self._lowered), kept=self._kept, units=tuple(units))

    def _finish(self, scope: Scope) -> None:
        for value in scope.graph.value_info:
            if self._forms.get((scope, value.name), {}).get(self._half.kind) == value.name:
                value.type.tensor_type.elem_type = self._half.element
        scope.remove_unused()

    def _node(self, node: Node, *, excluded: bool) -> None:
        proto = node.proto
        if proto.op_type == "Constant":
            return
        signature = self._signatures.of(proto)
        variables: set[str] = set()
        if not node.bodies and signature is not None:
            variables = self._variables(proto, signature)
        if signature is not None and not self._makes(proto, signature, variables):
            variables = self._find_kept_variables(node, signature, variables)
        elif signature is not None and variables:
            halved = self._find_halved(proto, signature, variables)
            why = self._why_not(node, halved, excluded=excluded)
            if why is not None:
                self._kept[graphs.label(proto)] = why
                variables = set()
        self._read(node, signature, variables)
        for body in node.bodies:
            # an excluded body stays unchanged, so it gets outer values in single precision
            if excluded:
                for value in [*dict.fromkeys(body.find_captures())]:
                    value.replace_uses(self._form(value.name, _FLOAT, node), within=body)
            else:
                self._body(body, self._constants[node.scope])
        self._make(node, signature, variables)

    def _body(self, body: Scope, around: Constants) -> None:
        self._constants[body] = Constants(body.graph, self.subject.folder, around)
        for node in body.nodes:
            self._node(node, excluded=False)
        self._finish(body)

    def _variables(self, node: NodeProto, signature: OperatorSignature) -> set[str]:
        """Return the type variables of a node that are bound to float and can be half instead."""
        kinds = [self._types.get(name) for name in (*node.input, *node.output) if name]
        if not all(kind is not None and kind.startswith("tensor(") for kind in kinds):
            return set()  # nodes with sequences or unknown types are not changed
        bound = bindings(node, signature, self._types)
        formals = [signature.input(index) for index, name in enumerate(node.input) if name]
        return {
            formal.kind
            for formal in formals
            if formal is not None
            and formal.is_variable
            and bound.get(formal.kind) == _FLOAT
            and self._half.kind in formal.allowed
            and (not formal.variadic or formal.homogeneous)
        }

    @staticmethod
    def _makes(node: NodeProto, signature: OperatorSignature, variables: set[str]) -> bool:
        formals = [signature.output(index) for index, name in enumerate(node.output) if name]
        return any(formal is not None and formal.kind in variables for formal in formals)

    def _find_kept_variables(
        self, node: Node, signature: OperatorSignature, variables: set[str]
    ) -> set[str]:
        singles = set()
        for index, name in enumerate(node.proto.input):
            formal = signature.input(index)
            if formal is not None and _FLOAT in self._forms_of(name, node.scope):
                singles.add(formal.kind)
        return variables - singles

    @staticmethod
    def _find_halved(
        node: NodeProto, signature: OperatorSignature, variables: set[str]
    ) -> list[str]:
        formals = [(name, signature.input(index)) for index, name in enumerate(node.input)]
        return [name for name, formal in formals if formal is not None and formal.kind in variables]

    def _why_not(self, node: Node, halved: list[str], *, excluded: bool) -> str | None:
        if excluded:
            return EXCLUDED
        if format_label(node.proto.name, node.proto.op_type) in self.subject.shape_nodes:
            return "it computes sizes"
        constants = self._constants[node.scope]
        return self._judge.why_not(node.proto, halved, constants, main=node.scope is self.scope)

    def _read(self, node: Node, signature: OperatorSignature | None, variables: set[str]) -> None:
        for index, name in enumerate(node.proto.input):
            if self._forms_of(name, node.scope):
                formal = signature.input(index) if signature is not None else None
                lower = formal is not None and formal.kind in variables
                kind = self._half.kind if lower else _FLOAT
                node.set_input(index, self._form(name, kind, node))

    def _forms_of(self, name: str, scope: Scope) -> _Forms:
        here: Scope | None = scope
        while here is not None:
            if (here, name) in self._forms:
                return self._forms[here, name]
            here = here.outer
        return {_FLOAT: name} if self._types.get(name) == _FLOAT else {}

    def _form(self, name: str, kind: str, reader: Node) -> str:
        """Return the name of a value in a type; insert a cast before its reader if needed."""
        forms = self._forms_of(name, reader.scope)
        if not forms or kind in forms:
            return forms.get(kind, name)
        tensor = self._constants[reader.scope].tensor(name)
        if tensor is not None and kind == self._half.kind:
            return self._constant_form(name, reader.scope)
        fresh = self.names.fresh(f"{name}_{_short(kind)}")
        element = TensorProto.FLOAT if kind == _FLOAT else self._half.element
        source = next(iter(forms.values()))
        reader.insert_before(self.node("Cast", [source], fresh, fresh, to=element))
        self._forms[reader.scope, name] = {**forms, kind: fresh}
        return fresh

    def _constant_form(self, name: str, scope: Scope) -> str:
        while scope.outer is not None and name not in self._constants[scope].own():
            scope = scope.outer
        array = self._constants[scope].array(name)
        assert array is not None  # noqa: S101 - it is constant there
        fresh = self.names.fresh(f"{name}_{_short(self._half.kind)}")
        with np.errstate(over="ignore"):
            halves = array.astype(self._half.dtype)
        scope.add_weight(self.sink.tensor(fresh, self._half.element, halves))
        self._forms[scope, name] = {_FLOAT: name, self._half.kind: fresh}
        return fresh

    def _make(self, node: Node, signature: OperatorSignature | None, variables: set[str]) -> None:
        half = self._half.kind
        for index, name in enumerate(node.proto.output):
            formal = signature.output(index) if signature is not None else None
            if not name or formal is None or formal.kind not in variables:
                continue
            if name in self._pinned:
                fresh = self.names.fresh(f"{name}_{_short(half)}")
                node.set_output(index, fresh)
                node.insert_after(self.node("Cast", [fresh], name, name, to=TensorProto.FLOAT))
                self._forms[node.scope, name] = {_FLOAT: name, half: fresh}
            else:
                self._forms[node.scope, name] = {half: name}
        if variables:
            self._lowered.append(graphs.label(node.proto))


def _short(kind: str) -> str:
    return kind.removeprefix("tensor(").removesuffix(")")
