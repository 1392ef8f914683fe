"""Which execution provider runs which node, read from the session that runs them.

ONNX Runtime reports it (its pull request 26781); `get_providers()` says the same whether a provider
runs all nodes or none. A session may be replaced while it serves, by `InferenceSession.run`'s own
fallback or `set_providers`: both make a new inner session inside the old object.
"""

import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import onnxruntime as ort
from enginewright.contract.execution import PlacementFacts

from enginewright_runtime.core.labels import CONTEXT_OP, reported_label
from enginewright_runtime.session.base import CPU_PROVIDER

# ONNX Runtime 1.31 ends the process where their batch (GRU: or sequence) has no elements
_ABORTING_ON_EMPTY: Final = frozenset({"GRU", "LSTM"})


@dataclass(frozen=True)
class SessionPlacement:
    """Which execution provider runs which node, as ONNX Runtime assigned them.

    Counted after constant folding and before fusion, so in nodes of the file less the folded ones.
    """

    provider: str  # the one that was asked for
    nodes: Mapping[str, int]  # provider -> nodes
    elsewhere: tuple[str, ...] = ()  # "name (OpType)" of nodes on another provider
    context_nodes: tuple[str, ...] = ()  # names of the EPContext nodes on the wanted one
    takes_empty: bool = True  # False: an input without elements may end the process

    @property
    def total(self) -> int:
        """Return the number of nodes."""
        return sum(self.nodes.values())

    def facts(self) -> PlacementFacts:
        """Return it as the contract has it."""
        return PlacementFacts(
            nodes=dict(self.nodes), elsewhere=self.elsewhere, context_nodes=self.context_nodes
        )

    @property
    def share(self) -> float:
        """Return the share of nodes on the wanted provider; 1.0 for a model without nodes."""
        return self.nodes.get(self.provider, 0) / self.total if self.total else 1.0


class _Assigned(Protocol):
    """A session, inner or outer."""

    def get_provider_graph_assignment_info(self) -> Sequence[Any]: ...


def read_placement(session: _Assigned, provider: str) -> SessionPlacement:
    """Return the placement of a session that was made with assignment recording on."""
    nodes: Counter[str] = Counter()
    elsewhere: list[str] = []
    context: list[str] = []
    takes_empty = True
    for subgraph in session.get_provider_graph_assignment_info():
        for node in subgraph.get_nodes():
            nodes[subgraph.ep_name] += 1
            if subgraph.ep_name == CPU_PROVIDER and node.op_type in _ABORTING_ON_EMPTY:
                takes_empty = False
            if subgraph.ep_name != provider:
                elsewhere.append(reported_label(node.name, node.op_type))
            elif node.op_type == CONTEXT_OP:
                context.append(node.name)
    return SessionPlacement(provider, dict(nodes), tuple(elsewhere), tuple(context), takes_empty)


@dataclass(frozen=True)
class Running:
    """One inner session, as it was when it was first seen."""

    number: int  # from 1; one more for each replacement seen
    providers: tuple[str, ...]
    placement: SessionPlacement


class LiveSession:
    """What runs inside a session now; for one thread, while others may replace what it reads.

    All is read from the inner session: between two questions the outer one may lose it.
    """

    def __init__(self, session: ort.InferenceSession, placement: SessionPlacement) -> None:
        self._session = session
        self._running = Running(1, tuple(session.get_providers()), placement)
        self._inner: weakref.ref[Any] = weakref.ref(session._sess)  # noqa: SLF001 - no public name

    def read(self) -> Running:
        """Return what runs; while a replacement is being made, what ran before it."""
        inner = self._session._sess  # noqa: SLF001 - as above
        if inner is not None and inner is not self._inner():
            before = self._running
            self._running = Running(
                before.number + 1,
                tuple(inner.get_providers()),
                read_placement(inner, before.placement.provider),
            )
            self._inner = weakref.ref(inner)
        return self._running
