"""Rules on names: empty, duplicate, or unsafe for terminals, clients or the resource."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from enginewright_contract.base import TEXT_LENGTH
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from enginewright_runtime.graph.raw.graphs import bodies
from enginewright_runtime.rules.base import Hit, Subject, hit_of, hit_on
from enginewright_runtime.rules.text import (
    LONGEST_NAME,
    has_control_characters,
    join_quoted,
    quote,
    show,
)
from enginewright_runtime.rules.view import RawNode, RawScope

_FIRST_WITH_CONSTANTS: Final = 4  # IR version since which an initializer need not be an input
_SINGLE: Final = "Single"  # option of a schema's required parameters


def undecodable(model: ModelProto) -> Hit | None:
    """Find names that are not UTF-8; protobuf returns them as bytes, so they are checked first."""
    invalid = next((name for name in _texts(model) if not isinstance(name, str)), None)
    if invalid is None:
        return None
    return Hit(f"names are not UTF-8: {invalid!r:.{LONGEST_NAME}}")


def _texts(model: ModelProto) -> Iterator[str | bytes]:
    for imported in model.opset_import:
        yield imported.domain
    yield from _texts_of(model.graph)
    for function in model.functions:
        yield from (function.name, function.domain, function.overload)
        yield from (*function.input, *function.output)
        for imported in function.opset_import:
            yield imported.domain
        yield from _texts_of_nodes(function.node)


def _texts_of(graph: GraphProto) -> Iterator[str | bytes]:
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        for dimension in value.type.tensor_type.shape.dim:
            yield dimension.dim_param
    for tensor in graph.initializer:
        yield from _texts_of_tensor(tensor)
    for sparse in graph.sparse_initializer:
        yield from _texts_of_tensor(sparse.values)
        yield from _texts_of_tensor(sparse.indices)
    yield from _texts_of_nodes(graph.node)


def _texts_of_nodes(nodes: Iterable[NodeProto]) -> Iterator[str | bytes]:
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, node.overload)
        yield from node.input
        yield from node.output
        for entry in node.attribute:
            yield entry.name
            if entry.HasField("t"):
                yield from _texts_of_tensor(entry.t)
            for tensor in entry.tensors:
                yield from _texts_of_tensor(tensor)
        for body in bodies(node):
            yield from _texts_of(body)


def _texts_of_tensor(tensor: TensorProto) -> Iterator[str | bytes]:
    yield tensor.name
    for entry in tensor.external_data:
        yield entry.key
        yield entry.value


def duplicate_node_names(subject: Subject) -> Hit | None:
    """Find nodes of one graph with the same name, except Constants, which ONNX Runtime turns into initializers."""
    duplicates: list[RawNode] = []
    for scope in subject.view.scopes:
        if scope.kind == "function":
            continue
        nodes = [n for n in scope.nodes if n.proto.name and not n.is_standard("Constant")]
        counts = Counter(node.proto.name for node in nodes)
        if len(counts) < len(nodes):
            duplicates += [node for node in nodes if counts[node.proto.name] > 1]
    return hit_on(duplicates, "several nodes of one graph have the same name")


def duplicate_values(subject: Subject) -> Hit | None:
    """Find names that more than one input or node of a graph defines."""
    twice = [
        name
        for scope in subject.view.scopes
        for name in [*_find_duplicates(scope), *_find_shadowing(scope)]
    ]
    return hit_of(quote(dict.fromkeys(twice)), "these values are defined more than once")


def duplicate_initializers(subject: Subject) -> Hit | None:
    """Find initializers of the same name."""
    twice = [
        name
        for scope in subject.view.scopes
        if len(scope.initializers) < len(scope.tensors)
        for name in _find_repeated(tensor.name for tensor in scope.tensors)
    ]
    return hit_of(
        quote(twice), "several initializers have the same name, and ONNX Runtime uses the last"
    )


def duplicate_outputs(subject: Subject) -> Hit | None:
    """Find outputs that are listed twice."""
    twice = quote(_find_repeated(subject.view.graph.outputs))
    return hit_of(twice, "the model lists outputs more than once")


def overridable_initializers(subject: Subject) -> Hit | None:
    """Find weights that a caller could override, so that no runtime may fold them."""
    names = subject.view.overridable
    if not names or subject.view.model.ir_version < _FIRST_WITH_CONSTANTS:
        return None
    return Hit(
        f"{len(names)} of {len(subject.view.graph.initializers)} initializers are inputs too"
        f" ({join_quoted(sorted(names))}), so no runtime may treat them as constants"
    )


def empty_names(subject: Subject) -> Hit | None:
    """Find values without a name where one is required."""
    graph = subject.view.graph
    if "" in graph.inputs or "" in graph.outputs:
        kind = "input" if "" in graph.inputs else "output"
        return Hit(f"an {kind} of the model has no name")
    nodes = [
        node
        for node in ([] if subject.converted else subject.view.nodes)
        if ("" in node.inputs or "" in node.outputs) and _omits_required(subject, node)
    ]
    return hit_on(nodes, "these nodes omit required inputs or outputs")


def control_characters(subject: Subject) -> Hit | None:
    """Find names with characters that terminals or logs would not show as they are."""
    names = dict.fromkeys(name for name in _all_names(subject) if has_control_characters(name))
    return hit_of(quote(names), "names contain control characters")


def long_names(subject: Subject) -> Hit | None:
    """Find inputs and outputs whose names are too long for the resource."""
    name = next((name for name in _interface(subject) if len(name) > TEXT_LENGTH), None)
    if name is None:
        return None
    return Hit(
        f"spec.shapes and spec.parity accept names of up to {TEXT_LENGTH} characters:"
        f" {show(name)} has {len(name)}"
    )


def names_differ_in_case(subject: Subject) -> Hit | None:
    """Find inputs, or outputs, whose names differ only in case."""
    for names in ([spec.name for spec in subject.inputs], subject.view.graph.outputs):
        groups: dict[str, set[str]] = defaultdict(set)
        for name in names:
            groups[name.casefold()].add(name)
        for group in groups.values():
            if len(group) > 1:
                return Hit(f"names differ only in case: {join_quoted(sorted(group))}")
    return None


def _find_duplicates(scope: RawScope) -> list[str]:
    produced = [name for node in scope.nodes for name in node.outputs if name]
    fed = {*scope.inputs, *scope.initializers}
    return [
        *_find_repeated(name for name in scope.inputs if name),
        *_find_repeated(produced),
        *(name for name in produced if name in fed),
    ]


def _find_shadowing(scope: RawScope) -> Iterator[str]:
    before = {name for name in (*scope.inputs, *scope.initializers) if name}
    for node in scope.nodes:
        for body in node.bodies:
            for inner in body.nodes:
                yield from before.intersection(inner.outputs) - body.given
        before.update(name for name in node.outputs if name)


def _omits_required(subject: Subject, node: RawNode) -> bool:
    if subject.view.is_local(node) or node.opset is None:
        return False
    schema = subject.registry.find(node.domain, node.op, node.opset)
    if schema is None:
        return False
    return any(
        name == "" and index < len(parameters) and parameters[index].option.name == _SINGLE
        for names, parameters in ((node.inputs, schema.inputs), (node.outputs, schema.outputs))
        for index, name in enumerate(names)
    )


def _interface(subject: Subject) -> list[str]:
    return [*(spec.name for spec in subject.inputs), *subject.view.graph.outputs]


def _all_names(subject: Subject) -> Iterator[str]:
    """Yield every name that a message may show: of nodes, operators, inputs and outputs."""
    yield from _interface(subject)
    for node in subject.view.nodes:
        yield node.proto.name
        yield node.op
        yield node.domain
        yield from node.outputs  # the label of an unnamed node is its first output
    for scope in subject.view.scopes:
        yield from scope.initializers


def _find_repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
