"""Which node is the first to drift, found by looking at few tensors. Pure, but for the `probe`.

Two models are compared at cuts through the graph: the tensors that are made before a cut and read
after it. What drifts before a cut and shows in the output goes through one of them, so cuts, unlike
single tensors of a graph with branches, can be halved. Looking at all tensors at once would need the
memory of all of them, which a run never does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from onnx import GraphProto, NodeProto

from enginewright_runtime.graph.scoped.scopes import Scope

_MOST_EXCLUDED: Final = 3  # tensors of equal names that turned out to be something else
_MOST_STEPS: Final = 16  # of the walk from a drifting tensor to where its drift comes from

# Takes tensors, and returns those that drift, with text that says how.
Probe = Callable[[Sequence[str]], Mapping[str, str]]


@dataclass(frozen=True)
class Life:
    """From the position in an order of nodes that makes a tensor to the last that reads it."""

    tensor: str
    made: int
    last_read: int


@dataclass(frozen=True)
class Drifting:
    """A node, and the output of it that drifts."""

    node: int  # its index in the graph
    tensor: str
    description: str  # how it drifts


class Ancestry:
    """The nodes of a graph that one of its outputs is made of, in an order in which they can run."""

    def __init__(self, graph: GraphProto, output: str) -> None:
        self.nodes: Sequence[NodeProto] = graph.node
        self._output = output
        scope = Scope(graph)
        self._makers = {
            value.name: index for index, node in enumerate(scope.nodes) for value in node.makes()
        }
        self._reads = [{value.name for value in node.reads()} for node in scope.nodes]
        found = self._ancestors()
        self.order = [index for index in scope.order() or () if index in found]
        self.lives = self._lives()

    def _ancestors(self) -> set[int]:
        found: set[int] = set()
        waiting = [self._output]
        while waiting:
            maker = self._makers.get(waiting.pop())
            if maker is not None and maker not in found:
                found.add(maker)
                waiting += self._reads[maker]
        return found

    def _lives(self) -> list[Life]:
        """Return the lives of the tensors that are read, as they are made."""
        last = {
            name: position
            for position, index in enumerate(self.order)
            for name in self._reads[index]
        }
        last[self._output] = len(self.order)
        return [
            Life(name, position, last[name])
            for position, index in enumerate(self.order)
            for name in self.nodes[index].output
            if name in last
        ]

    def maker(self, tensor: str) -> int | None:
        """Return the node that makes a tensor; None: it is an input or a weight."""
        return self._makers.get(tensor)

    def sources(self, tensor: str) -> list[str]:
        """Return the tensors that the maker of `tensor` reads and that nodes make."""
        maker = self._makers.get(tensor)
        reads = self._reads[maker] if maker is not None else ()
        return sorted(name for name in reads if name in self._makers)


def first_drifting(
    graph: GraphProto, output: str, observable: frozenset[str], probe: Probe
) -> Drifting | None:
    """Return the first node whose output drifts; None: it cannot be determined.

    Args:
        graph: of the model that is right.
        output: of the graph, which drifts.
        observable: tensors that both models have.
        probe: asked about log2 of the number of nodes times, of the tensors of one cut each.
    """
    ancestry = Ancestry(graph, output)
    search = _Search(ancestry, observable, probe)
    for _ in range(_MOST_EXCLUDED + 1):
        found = search.run()
        if found is None or search.is_confirmed(found):
            return found
        # it drifts and what is made of it does not: the name means something else in the other model
        search.excluded.add(found.tensor)
    return None


@dataclass
class _Search:
    ancestry: Ancestry
    observable: frozenset[str]
    probe: Probe
    excluded: set[str] = field(default_factory=set)
    known: dict[str, str | None] = field(
        default_factory=dict
    )  # how tensors drift; None: they do not

    @cached_property
    def lives(self) -> list[Life]:
        """Of the tensors that both models have."""
        return [life for life in self.ancestry.lives if life.tensor in self.observable]

    def run(self) -> Drifting | None:
        drifting: str | None = None
        low, high = -1, len(self.ancestry.order) - 1
        while high - low > 1:
            position = self._observable_cut(low, high)
            if position is None:
                break
            found = self._drifting(self._cut(position))
            if found:
                high, drifting = position, found[0]
            else:
                low = position
        if drifting is None:
            last = self._cut(len(self.ancestry.order) - 1)
            found = self._drifting(last)
            if not found:
                return None
            drifting = found[0]
        return self._walk_up(drifting)

    def _observable_cut(self, low: int, high: int) -> int | None:
        """Return a position between, as near to the middle as can be, whose cut can be looked at."""
        middle = (low + high) // 2
        positions = sorted(range(low + 1, high), key=lambda each: abs(each - middle))
        return next((each for each in positions if self._cut(each)), None)

    def _cut(self, position: int) -> list[str]:
        """Return the tensors that nodes up to `position` make, later ones read and both models have."""
        return [
            life.tensor
            for life in self.lives
            if life.made <= position < life.last_read and life.tensor not in self.excluded
        ]

    def _is_observable(self, name: str) -> bool:
        return name in self.observable and name not in self.excluded

    def _drifting(self, tensors: Sequence[str]) -> list[str]:
        unknown = [name for name in tensors if name not in self.known]
        if unknown:
            drifting = self.probe(unknown)
            self.known |= {name: drifting.get(name) for name in unknown}
        return [name for name in tensors if self.known[name] is not None]

    def _walk_up(self, tensor: str) -> Drifting | None:
        """Go to where the drift of `tensor` comes from: cuts see only the tensors of both models."""
        for _ in range(_MOST_STEPS):
            sources = [name for name in self.ancestry.sources(tensor) if self._is_observable(name)]
            found = self._drifting(sources)
            if not found:
                break
            tensor = found[0]
        node, description = self.ancestry.maker(tensor), self.known[tensor]
        return None if node is None or description is None else Drifting(node, tensor, description)

    def is_confirmed(self, found: Drifting) -> bool:
        """Tell whether the next cut without the tensor drifts too."""
        life = next(each for each in self.lives if each.tensor == found.tensor)
        for position in range(life.last_read, len(self.ancestry.order)):
            if cut := self._cut(position):
                return bool(self._drifting(cut))
        return True  # it is the output itself, or nothing after it can be looked at
