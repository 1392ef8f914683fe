"""Which execution provider runs which node, as ONNX Runtime reports it (its pull request 26781).

The fallback of `InferenceSession.run` and `set_providers` replace the inner session of the same object.
"""

import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import onnxruntime as ort
from enginewright_contract.execution import PlacementFacts

from enginewright_runtime.core.labels import CONTEXT_OP, format_label
from enginewright_runtime.session.base import CPU_PROVIDER

# ONNX Runtime 1.31 aborts the process if their batch (GRU: or sequence) has no elements
_ABORTING_ON_EMPTY: Final = frozenset({"GRU", "LSTM"})
# how long they run, or how large their outputs are, may depend on values instead of sizes
_BY_VALUES: Final = frozenset(
    {"CenterCropPad", "ConstantOfShape", "Expand", "Loop", "OneHot", "Pad", "Range", "Resize"}
    | {"Scan", "SequenceMap", "Tile", "Upsample"}
)
# scale their whole input by its range: all rows of a batch alike. Operators that are given their scale, as QAttention
# is, do so only after a DynamicQuantizeLinear; MatMulNBits scales each row for itself
_BY_RANGE: Final = frozenset(
    {"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"}
)


@dataclass(frozen=True)
class SessionPlacement:
    """Which execution provider runs which node, after constant folding and before fusion."""

    provider: str  # the requested one
    nodes: Mapping[str, int]  # provider -> nodes
    elsewhere: tuple[str, ...] = ()  # "name (OpType)" of nodes on another provider
    context_nodes: tuple[str, ...] = ()  # names of the EPContext nodes on the requested one
    accepts_empty: bool = True  # otherwise an input without elements may abort the process
    by_sizes: bool = False  # the time of a run depends on the sizes of the inputs only
    by_range: str = ""  # "name (OpType)" of the first node that quantizes by the range of all rows

    @property
    def total(self) -> int:
        """The number of nodes."""
        return sum(self.nodes.values())

    def facts(self) -> PlacementFacts:
        """Return the contract's form."""
        return PlacementFacts(
            nodes=dict(self.nodes), elsewhere=self.elsewhere, context_nodes=self.context_nodes
        )

    @property
    def share(self) -> float:
        """The share of nodes on the requested provider; 1.0 for a model without nodes."""
        return self.nodes.get(self.provider, 0) / self.total if self.total else 1.0


class _Assigned(Protocol):
    """A session, inner or outer."""

    def get_provider_graph_assignment_info(self) -> Sequence[Any]: ...


def read_placement(session: _Assigned, provider: str) -> SessionPlacement:
    """Return the placement of a session that was created with `RECORD_ASSIGNMENT`."""
    nodes: Counter[str] = Counter()
    elsewhere: list[str] = []
    context: list[str] = []
    accepts_empty = by_sizes = True
    by_range = ""
    for subgraph in session.get_provider_graph_assignment_info():
        for node in subgraph.get_nodes():
            nodes[subgraph.ep_name] += 1
            if subgraph.ep_name == CPU_PROVIDER and node.op_type in _ABORTING_ON_EMPTY:
                accepts_empty = False
            by_sizes = by_sizes and node.domain == "" and node.op_type not in _BY_VALUES
            if not by_range and node.op_type in _BY_RANGE:
                by_range = format_label(node.name, node.op_type)
            if subgraph.ep_name != provider:
                elsewhere.append(format_label(node.name, node.op_type))
            elif node.op_type == CONTEXT_OP:
                context.append(node.name)
    return SessionPlacement(
        provider, dict(nodes), tuple(elsewhere), tuple(context), accepts_empty, by_sizes, by_range
    )


@dataclass(frozen=True)
class Running:
    """One inner session, as when it was first read."""

    number: int  # from 1; incremented by each replacement
    providers: tuple[str, ...]
    placement: SessionPlacement


class LiveSession:
    """The current inner session; for one thread, while others may replace the inner session."""

    def __init__(self, session: ort.InferenceSession, placement: SessionPlacement) -> None:
        self._session = session
        self._running = Running(1, tuple(session.get_providers()), placement)
        self._inner: weakref.ref[Any] = weakref.ref(session._sess)  # noqa: SLF001 - no public name

    def read(self) -> Running:
        """Return what runs; during a replacement, what ran before."""
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
