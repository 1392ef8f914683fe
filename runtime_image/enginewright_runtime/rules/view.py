"""A model's graphs, bodies and functions, read once, so that every rule is a short query.

A body sees the graphs around it, a function only itself (docs/IR.md of onnx, "Names Within a Graph").
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    SparseTensorProto,
    TensorProto,
)

from enginewright_runtime.graph.raw.constants import constant_tensor
from enginewright_runtime.graph.raw.graphs import bodies, label
from enginewright_runtime.rules.text import show

Key = tuple[str, str, str]  # of a function: domain, name, overload
_MAX_DEPTH: Final = 16  # nodes through which a constant is traced


def domain_of(name: str) -> str:
    """Return a domain's canonical name: "" for ai.onnx."""
    return "" if name == "ai.onnx" else name


@dataclass(slots=True)
class RawNode:
    """One node, with its names as Python objects."""

    proto: NodeProto
    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scope: "RawScope"
    bodies: list["RawScope"] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Return "name (OpType)" for a message."""
        return label(self.proto, show)

    @property
    def key(self) -> Key:
        """Return the key of the function that the node would call."""
        return (self.domain, self.op, self.proto.overload)

    @property
    def opset(self) -> int | None:
        """Return the version of the node's domain that its graph or function imports."""
        return self.scope.opsets.get(self.domain)

    def is_standard(self, *ops: str) -> bool:
        """Tell whether the node is one of these operators of ai.onnx."""
        return self.domain == "" and self.op in ops

    def attribute(self, name: str) -> AttributeProto | None:
        """Return an attribute; None if the node lacks it."""
        return next((entry for entry in self.proto.attribute if entry.name == name), None)

    def integer(self, name: str) -> int:
        """Return an integer attribute; 0 if the node lacks it."""
        entry = self.attribute(name)
        return int(entry.i) if entry is not None and entry.type == AttributeProto.INT else 0

    def input(self, index: int) -> str:
        """Return the name of an input; "" if it is omitted."""
        return self.inputs[index] if index < len(self.inputs) else ""


@dataclass(slots=True)
class RawScope:
    """A graph, the body of a node, or a function: a scope of names."""

    kind: str  # graph | body | function
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: Sequence[TensorProto]  # initializers
    sparse: Sequence[SparseTensorProto]
    opsets: Mapping[str, int]
    parent: "RawScope | None" = None
    nodes: list[RawNode] = field(default_factory=list)
    initializers: dict[str, TensorProto] = field(default_factory=dict)
    producers: dict[str, RawNode] = field(default_factory=dict)
    given: frozenset[str] = frozenset()  # names of inputs and of sparse initializers

    def defines(self, name: str) -> bool:
        """Tell whether the scope itself defines the name."""
        return name in self.producers or name in self.initializers or name in self.given


class ModelView:
    """All scopes of a model."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self.scopes: list[RawScope] = []
        self.functions: dict[Key, RawScope] = {}
        opsets = _opsets(model.opset_import)
        self.graph = self._graph(model.graph, "graph", opsets, None)
        for function in model.functions:
            key = (domain_of(function.domain), function.name, function.overload)
            self.functions[key] = self._function(function, opsets)

    @cached_property
    def nodes(self) -> list[RawNode]:
        """Return every node, wherever it is."""
        return [node for scope in self.scopes for node in scope.nodes]

    @cached_property
    def overridable(self) -> frozenset[str]:
        """Return initializers that a caller may override, since they are inputs too."""
        return frozenset(self.graph.initializers) & frozenset(self.graph.inputs)

    def is_local(self, node: RawNode) -> bool:
        """Tell whether a function of the model defines the node's operator."""
        return node.key in self.functions

    def constant(self, scope: RawScope, name: str) -> TensorProto | None:
        """Return the constant that a name refers to, through Identity nodes; None if not constant."""
        return self.origin(scope, name, frozenset({"Identity"}))

    def origin(self, scope: RawScope, name: str, through: frozenset[str]) -> TensorProto | None:
        """Return the constant that a name derives from, through these operators' first inputs."""
        here: RawScope | None = scope
        for _ in range(_MAX_DEPTH):
            here = holder(here, name)
            if here is None:
                return None
            if name in here.initializers:
                return here.initializers[name]
            node = here.producers.get(name)
            if node is None:
                return None
            if node.is_standard("Constant"):
                return constant_tensor(node.proto)
            if node.domain != "" or node.op not in through:
                return None
            name = node.input(0)
        return None

    def _graph(
        self, graph: GraphProto, kind: str, opsets: Mapping[str, int], parent: RawScope | None
    ) -> RawScope:
        scope = RawScope(
            kind=kind,
            inputs=tuple(value.name for value in graph.input),
            outputs=tuple(value.name for value in graph.output),
            tensors=graph.initializer,
            sparse=graph.sparse_initializer,
            opsets=opsets,
            parent=parent,
            initializers={tensor.name: tensor for tensor in graph.initializer},
            given=frozenset(value.name for value in graph.input)
            | {sparse.values.name for sparse in graph.sparse_initializer},
        )
        self._fill(scope, graph.node)
        return scope

    def _function(self, function: FunctionProto, opsets: Mapping[str, int]) -> RawScope:
        scope = RawScope(
            kind="function",
            inputs=tuple(function.input),
            outputs=tuple(function.output),
            tensors=(),
            sparse=(),
            opsets={**opsets, **_opsets(function.opset_import)},
            given=frozenset(function.input),
        )
        self._fill(scope, function.node)
        return scope

    def _fill(self, scope: RawScope, nodes: Sequence[NodeProto]) -> None:
        self.scopes.append(scope)
        for proto in nodes:
            node = RawNode(
                proto=proto,
                op=proto.op_type,
                domain=domain_of(proto.domain),
                inputs=tuple(proto.input),
                outputs=tuple(proto.output),
                scope=scope,
            )
            scope.nodes.append(node)
            for name in node.outputs:
                if name:
                    scope.producers.setdefault(name, node)
            for body in bodies(proto):
                node.bodies.append(self._graph(body, "body", scope.opsets, scope))


def constant_tensors(view: ModelView) -> Iterator[tuple[str, TensorProto]]:
    """Yield every constant tensor, weights and attributes, with its name for messages."""
    for scope in view.scopes:
        for tensor in scope.tensors:
            yield show(tensor.name), tensor
        for sparse in scope.sparse:
            yield show(sparse.values.name), sparse.values
            yield show(sparse.values.name), sparse.indices
        for node in scope.nodes:
            yield from _attributes(node)


def _attributes(node: RawNode) -> Iterator[tuple[str, TensorProto]]:
    for entry in node.proto.attribute:
        if entry.type == AttributeProto.TENSOR:
            yield node.label, entry.t
        for tensor in entry.tensors:
            yield node.label, tensor


def holder(scope: RawScope | None, name: str) -> RawScope | None:
    """Return the innermost scope that defines the name."""
    while scope is not None and not scope.defines(name):
        scope = scope.parent
    return scope


def _opsets(imports: Sequence[OperatorSetIdProto]) -> dict[str, int]:
    return {domain_of(entry.domain): int(entry.version) for entry in imports}
