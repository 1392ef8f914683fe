"""Where nodes run, from the manifest: their names, costs and the engine's partitions."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final

from enginewright_contract.manifest import Manifest, NodeCost

from enginewright_cli.preflight.result import PlacedNode, PlacedOperator, Placement

_MOST_OPERATORS: Final = 100
_MOST_NODES: Final = 200
_DIGITS: Final = 6  # of a share


def of_engine(manifest: Manifest) -> Placement | None:
    """Return the nodes inside and outside the engine, or None if nothing was profiled."""
    from enginewright_runtime.core.labels import fused_name  # noqa: PLC0415 - loaded lazily

    parts = manifest.engine.partitions if manifest.engine else ()
    inside = Counter(label for part in parts for label in part.nodes)
    names = {_name(label) for label in inside}

    def outside(cost: NodeCost) -> int:
        # ONNX Runtime has fused nodes that the builder received separately
        if fused_name(cost.label) in names:
            return 0
        return cost.count - min(cost.count, inside[cost.label])

    return _placement(manifest, [(cost, outside(cost)) for cost in manifest.node_costs])


def of_session(manifest: Manifest, elsewhere: Iterable[str]) -> Placement | None:
    """Return the placement of a live session; `elsewhere` has the labels of all nodes on another provider."""
    from enginewright_runtime.core.labels import fused_name  # noqa: PLC0415 - loaded lazily

    outside = Counter(elsewhere)
    names = {_name(label) for label in outside}

    def count(cost: NodeCost) -> int:
        if fused_name(cost.label) in names:
            return cost.count
        return min(cost.count, outside[cost.label])

    return _placement(manifest, [(cost, count(cost)) for cost in manifest.node_costs])


def _placement(manifest: Manifest, costs: list[tuple[NodeCost, int]]) -> Placement | None:
    if not costs:
        return None
    shape = frozenset(manifest.shape_nodes)
    compute = [(cost, outside) for cost, outside in costs if cost.count and cost.label not in shape]
    whole = sum(cost.share for cost, _ in compute) or 1.0
    nodes = [
        PlacedNode(
            label=cost.label,
            count=cost.count,
            elsewhere=outside,
            share=round(cost.share / whole, _DIGITS),
        )
        for cost, outside in compute
    ]
    nodes.sort(key=lambda each: (not each.elsewhere, -(each.share or 0.0)))
    return Placement(
        operators=_by_operator(nodes),
        nodes=tuple(nodes[:_MOST_NODES]),
        shape_nodes=sum(cost.count for cost, _ in costs if cost.label in shape),
    )


def _by_operator(nodes: Iterable[PlacedNode]) -> tuple[PlacedOperator, ...]:
    groups: dict[str, list[PlacedNode]] = defaultdict(list)
    for each in nodes:
        groups[operator_of(each.label)].append(each)
    operators = [
        PlacedOperator(
            operator=name,
            count=sum(each.count for each in group),
            elsewhere=sum(each.elsewhere for each in group),
            share=round(sum(each.share or 0.0 for each in group), _DIGITS),
            elsewhere_share=round(
                sum((each.share or 0.0) * each.elsewhere / each.count for each in group), _DIGITS
            ),
        )
        for name, group in groups.items()
    ]
    operators.sort(key=lambda each: -(each.share or 0.0))
    return tuple(operators[:_MOST_OPERATORS])


def operator_of(label: str) -> str:
    """Return the operator in a label "name (OpType)"."""
    return label.rpartition(" (")[2].removesuffix(")")


def _name(label: str) -> str:
    return label.rpartition(" (")[0]
