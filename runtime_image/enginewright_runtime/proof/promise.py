"""Counts and weighs nodes on other providers and judges the promise. Pure; rules: docs/placement.md.

ONNX Runtime reports an engine as one node and shape arithmetic as many, so its node counts do not
show how much of a model runs elsewhere. Counted here are original nodes that compute data, weighted
by profiled time. Sidecars and builders use this, so it imports little but the contract.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from enginewright_contract.budget import billionths, excess, percent
from enginewright_contract.execution import PlacementFacts
from enginewright_contract.manifest import Manifest, NodeCost
from enginewright_contract.reasons import Reason
from enginewright_contract.report import name_nodes
from enginewright_contract.task import Promise
from enginewright_contract.verdict import FallbackVerdict

from enginewright_runtime.core.labels import CONTEXT_OP, format_label, strip_fusion

_CONSTANT: Final = "(Constant)"  # suffix of the label of a constant, which is never run


def coverage(labels_elsewhere: Iterable[str], manifest: Manifest) -> tuple[int, int, float | None]:
    """Count the nodes that a builder leaves outside its engine, with one label for each.

    Return the number of compute nodes of the model, of those elsewhere, and the latter's share of
    the time, 0 to 1, if the model was profiled.
    """
    model = _KnownNodes.of(manifest)
    elsewhere = model.compute(model.of_file(labels_elsewhere))
    return max(model.total, elsewhere.total()), elsewhere.total(), model.share(elsewhere)


def judge(
    facts: PlacementFacts,
    provider: str,
    manifest: Manifest,
    promise: Promise,
    *,
    cause: Reason | None = None,
) -> FallbackVerdict:
    """Compare the placement of a live session with the promise to the model's owner.

    `manifest` is of the served artefact, with the engine's partitions if it is one. `cause`, why
    the provider does not run all nodes, becomes the verdict's reason. The verdict is `active` if
    there is fallback to report: under Budget, only fallback that exceeds it.
    """
    total, elsewhere, share, message = _count(facts, provider, _KnownNodes.of(manifest))
    if promise.asked_backend is not None:
        # the complete model runs on another backend than requested, wherever its nodes are placed
        asked = f"backend {promise.asked_backend} was requested, but {provider} serves"
        return FallbackVerdict(
            active=True,
            kind="BackendFallback",
            reason=cause or Reason.BACKEND_FALLBACK,
            message=f"{asked}, where {message}" if elsewhere else asked,
            broken=promise.policy != "Allow",
            policy=promise.policy,
            nodes_total=total,
            nodes_elsewhere=total,
            compute_share=1.0,
        )
    compute = None if share is None else billionths(share)
    broken = excess(promise, total, elsewhere, compute)
    active = bool(elsewhere) and (broken is not None or promise.policy == "Allow")
    by_policy = Reason.FALLBACK_OVER_BUDGET if promise.policy == "Budget" else Reason.NODE_FALLBACK
    return FallbackVerdict(
        active=active,
        kind="NodeFallback" if active else None,
        reason=(cause or by_policy) if active else None,
        message=message + (broken or ""),
        broken=broken is not None,
        policy=promise.policy,
        nodes_total=total,
        nodes_elsewhere=elsewhere,
        compute_share=share,
    )


@dataclass(frozen=True)
class _KnownNodes:
    shape: frozenset[str]
    costs: Mapping[str, NodeCost]  # unless not profiled
    fused: Mapping[str, str]  # original name of a node that others were fused into -> its new label
    compute_share: float  # sum of the shares of all compute nodes
    partitions: Mapping[str, tuple[str, ...]]  # by label of the EPContext node
    nodes: int  # in the file, including constants

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        shape = frozenset(manifest.shape_nodes)
        costs = {node_cost.label: node_cost for node_cost in manifest.node_costs}
        engine = manifest.engine
        return cls(
            shape=shape,
            costs=costs,
            fused={name: cost for cost in costs if (name := strip_fusion(cost))},
            # shares are relative to this, since the recorded ones are rounded: all nodes are 100%
            compute_share=sum(cost.share for cost in costs.values() if cost.label not in shape),
            partitions={
                format_label(partition.context_node, CONTEXT_OP): partition.nodes
                for partition in (engine.partitions if engine else ())
            },
            nodes=manifest.nodes,
        )

    @property
    def total(self) -> int:
        """The number of compute nodes; an upper bound if not profiled."""
        if not self.costs:
            return max(0, self.nodes - len(self.shape))
        return sum(cost.count for cost in self.costs.values() if cost.label not in self.shape)

    @property
    def shape_nodes(self) -> int:
        """The number of nodes of shape arithmetic that ONNX Runtime runs."""
        if not self.costs:
            return len(self.shape)
        return sum(self.costs[name].count for name in self.shape if name in self.costs)

    def of_file(self, labels: Iterable[str]) -> Counter[str]:
        """Return ONNX Runtime's nodes for labels of the file, engines expanded: count by label.

        Folded nodes are not counted, fused ones count once, with their new label.
        """
        opened: Counter[str] = Counter()
        for label in labels:
            opened.update(map(self._resolve, self.partitions.get(label, (label,))))
        for name in opened:
            if name.endswith(_CONSTANT):
                opened[name] = 0
            elif name in self.costs:
                opened[name] = min(opened[name], self.costs[name].count)
        return +opened

    def of_session(self, labels: Iterable[str]) -> Counter[str]:
        nodes = list(labels)
        engines = [node for node in nodes if node in self.partitions]
        single = Counter(self._resolve(node) for node in nodes if node not in self.partitions)
        return single + self.of_file(engines)

    def compute(self, nodes: Counter[str]) -> Counter[str]:
        return Counter({name: n for name, n in nodes.items() if name not in self.shape})

    def share(self, nodes: Counter[str]) -> float | None:
        if not self.costs:
            return None
        spent = 0.0
        for name, count in nodes.items():
            cost = self.costs.get(name)
            if cost is None or count > cost.count:
                return None
            spent += cost.share * count / cost.count
        return min(1.0, spent / self.compute_share) if self.compute_share > 0 else 0.0

    def _resolve(self, name: str) -> str:
        return name if name in self.costs else self.fused.get(name.rpartition(" (")[0], name)


def _count(
    facts: PlacementFacts, provider: str, model: _KnownNodes
) -> tuple[int, int, float | None, str]:
    """Return the compute nodes, those elsewhere, their share of the time if known, and a message."""
    outside = model.of_session(facts.elsewhere)
    elsewhere = model.compute(outside)
    others = sum(count for name, count in facts.nodes.items() if name != provider)
    # nodes elsewhere without a label count as compute nodes, as do nodes that are not reported
    if facts.nodes:
        nameless = max(0, others - len(facts.elsewhere))
    else:
        nameless = model.total if model.costs else 0
    contexts = [format_label(name, CONTEXT_OP) for name in facts.context_nodes]
    inside = model.of_file(contexts) - outside if contexts else Counter[str]()
    direct = max(0, facts.nodes.get(provider, 0) - len(contexts))
    # the labels of these are not reported, but they include the remaining shape arithmetic
    shape_arithmetic = (outside + inside).total() - model.compute(outside + inside).total()
    direct -= min(direct, max(0, model.shape_nodes - shape_arithmetic))
    count = elsewhere.total() + nameless
    total = count + direct + model.compute(inside).total()
    share = None if nameless else model.share(elsewhere)
    return total, count, share, _describe(facts, provider, total, count, share, elsewhere)


def _describe(
    facts: PlacementFacts,
    provider: str,
    total: int,
    count: int,
    share: float | None,
    elsewhere: Counter[str],
) -> str:
    if not count:
        return f"all {total} compute nodes run on {provider}"
    others = ", ".join(sorted(name for name in facts.nodes if name != provider)) or "another"
    names = [f"{name} x{times}" if times > 1 else name for name, times in sorted(elsewhere.items())]
    time = "an unknown share" if share is None else percent(share)
    return (
        f"{count} of {total} compute nodes ({percent(count / total)} of the nodes, {time} of the"
        f" time) run on {others} instead of {provider}"
        + (f": {name_nodes(names)}" if names else "")
    )
