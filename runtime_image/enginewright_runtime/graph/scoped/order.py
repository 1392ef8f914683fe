"""What nodes read, and an order in which each comes after what it reads."""

import heapq
from collections import Counter
from collections.abc import Sequence

from onnx import GraphProto, NodeProto

from enginewright_runtime.graph.raw.graphs import bodies, defined, replace_nodes


def uses(node: NodeProto) -> set[str]:
    """Return the values that a node reads, those that its bodies take from outside too."""
    found = {name for name in node.input if name}
    for body in bodies(node):
        found |= _free(body)
    return found


def _free(graph: GraphProto) -> set[str]:
    found = {value.name for value in graph.output}
    for node in graph.node:
        found |= uses(node)
    return found - {*defined(graph), ""}


def readers_of(graph: GraphProto) -> dict[str, list[NodeProto | None]]:
    """Return who reads each value of a graph; None stands for the caller, who gets the outputs."""
    found: dict[str, list[NodeProto | None]] = {}
    for node in graph.node:
        for name in uses(node):
            found.setdefault(name, []).append(node)
    for value in graph.output:
        found.setdefault(value.name, []).append(None)
    return found


def order(nodes: Sequence[NodeProto]) -> list[int] | None:
    """Return the nodes' indices so that each comes after what it reads; None for a cycle.

    Stable: of those that could come next, the first does.
    """
    makers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    readers: dict[int, list[int]] = {}
    waiting: Counter[int] = Counter()
    for index, node in enumerate(nodes):
        for maker in {makers[name] for name in uses(node) if name in makers}:
            readers.setdefault(maker, []).append(index)
            waiting[index] += 1
    ready = [index for index in range(len(nodes)) if not waiting[index]]
    found = []
    while ready:
        index = heapq.heappop(ready)
        found.append(index)
        for reader in readers.get(index, []):
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    return found if len(found) == len(nodes) else None


def sort(graph: GraphProto) -> None:
    """Put every node after those that it reads, in place: ONNX Runtime loads graphs in any order."""
    for node in graph.node:
        for body in bodies(node):
            sort(body)
    found = order(graph.node)
    if found is not None and found != list(range(len(graph.node))):
        replace_nodes(graph, [graph.node[index] for index in found])
