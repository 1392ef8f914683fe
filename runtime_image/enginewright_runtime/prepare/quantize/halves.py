"""Makes a model compute in half precision: FP16 or BF16, with single precision where a half will not do.

Inputs and outputs keep their types: casts stand at the borders. Tools for this exist and were tried
(docs/measurements.md says what they break); none tells a weight that a half cannot hold. Here a node stays
in single precision, and is reported, when
- `half_rules` says so: of its operator, its weights, or the values that were seen;
- it computes sizes (shape arithmetic), which have to be exact;
- it is excluded because it costs too much accuracy (`searching`).
"""

from collections import ChainMap
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto
from typing_extensions import override

from enginewright_runtime.core.labels import reported_label
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.constants import Constants
from enginewright_runtime.graph.scoped.element_types import declared
from enginewright_runtime.graph.scoped.passes import Needs, PassResult
from enginewright_runtime.graph.scoped.scopes import Node, Scope
from enginewright_runtime.prepare.quantize.half_rules import HALVES, Half, Judge
from enginewright_runtime.prepare.quantize.signatures import (
    OperatorSignature,
    OperatorSignatures,
    bindings,
    element_types,
)
from enginewright_runtime.prepare.quantize.static import EXCLUDED
from enginewright_runtime.prepare.quantize.subject import ModelEditor, PrecisionPass
from enginewright_runtime.prepare.quantize.tensors import Sink

_FLOAT: Final = "tensor(float)"


@dataclass(frozen=True)
class Halves(PrecisionPass):
    """Computes in half precision what can be."""

    order = 10
    needs = Needs(precisions=frozenset(HALVES))
    widened = True
    half: Half
    # greatest absolute value that was seen of values of the main graph, by name
    largest: Mapping[str, float]

    @override
    def change(self, model: ModelProto, sink: Sink, excluded: frozenset[int]) -> PassResult:
        return _Lowering(model, self, sink, excluded).run()


_Forms = dict[str, str]  # a value's names by type string


@dataclass
class _View:
    """What is known inside a graph: the names that its values have in each type, and constants."""

    scope: Scope
    constants: Constants
    forms: MutableMapping[str, _Forms | None]  # None: it is of another type, and is left alone
    parent: "_View | None" = None

    def add_form(self, value: str, kind: str, name: str) -> None:
        """Note that a value is there in another type, for this graph and its bodies."""
        self.forms[value] = {**(self.forms.get(value) or {}), kind: name}


