"""Converts the nodes of a model from one opset to another, or expands operators into others.

Downwards every node is kept, rewritten for the older version of its operator, or replaced by its
operator's function body, until no newer operator is left. Upwards, ONNX's version converter
converts the nodes whose operator has changed. Native code: for child processes.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from onnx import (
    FunctionProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    helper,
    inliner,
    numpy_helper,
    version_converter,
)

from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.constants import Constants
from enginewright_runtime.graph.raw.schemas import (
    STANDARD,
    Fit,
    Schema,
    fit,
    has_required,
    is_function,
    is_kept,
    schema_of,
)
from enginewright_runtime.graph.scoped.element_types import format_type
from enginewright_runtime.graph.scoped.function_bodies import (
    inline_functions,
    inline_functions_with,
)
from enginewright_runtime.graph.scoped.inference import infer
from enginewright_runtime.graph.scoped.propagation import (
    Array,
    as_tensors,
    find_constant_values,
    infer_fully,
)
from enginewright_runtime.graph.scoped.scopes import Names, Scope, rename_apart
from enginewright_runtime.graph.scoped.splicing import ReplacementError, alone, replacement
from enginewright_runtime.prepare.convert.rewriting import InexpressibleError, older_form

_MAX_DEPTH: Final = 8  # of nested function bodies: ONNX's own have three levels


class TranslationError(ValueError):
    """Names every node that could not be converted or expanded: label to reason."""

    def __init__(self, refused: Mapping[str, str]) -> None:
        self.refused = dict(refused)
        super().__init__("; ".join(f"{label}: {why}" for label, why in refused.items()))


@dataclass
class Done:
    """The changes, by the labels of the source's nodes."""

    expanded: dict[str, str] = field(default_factory=dict)  # to the operator's name
    rewritten: list[str] = field(default_factory=list)
    converted: list[str] = field(default_factory=list)


def translate(model: ModelProto, target: int) -> Done:
    """Convert a model to the opset `target`, in place; raises TranslationError."""
    opset = graphs.default_opset(model) or target
    if target < opset and any(_newest(function) > target for function in model.functions):
        # values inside a function have no types, and functions of older opsets are valid
        inline_functions(model)
    return _Translator(model, opset, target, frozenset()).run()


def expand(model: ModelProto, operators: Collection[str]) -> Done:
    """Replace every node of these operators by its operator's body, in place; raises TranslationError."""
    inline_functions_with(model, operators)
    opset = graphs.default_opset(model) or 1
    return _Translator(model, opset, opset, frozenset(operators)).run()


def _newest(function: FunctionProto) -> int:
    return max(
        (item.version for item in function.opset_import if item.domain in STANDARD), default=0
    )


