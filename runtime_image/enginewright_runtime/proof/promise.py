"""Which nodes count, what they cost, and whether that keeps the promise. Pure; rule: docs/placement.md.

ONNX Runtime shows an engine as one node and shape arithmetic as many, so neither its counts nor
shares of them say how much of a model runs elsewhere. Counted here are original nodes that compute
data, weighted by profiled time. The sidecar judges with this every few seconds and builders count
with it, so it imports nothing but the contract.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from enginewright.contract.budget import billionths, excess, percent
from enginewright.contract.execution import PlacementFacts
from enginewright.contract.manifest import Manifest, NodeCost
from enginewright.contract.reasons import Reason
from enginewright.contract.report import name_nodes
from enginewright.contract.task import Promise
from enginewright.contract.verdict import FallbackVerdict

from enginewright_runtime.core.labels import CONTEXT_OP, fused_name, reported_label

_CONSTANT: Final = "(Constant)"  # ends the label of a value, which ONNX Runtime never runs


def coverage(labels_elsewhere: Iterable[str], manifest: Manifest) -> tuple[int, int, float | None]:
    """Count what a builder leaves outside its engine.

    Args:
        labels_elsewhere: one label a node; constants and shape arithmetic may be among them.
        manifest: of the prepared model.

    Returns:
        All compute nodes of the model; those elsewhere; the latter's share of the time, 0 to 1, or
        None where that was not profiled.
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
    """Compare where the nodes run with what was promised.

    Args:
        facts: of the live session.
        provider: that the nodes were promised to run on.
        manifest: of the artefact that is served, with the engine's partitions if it is one.
        promise: to the model's owner.
        cause: why the provider does not run what it was promised, where that is known; it becomes
            the verdict's reason.

    Returns:
        The verdict. `active` says whether there is fallback that the owner has to know of, which
        under Budget is only what exceeds it. The message has no remedy: the reason has one.
    """
    found = _find(facts, provider, _KnownNodes.of(manifest))
    if promise.asked_backend is not None:
        # all of the model runs elsewhere than asked, whatever the serving backend makes of it
        asked = f"backend {promise.asked_backend} was asked for, and {provider} serves"
        return FallbackVerdict(
            active=True,
            kind="BackendFallback",
            reason=cause or Reason.BACKEND_FALLBACK,
            message=f"{asked}, where {found.message}" if found.elsewhere else asked,
            broken=promise.policy != "Allow",
            nodes_total=found.total,
            nodes_elsewhere=found.total,
            compute_share=1.0,
        )
    compute = None if found.share is None else billionths(found.share)
    broken = excess(promise, found.total, found.elsewhere, compute)
    active = bool(found.elsewhere) and (broken is not None or promise.policy == "Allow")
    by_policy = Reason.FALLBACK_OVER_BUDGET if promise.policy == "Budget" else Reason.NODE_FALLBACK
    return FallbackVerdict(
        active=active,
        kind="NodeFallback" if active else None,
        reason=(cause or by_policy) if active else None,
        message=found.message + (broken or ""),
        broken=broken is not None,
        nodes_total=found.total,
        nodes_elsewhere=found.elsewhere,
        compute_share=found.share,
    )


