"""Finds the first node that drifts by comparing few tensors. Pure except for the `probe`.

Two models are compared at cuts through the graph: the tensors that are produced before a cut and
read after it. Drift that arises before a cut and reaches the output passes through one of them, so
cuts can be bisected, unlike single tensors of a graph with branches.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from onnx import GraphProto, NodeProto

from enginewright_runtime.graph.scoped.scopes import Scope

_MOST_EXCLUDED: Final = 3  # tensors with equal names but different meanings
_MOST_STEPS: Final = 16  # from a drifting tensor to the origin of its drift

# Takes tensors and returns those that drift, with a description.
Probe = Callable[[Sequence[str]], Mapping[str, str]]


@dataclass(frozen=True)
class LiveRange:
    """The positions, in an order of nodes, of a tensor's producer and of its last consumer."""

    tensor: str
    produced: int
    last_read: int


@dataclass(frozen=True)
class Drifting:
    """A node, and the output of it that drifts."""

    node: int  # its index in the graph
    tensor: str
    description: str  # how it drifts


class Ancestry:
    """The nodes that one output of a graph depends on, in topological order."""

    def __init__(self, graph: GraphProto, output: str) -> None:
        self.nodes: Sequence[NodeProto] = graph.node
        self._output = output
        scope = Scope(graph)
        self._producers = {
            value.name: index for index, node in enumerate(scope.nodes) for value in node.produces()
        }
        self._reads = [{value.name for value in node.consumes()} for node in scope.nodes]
        ancestors = self._ancestors()
        self.order = [index for index in scope.order() or () if index in ancestors]
        self.live_ranges = self._live_ranges()

    def _ancestors(self) -> set[int]:
        ancestors: set[int] = set()
        waiting = [self._output]
        while waiting:
            producer = self._producers.get(waiting.pop())
            if producer is not None and producer not in ancestors:
                ancestors.add(producer)
                waiting += self._reads[producer]
        return ancestors

    def _live_ranges(self) -> list[LiveRange]:
        last = {
            name: position
            for position, index in enumerate(self.order)
            for name in self._reads[index]
        }
        last[self._output] = len(self.order)
        return [
            LiveRange(name, position, last[name])
            for position, index in enumerate(self.order)
            for name in self.nodes[index].output
            if name in last
        ]

    def producer(self, tensor: str) -> int | None:
        """Return the node that produces a tensor, unless it is an input or a weight."""
        return self._producers.get(tensor)

    def sources(self, tensor: str) -> list[str]:
        """Return the inputs of the producer of `tensor` that nodes produce."""
        producer = self._producers.get(tensor)
        reads = self._reads[producer] if producer is not None else ()
        return sorted(name for name in reads if name in self._producers)


def first_drifting(
    graph: GraphProto, output: str, observable: frozenset[str], probe: Probe
) -> Drifting | None:
    """Return the first node whose output drifts, given an `output` of the reference that does.

    `probe` is called about log2(number of nodes) times, with `observable` tensors that both models
    have.
    """
    ancestry = Ancestry(graph, output)
    search = _Search(ancestry, observable, probe)
    for _ in range(_MOST_EXCLUDED + 1):
        drifting = search.run()
        if drifting is None or search.is_confirmed(drifting):
            return drifting
        # nothing computed from it drifts: the name has another meaning in the other model
        search.excluded.add(drifting.tensor)
    return None


@dataclass
class _Search:
    ancestry: Ancestry
    observable: frozenset[str]
    probe: Probe
    excluded: set[str] = field(default_factory=set)
    drifts: dict[str, str | None] = field(default_factory=dict)  # how tensors drift, if they do

    @cached_property
    def live_ranges(self) -> list[LiveRange]:
        """Of the tensors that both models have."""
        return [
            live_range_
            for live_range_ in self.ancestry.live_ranges
            if live_range_.tensor in self.observable
        ]

    def run(self) -> Drifting | None:
        drifting: str | None = None
        low, high = -1, len(self.ancestry.order) - 1
        while high - low > 1:
            position = self._observable_cut(low, high)
            if position is None:
                break
            if tensors := self._drifting(self._cut(position)):
                high, drifting = position, tensors[0]
            else:
                low = position
        if drifting is None:
            last = self._drifting(self._cut(len(self.ancestry.order) - 1))
            drifting = last[0] if last else None
        return None if drifting is None else self._walk_up(drifting)

    def _observable_cut(self, low: int, high: int) -> int | None:
        middle = (low + high) // 2
        positions = sorted(range(low + 1, high), key=lambda index: abs(index - middle))
        return next((position for position in positions if self._cut(position)), None)

    def _cut(self, position: int) -> list[str]:
        return [
            live_range_.tensor
            for live_range_ in self.live_ranges
            if live_range_.produced <= position < live_range_.last_read
            and live_range_.tensor not in self.excluded
        ]

    def _drifting(self, tensors: Sequence[str]) -> list[str]:
        unknown = [name for name in tensors if name not in self.drifts]
        if unknown:
            drifting = self.probe(unknown)
            self.drifts |= {name: drifting.get(name) for name in unknown}
        return [name for name in tensors if self.drifts[name] is not None]

    def _walk_up(self, tensor: str) -> Drifting | None:
        for _ in range(_MOST_STEPS):
            sources = [
                name
                for name in self.ancestry.sources(tensor)
                if name in self.observable and name not in self.excluded
            ]
            if not (drifting := self._drifting(sources)):
                break
            tensor = drifting[0]
        node, description = self.ancestry.producer(tensor), self.drifts[tensor]
        return None if node is None or description is None else Drifting(node, tensor, description)

    def is_confirmed(self, drifting: Drifting) -> bool:
        live_range = next(
            live_range_ for live_range_ in self.live_ranges if live_range_.tensor == drifting.tensor
        )
        for position in range(live_range.last_read, len(self.ancestry.order)):
            if cut := self._cut(position):
                return bool(self._drifting(cut))
        return True  # it is the output itself, or no later tensor is observable
