"""Rules on the structure of graphs: size, functions, cycles and undefined values."""

from collections import deque
from collections.abc import Iterator
from typing import Final

from onnx import GraphProto, ModelProto

from enginewright_runtime.graph.raw.graphs import bodies
from enginewright_runtime.graph.raw.order import order
from enginewright_runtime.rules.base import Hit, Subject, hit_on, labels, list_nodes
from enginewright_runtime.rules.text import join_quoted, show
from enginewright_runtime.rules.view import Key, ModelView, RawNode, RawScope, holder

# ONNX Runtime loads 100,000 nodes in 7 s and 380 MB, and some graphs in quadratic time
MAX_NODES: Final = 500_000
MAX_PARTS: Final = 10 * MAX_NODES  # nodes, their attributes and names, and tensors


def oversize(model: ModelProto) -> Hit | None:
    """Find a model with more nodes, or parts of nodes, than any runtime loads, before Python objects are created."""
    nodes, parts = 0, len(model.functions) + _parts(model.graph)
    pending = deque([model.graph.node, *(function.node for function in model.functions)])
    while pending and nodes <= MAX_NODES and parts <= MAX_PARTS:
        some = pending.popleft()
        nodes += len(some)
        for node in some if nodes <= MAX_NODES else ():
            parts += len(node.attribute) + len(node.input) + len(node.output)
            if parts > MAX_PARTS:
                break
            for body in bodies(node):
                parts += _parts(body)
                pending.append(body.node)
    if nodes > MAX_NODES:
        return Hit(f"the model has more than {MAX_NODES} nodes")
    if parts > MAX_PARTS:
        return Hit(f"the model has more than {MAX_PARTS} tensors, attributes and names")
    return None


def _parts(graph: GraphProto) -> int:
    fields = (graph.initializer, graph.sparse_initializer, graph.value_info, graph.input)
    return sum(len(field) for field in fields) + len(graph.output)


def check_inlined_size(subject: Subject) -> Hit | None:
    """Find a model whose functions, once inlined, have more nodes than any runtime loads."""
    if _count_inlined_nodes(subject.view) <= MAX_NODES:
        return None
    return Hit(f"with all functions inlined, the model has more than {MAX_NODES} nodes")


def recursive_functions(subject: Subject) -> Hit | None:
    """Find functions that call themselves."""
    if (functions := _recursion(subject.view)) is None:
        return None
    calls = " > ".join(show(name) for _, name, _ in functions)
    return Hit(f"a function of the model calls itself: {calls}")


def cycles(subject: Subject) -> Hit | None:
    """Find nodes that depend on each other in a cycle."""
    for scope in subject.view.scopes:
        if hit := hit_on(_cycle(scope), "these nodes form a cycle"):
            return hit
    return None


def find_undefined_values(subject: Subject) -> Hit | None:
    """Find names that are read and defined nowhere."""
    missing: list[str] = []
    readers: list[RawNode] = []
    for scope in subject.view.scopes:
        for node in scope.nodes:
            if undefined := [name for name in node.inputs if name and not holder(scope, name)]:
                missing += undefined
                readers.append(node)
        missing += [name for name in scope.outputs if name and not scope.defines(name)]
    if not missing:
        return None
    by = f" by {list_nodes(readers)}" if readers else ""
    return Hit(
        f"these values are read{by} and defined nowhere: {join_quoted(missing)}", labels(readers)
    )


def no_inputs(subject: Subject) -> Hit | None:
    """Find a model without inputs."""
    return None if subject.inputs else Hit("the model has no inputs, so it cannot be served")


def _nodes_within(scope: RawScope) -> Iterator[RawNode]:
    for node in scope.nodes:
        yield node
        for body in node.bodies:
            yield from _nodes_within(body)


def _recursion(view: ModelView) -> list[Key] | None:
    calls = {
        key: [node.key for node in _nodes_within(scope) if node.key in view.functions]
        for key, scope in view.functions.items()
    }
    done: set[Key] = set()
    for start, called_first in calls.items():
        path = {start: None}
        pending = [(start, iter(called_first))] if start not in done else []
        while pending:
            key, rest = pending[-1]
            called = next(rest, None)
            if called is None:
                done.add(key)
                path.popitem()
                pending.pop()
            elif called in path:
                calling = list(path)
                return [*calling[calling.index(called) :], called]
            elif called not in done:
                path[called] = None
                pending.append((called, iter(calls[called])))
    return None


def _count_inlined_nodes(view: ModelView) -> int:
    if not view.functions or _recursion(view) is not None:
        return sum(len(scope.nodes) for scope in view.scopes)
    sizes: dict[Key, int] = {}
    pending = list(view.functions)
    while pending:
        key = pending[-1]
        inside = list(_nodes_within(view.functions[key]))
        missing = {node.key for node in inside if node.key in view.functions} - sizes.keys()
        if missing:
            pending += missing
            continue
        sizes[key] = min(sum(sizes.get(node.key, 1) for node in inside), MAX_NODES + 1)
        pending.pop()
    return sum(sizes.get(node.key, 1) for node in _nodes_within(view.graph))


def _cycle(scope: RawScope) -> list[RawNode]:
    index = {id(node): number for number, node in enumerate(scope.nodes)}
    needs = [
        [index[id(scope.producers[name])] for name in _read_by(node) if name in scope.producers]
        for node in scope.nodes
    ]
    unsorted = set(range(len(needs))) - set(order(needs))
    if not unsorted:
        return []
    path: dict[int, None] = {}
    number = min(unsorted)
    while number not in path:  # follow dependencies until a node repeats
        path[number] = None
        number = next(needed for needed in needs[number] if needed in unsorted)
    steps = list(path)
    return [scope.nodes[step] for step in reversed(steps[steps.index(number) :])]


def _read_by(node: RawNode) -> Iterator[str]:
    yield from (name for name in node.inputs if name)
    for body in node.bodies:
        for inner in body.nodes:
            yield from (name for name in _read_by(inner) if not body.defines(name))