class _Lowering(ModelEditor):
    def __init__(
        self, model: ModelProto, how: Halves, sink: Sink, excluded: frozenset[int]
    ) -> None:
        super().__init__(model, how.subject, sink)
        self._half = how.half
        self._excluded = excluded
        self._signatures = OperatorSignatures(self.model)
        self._types = element_types(self.model)
        self._judge = Judge(how.half, how.largest)
        self._pinned = {  # must keep name and type
            name
            for graph in graphs.graphs_in(self.model.graph)
            for name in graphs.outputs_named(graph)
        }
        self._lowered: list[str] = []
        self._kept: dict[str, str] = {}

    def run(self) -> PassResult:
        forms: ChainMap[str, _Forms | None] = ChainMap()
        for value in self.model.graph.input:
            forms[value.name] = self._given(value)
        view = _View(self.scope, self.subject.constants, forms)
        units = []
        for index, node in enumerate(self.scope.nodes):
            before = len(self._lowered)
            self._node(node, view, excluded=index in self._excluded)
            if len(self._lowered) > before:
                units.append(index)
        self._finish(view)
        return PassResult(nodes=tuple(self._lowered), kept=self._kept, units=tuple(units))

    def _given(self, value: ValueInfoProto) -> _Forms | None:
        return {_FLOAT: value.name} if declared(value.type) == _FLOAT else None

    def _finish(self, view: _View) -> None:
        for value in view.scope.graph.value_info:
            if (view.forms.get(value.name) or {}).get(self._half.kind) == value.name:
                value.type.tensor_type.elem_type = self._half.element
        view.scope.remove_unused()

    def _node(self, node: Node, view: _View, *, excluded: bool) -> None:
        proto = node.proto
        if proto.op_type == "Constant":
            view.forms[proto.output[0]] = self._own_form(proto.output[0])
            return
        signature = self._signatures.of(proto)
        variables: set[str] = set()
        if not node.bodies and signature is not None:
            variables = self._variables(proto, signature)
        if signature is not None and not self._makes(proto, signature, variables):
            variables = self._as_they_are(proto, signature, variables, view)
        elif signature is not None and variables:
            halved = self._halved(proto, signature, variables)
            why = self._why_not(proto, halved, view, excluded=excluded)
            if why is not None:
                self._kept[graphs.label(proto)] = why
                variables = set()
        self._read(node, signature, variables, view)
        for body in node.bodies:
            if (
                excluded
            ):  # it stays as it is, and gets the values around it in the type that it knows
                for value in [*dict.fromkeys(body.captured())]:
                    value.replace_uses(self._form(value.name, _FLOAT, node, view), within=body)
            else:
                self._body(body, view)
        self._make(node, signature, variables, view)

    def _body(self, body: Scope, outer: _View) -> None:
        """Lower what is in a body; its inputs and outputs keep their types."""
        forms = ChainMap[str, "_Forms | None"]({}, *_maps(outer.forms))
        for value in body.graph.input:
            forms[value.name] = self._own_form(value.name)
        constants = Constants(body.graph, self.subject.folder, outer.constants)
        view = _View(body, constants, forms, outer)
        for node in body.nodes:
            self._node(node, view, excluded=False)
        self._finish(view)

    # what can be lowered

    def _variables(self, node: NodeProto, signature: OperatorSignature) -> set[str]:
        """Return the type variables of a node that are bound to float and may be half instead."""
        kinds = [self._types.get(name) for name in (*node.input, *node.output) if name]
        if not all(kind is not None and kind.startswith("tensor(") for kind in kinds):
            return set()  # sequences, and what is not known, are left alone
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
        """Tell whether the node makes values of these types, so that something is won by halves."""
        formals = [signature.output(index) for index, name in enumerate(node.output) if name]
        return any(formal is not None and formal.kind in variables for formal in formals)

    def _as_they_are(
        self, node: NodeProto, signature: OperatorSignature, variables: set[str], view: _View
    ) -> set[str]:
        """Return which variables of a node that only looks at values are best halves: those of halves."""
        singles = set()
        for index, name in enumerate(node.input):
            formal = signature.input(index)
            forms = self._kind_of(name, view) if name else None
            if formal is not None and forms is not None and _FLOAT in forms:
                singles.add(formal.kind)
        return variables - singles

    @staticmethod
    def _halved(node: NodeProto, signature: OperatorSignature, variables: set[str]) -> list[str]:
        """Return the inputs of these types."""
        formals = [(name, signature.input(index)) for index, name in enumerate(node.input)]
        return [name for name, formal in formals if formal is not None and formal.kind in variables]

    def _why_not(
        self, node: NodeProto, halved: list[str], view: _View, *, excluded: bool
    ) -> str | None:
        if excluded:
            return EXCLUDED
        if reported_label(node.name, node.op_type) in self.subject.shape_nodes:
            return "it computes sizes"
        return self._judge.why_not(node, halved, view.constants, main=view.parent is None)

    # values and their forms

    def _read(
        self,
        node: Node,
        signature: OperatorSignature | None,
        variables: set[str],
        view: _View,
    ) -> None:
        for index, name in enumerate(node.proto.input):
            if not name or self._kind_of(name, view) is None:
                continue
            formal = signature.input(index) if signature is not None else None
            wanted = self._half.kind if formal is not None and formal.kind in variables else _FLOAT
            node.set_input(index, self._form(name, wanted, node, view))

    def _own_form(self, name: str) -> _Forms | None:
        return {_FLOAT: name} if self._types.get(name) == _FLOAT else None

    def _kind_of(self, name: str, view: _View) -> _Forms | None:
        if name in view.forms:
            return view.forms[name]
        tensor = view.constants.tensor(name)
        if tensor is not None and tensor.data_type == TensorProto.FLOAT:
            return {_FLOAT: name}
        return None

    def _form(self, name: str, kind: str, reader: Node, view: _View) -> str:
        """Return the name that a value has in a type, with a cast before its reader if there is none."""
        forms = self._kind_of(name, view)
        if forms is None:
            return name
        if kind in forms:
            return forms[kind]
        tensor = view.constants.tensor(name)
        if tensor is not None and kind == self._half.kind:
            return self._constant_form(name, view)
        fresh = self.names.fresh(f"{name}_{_short(kind)}")
        element = TensorProto.FLOAT if kind == _FLOAT else self._half.element
        source = next(iter(forms.values()))
        reader.insert_before(self.node("Cast", [source], fresh, fresh, to=element))
        view.add_form(name, kind, fresh)
        return fresh

    def _constant_form(self, name: str, view: _View) -> str:
        """Add a constant's half to the graph that it is in."""
        owner = view
        while owner.parent is not None and name not in owner.constants.own():
            owner = owner.parent
        array = owner.constants.array(name)
        assert array is not None  # noqa: S101 - it is a constant there
        fresh = self.names.fresh(f"{name}_{_short(self._half.kind)}")
        with np.errstate(over="ignore"):
            halves = array.astype(self._half.dtype)
        owner.scope.add_weight(self.sink.tensor(fresh, self._half.element, halves))
        owner.add_form(name, _FLOAT, name)
        owner.add_form(name, self._half.kind, fresh)
        return fresh

    def _make(
        self,
        node: Node,
        signature: OperatorSignature | None,
        variables: set[str],
        view: _View,
    ) -> None:
        for index, name in enumerate(node.proto.output):
            if not name:
                continue
            formal = signature.output(index) if signature is not None else None
            if formal is None or formal.kind not in variables:
                view.forms[name] = self._own_form(name)
            elif name in self._pinned:
                fresh = self.names.fresh(f"{name}_{_short(self._half.kind)}")
                node.set_output(index, fresh)
                node.insert_after(self.node("Cast", [fresh], name, name, to=TensorProto.FLOAT))
                view.forms[name] = {_FLOAT: name, self._half.kind: fresh}
            else:
                view.forms[name] = {self._half.kind: name}
        if variables:
            self._lowered.append(graphs.label(node.proto))


def _maps(forms: MutableMapping[str, _Forms | None]) -> list[MutableMapping[str, _Forms | None]]:
    return [*forms.maps] if isinstance(forms, ChainMap) else [forms]


def _short(kind: str) -> str:
    return kind.removeprefix("tensor(").removesuffix(")")
