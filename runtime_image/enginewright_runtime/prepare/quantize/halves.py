"""Converts a model to half precision, FP16 or BF16, with single precision where half is unsafe.

Inputs and outputs keep their types: casts are inserted at the boundaries. A node stays in single
precision, and is reported, if `half_rules` demands it, by its operator, its weights, or the
observed values; if it computes sizes, which must be exact; or if it costs too much accuracy
(`searching`).
"""

from collections.abc import Collection, Mapping
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
from enginewright_runtime.prepare.quantize.static import EXCLUDED, OPERANDS
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
        editor = ModelEditor(model, self.subject, sink)
        done = Lowering(editor, self.half, self.largest).run(dict.fromkeys(excluded, EXCLUDED))
        editor.scope.remove_unused()
        return done


_Forms = dict[str, str]  # a value's names by type string, first that of its producer


class Lowering:
    """Lowers the nodes of a model that is being edited."""

    def __init__(self, editor: ModelEditor, half: Half, largest: Mapping[str, float]) -> None:
        """Take the values of `Halves`."""
        model = editor.model
        self._editor = editor
        self._half = half
        self._signatures = OperatorSignatures(model)
        self._types = element_types(model)
        self._judge = Judge(half, largest, model)
        self._pinned = {  # must keep name and type
            name for graph in graphs.graphs_in(model.graph) for name in graphs.outputs_named(graph)
        }
        self._constants = {editor.scope: editor.subject.constants}
        # of a value, by the scope that sees them; absent: unchanged, or of another type
        self._forms: dict[tuple[Scope, str], _Forms] = {}
        self._lowered: list[str] = []
        self._kept: dict[str, str] = {}

    def run(self, single: Mapping[int, str], quantized: Collection[int] = ()) -> PassResult:
        """Lower the model, except nodes in `single` and their bodies, by index with the reason.

        The operands of nodes in `quantized` are left to the caller.
        """
        units = []
        for index, node in enumerate(self._editor.nodes):
            before = len(self._lowered)
            operands = OPERANDS if index in quantized else frozenset[int]()
            self._node(node, single.get(index), operands)
            if len(self._lowered) > before:
                units.append(index)
        self._annotate(self._editor.scope)
        return PassResult(nodes=tuple(self._lowered), kept=self._kept, units=tuple(units))

    def find_form(self, name: str) -> tuple[str, int]:
        """Return what a value of the main graph is called as its producer writes it, and its element type."""
        forms = self._forms_of(name, self._editor.scope) or {_FLOAT: name}
        kind, produced = next(iter(forms.items()))
        return produced, self._element(kind)

    def _element(self, kind: str) -> int:
        return TensorProto.FLOAT if kind == _FLOAT else self._half.element

    def _annotate(self, scope: Scope) -> None:
        for value in scope.graph.value_info:
            if self._forms.get((scope, value.name), {}).get(self._half.kind) == value.name:
                value.type.tensor_type.elem_type = self._half.element

    def _node(self, node: Node, single: str | None, skipped: frozenset[int]) -> None:
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
            halved = self._find_halved(proto, signature, variables, skipped)
            why = single or self._why_not(node, halved)
            if why is not None:
                self._kept[graphs.label(proto)] = why
                variables = set()
        self._read(node, signature, variables, skipped)
        for body in node.bodies:
            # an excluded body stays unchanged, so it gets outer values in single precision
            if single is not None:
                for value in [*dict.fromkeys(body.find_captures())]:
                    value.replace_uses(self._form(value.name, _FLOAT, node), within=body)
            else:
                self._body(body, self._constants[node.scope])
        self._make(node, signature, variables)

    def _body(self, body: Scope, around: Constants) -> None:
        self._constants[body] = Constants(body.graph, self._editor.subject.folder, around)
        for node in body.nodes:
            self._node(node, None, frozenset())
        self._annotate(body)
        body.remove_unused()

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
        node: NodeProto,
        signature: OperatorSignature,
        variables: set[str],
        skipped: frozenset[int],
    ) -> list[str]:
        formals = [
            (name, signature.input(index))
            for index, name in enumerate(node.input)
            if index not in skipped
        ]
        return [name for name, formal in formals if formal is not None and formal.kind in variables]

    def _why_not(self, node: Node, halved: list[str]) -> str | None:
        if format_label(node.proto.name, node.proto.op_type) in self._editor.subject.shape_nodes:
            return "it computes sizes"
        constants = self._constants[node.scope]
        main = node.scope is self._editor.scope
        return self._judge.why_not(node.proto, halved, constants, main=main)

    def _read(
        self,
        node: Node,
        signature: OperatorSignature | None,
        variables: set[str],
        skipped: frozenset[int],
    ) -> None:
        for index, name in enumerate(node.proto.input):
            if index not in skipped and self._forms_of(name, node.scope):
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
        fresh = self._editor.names.fresh(f"{name}_{_short(kind)}")
        source = next(iter(forms.values()))
        cast = self._editor.node("Cast", [source], fresh, fresh, to=self._element(kind))
        reader.insert_before(cast)
        self._forms[reader.scope, name] = {**forms, kind: fresh}
        return fresh

    def _constant_form(self, name: str, scope: Scope) -> str:
        while scope.outer is not None and name not in self._constants[scope].own():
            scope = scope.outer
        array = self._constants[scope].array(name)
        assert array is not None  # noqa: S101 - it is constant there
        fresh = self._editor.names.fresh(f"{name}_{_short(self._half.kind)}")
        with np.errstate(over="ignore"):
            halves = array.astype(self._half.dtype)
        scope.add_weight(self._editor.sink.tensor(fresh, self._half.element, halves))
        self._forms[scope, name] = {_FLOAT: name, self._half.kind: fresh}
        return fresh

    def _make(self, node: Node, signature: OperatorSignature | None, variables: set[str]) -> None:
        half = self._half.kind
        for index, name in enumerate(node.proto.output):
            formal = signature.output(index) if signature is not None else None
            if not name or formal is None or formal.kind not in variables:
                continue
            if name in self._pinned:
                fresh = self._editor.names.fresh(f"{name}_{_short(half)}")
                node.set_output(index, fresh)
                cast = self._editor.node("Cast", [fresh], name, name, to=TensorProto.FLOAT)
                node.insert_after(cast)
                self._forms[node.scope, name] = {half: fresh, _FLOAT: name}
            else:
                self._forms[node.scope, name] = {half: name}
        if variables:
            self._lowered.append(graphs.label(node.proto))


def _short(kind: str) -> str:
    return kind.removeprefix("tensor(").removesuffix(")")