@dataclass(frozen=True)
class _KnownNodes:
    """What a manifest knows of the nodes, by label."""

    shape: frozenset[str]
    costs: Mapping[str, NodeCost]  # {}: not profiled
    fused: Mapping[str, str]  # name of a node that others were fused into -> label it has since
    whole: float  # share of all compute nodes together
    partitions: Mapping[str, tuple[str, ...]]  # by label of the EPContext node
    nodes: int  # in the file, constants too

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        shape = frozenset(manifest.shape_nodes)
        costs = {each.label: each for each in manifest.node_costs}
        engine = manifest.engine
        return cls(
            shape=shape,
            costs=costs,
            fused={name: each for each in costs if (name := fused_name(each))},
            # the recorded shares are rounded: all nodes elsewhere must be the whole, not 99.9%
            whole=sum(each.share for each in costs.values() if each.label not in shape),
            partitions={
                reported_label(each.context_node, CONTEXT_OP): each.nodes
                for each in (engine.partitions if engine else ())
            },
            nodes=manifest.nodes,
        )

    @property
    def total(self) -> int:
        """Return the number of compute nodes; unprofiled, as many as there may be."""
        if not self.costs:
            return max(0, self.nodes - len(self.shape))
        return sum(each.count for each in self.costs.values() if each.label not in self.shape)

    @property
    def shape_nodes(self) -> int:
        """Return the number of nodes of shape arithmetic that ONNX Runtime has to run."""
        if not self.costs:
            return len(self.shape)
        return sum(self.costs[name].count for name in self.shape if name in self.costs)

    def of_file(self, labels: Iterable[str]) -> Counter[str]:
        """Return what ONNX Runtime makes of nodes of the file, engines opened: count by label.

        What it folds away counts nothing, what it fuses counts once, under the label it has since.
        """
        opened: Counter[str] = Counter()
        for each in labels:
            opened.update(map(self._resolve, self.partitions.get(each, (each,))))
        for name in opened:
            if name.endswith(_CONSTANT):
                opened[name] = 0
            elif name in self.costs:
                opened[name] = min(opened[name], self.costs[name].count)
        return +opened

    def of_session(self, labels: Iterable[str]) -> Counter[str]:
        """Return the count by label of nodes that a live session runs, engines opened."""
        nodes = list(labels)
        engines = [each for each in nodes if each in self.partitions]
        single = Counter(self._resolve(each) for each in nodes if each not in self.partitions)
        return single + self.of_file(engines)

    def compute(self, nodes: Counter[str]) -> Counter[str]:
        """Return the nodes without shape arithmetic."""
        return Counter({name: n for name, n in nodes.items() if name not in self.shape})

    def share(self, nodes: Counter[str]) -> float | None:
        """Return the compute nodes' share of the time; None when one of them was not profiled."""
        if not self.costs:
            return None
        spent = 0.0
        for name, count in nodes.items():
            cost = self.costs.get(name)
            if cost is None or count > cost.count:
                return None
            spent += cost.share * count / cost.count
        return min(1.0, spent / self.whole) if self.whole > 0 else 0.0

    def _resolve(self, name: str) -> str:
        return name if name in self.costs else self.fused.get(name.rpartition(" (")[0], name)


@dataclass(frozen=True)
class _NodesElsewhere:
    """Compute nodes, and which of them are elsewhere."""

    total: int
    elsewhere: int
    share: float | None
    message: str


def _find(facts: PlacementFacts, provider: str, model: _KnownNodes) -> _NodesElsewhere:
    outside = model.of_session(facts.elsewhere)
    elsewhere = model.compute(outside)
    others = sum(count for name, count in facts.nodes.items() if name != provider)
    # what is reported elsewhere without a label, or not at all, counts: nothing proves that it may
    if facts.nodes:
        nameless = max(0, others - len(facts.elsewhere))
    else:
        nameless = model.total if model.costs else 0
    contexts = [reported_label(name, CONTEXT_OP) for name in facts.context_nodes]
    inside = model.of_file(contexts) - outside if contexts else Counter[str]()
    direct = max(0, facts.nodes.get(provider, 0) - len(contexts))
    # labels of these are not reported, but shape arithmetic that is nowhere else is among them
    known = (outside + inside).total() - model.compute(outside + inside).total()
    direct -= min(direct, max(0, model.shape_nodes - known))
    count = elsewhere.total() + nameless
    total = count + direct + model.compute(inside).total()
    share = None if nameless else model.share(elsewhere)
    return _NodesElsewhere(
        total, count, share, _describe(facts, provider, total, count, share, elsewhere)
    )


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