class _Translator:
    def __init__(
        self, model: ModelProto, opset: int, target: int, operators: frozenset[str]
    ) -> None:
        rename_apart(model)
        self._model = model
        self._opset = opset
        self._target = target
        self._operators = operators
        self._functions = {(function.domain, function.name) for function in model.functions}
        self._types: dict[str, TypeProto] = {}
        self._kinds: dict[str, str] = {}
        self._names = Names(model)
        self._done = Done()
        self._refused: dict[str, str] = {}

    def run(self) -> Done:
        main = Scope(self._model.graph)
        main.sort()
        self._types = infer(self._model)
        self._kinds = _kinds(self._types)
        self._scope(main)
        if self._refused:
            raise TranslationError(self._refused)
        for entry in self._model.opset_import:
            if entry.domain in STANDARD:
                entry.version = self._target
        return self._done

    def _scope(self, scope: Scope, outer: Constants | None = None) -> None:
        constants = Constants(scope.graph, outer=outer, replaceable=False)
        tensors = constants.small()
        for node in scope.nodes:
            for body in node.bodies:
                self._scope(body, constants)
            if (nodes := self._node(node.proto, tensors)) != [node.proto]:
                node.replace(nodes)
        scope.write()

    def _node(self, node: NodeProto, tensors: Mapping[str, TensorProto]) -> list[NodeProto]:
        if node.domain not in STANDARD or (node.domain, node.op_type) in self._functions:
            return [node]
        try:
            if node.op_type in self._operators:
                nodes = self._body(node, self._opset, tensors, _MAX_DEPTH)
                self._done.expanded[graphs.label(node)] = node.op_type
                return nodes
            if self._target > self._opset:
                return self._newer(node, tensors)
            return self._older(node, self._opset, tensors, _MAX_DEPTH, source=node)
        except (InexpressibleError, ReplacementError) as error:
            self._refused[graphs.label(node)] = str(error)
            return [node]

    def _newer(self, node: NodeProto, tensors: Mapping[str, TensorProto]) -> list[NodeProto]:
        if graphs.has_bodies(node) or is_kept(node, self._opset, self._target, self._kinds):
            return [node]
        model = alone(node, {"": self._opset}, self._types, _select_inputs(node, tensors))
        nodes = replacement(
            node,
            model,
            lambda small: version_converter.convert_version(small, self._target),
            self._names,
        )
        self._done.converted.append(graphs.label(node))
        return nodes

    def _older(
        self,
        node: NodeProto,
        opset: int,
        tensors: Mapping[str, TensorProto],
        depth: int,
        *,
        source: NodeProto,
    ) -> list[NodeProto]:
        """Return a node of `opset` converted to the target; `source` is the node it replaces."""
        match fit(node, opset, self._target, self._kinds):
            case Fit.SAME:
                return [node]
            case Fit.REWRITE:
                older = older_form(node, opset, self._target, tensors, self._types)
                if node is source:
                    self._done.rewritten.append(graphs.label(source))
                return [older]
            case Fit.NONE:
                if not is_function(node.op_type, "", opset):
                    body = "" if node is source else "its operator's body has "
                    raise InexpressibleError(
                        f"{body}{node.op_type}, which has no equivalent in opset {self._target}"
                    )
                nodes = self._body(node, opset, tensors, depth)
                self._done.expanded[graphs.label(source)] = source.op_type
                return nodes

    def _body(
        self, node: NodeProto, opset: int, tensors: Mapping[str, TensorProto], depth: int
    ) -> list[NodeProto]:
        schema = schema_of(node, opset)
        if depth == 0 or schema is None:
            raise InexpressibleError(f"the bodies of {node.op_type} are nested too deeply")
        # the oldest form of the body, which is the closest to an older target
        version = schema.since_version if self._target < opset else opset
        explicit = _with_defaults(node, schema)
        # without constants: the inliner needs only the types of inputs
        small = alone(explicit, {"": version}, self._types, {})
        nodes = replacement(explicit, small, lambda model: _inline(model, version), self._names)
        small = alone(node, {"": version}, self._types, _select_inputs(node, tensors))
        del small.graph.node[:]
        small.graph.node.extend(nodes)
        scope = Scope(small.graph)
        scope.sort()
        inner = infer_fully(small, {})
        within = find_constant_values(small.graph, inner, version)
        _fold(scope, within, set(node.output))
        if self._target >= opset:
            return list(small.graph.node)
        self._types |= {name: kind for name, kind in inner.items() if name not in self._types}
        self._kinds |= _kinds(inner)
        converted: list[NodeProto] = []
        for item in small.graph.node:
            converted += self._older(item, version, as_tensors(within), depth - 1, source=node)
        return converted


def _inline(model: ModelProto, version: int) -> ModelProto:
    operator = model.graph.node[0].op_type
    inlined = inliner.inline_selected_functions(
        model, [("", operator)], inline_schema_functions=True
    )
    for node in inlined.graph.node:
        if node.op_type == operator:
            raise ReplacementError(f"ONNX has no body of {operator} for inputs of these types")
        schema = schema_of(node, version)
        if schema is not None and not has_required(node, schema):
            raise ReplacementError(f"ONNX's body of {operator} needs an input that the node omits")
    return inlined


def _with_defaults(node: NodeProto, schema: Schema) -> NodeProto:
    """Return a copy with explicit defaults: the inliner omits them in bodies (onnx 1.23)."""
    copy = graphs.copy_of(node)
    given = {entry.name for entry in node.attribute}
    copy.attribute.extend(
        formal.default_value
        for name, formal in schema.attributes.items()
        if name not in given and formal.default_value.name
    )
    return copy


def _fold(scope: Scope, values: Mapping[str, Array], outputs: set[str]) -> None:
    """Turn known values in a body into constants: backends refuse computed axes."""
    for node in scope.nodes:
        made = node.proto.output[0]
        if len(node.proto.output) == 1 and made in values and made not in outputs:
            value = numpy_helper.from_array(values[made])
            name = node.proto.name
            node.replace([helper.make_node("Constant", [], [made], name=name, value=value)])
    scope.remove_unused()


def _select_inputs(node: NodeProto, tensors: Mapping[str, TensorProto]) -> dict[str, TensorProto]:
    return {name: tensors[name] for name in node.input if name in tensors}


def _kinds(types: Mapping[str, TypeProto]) -> dict[str, str]:
    kinds = {name: format_type(kind) for name, kind in types.items()}
    return {name: kind for name, kind in kinds.items() if kind}
