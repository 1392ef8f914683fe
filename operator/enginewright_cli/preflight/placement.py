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
    parts = manifest.engine.partitions if manifest.engine else ()
    inside = _count(manifest, Counter(label for part in parts for label in part.nodes))
    return _placement(manifest, [(cost, cost.count - count) for cost, count in inside])


def of_session(manifest: Manifest, elsewhere: Iterable[str]) -> Placement | None:
    """Return the placement of a live session; `elsewhere` has the labels of all nodes on another provider."""
    return _placement(manifest, _count(manifest, Counter(elsewhere)))


def _count(manifest: Manifest, labels: Counter[str]) -> list[tuple[NodeCost, int]]:
    """Return each cost with how many of its nodes have one of the labels."""
    from enginewright_runtime.core.labels import strip_fusion  # noqa: PLC0415 - loaded lazily

    names = {label.rpartition(" (")[0] for label in labels}
    return [
        # ONNX Runtime fuses nodes that the builder receives separately
        (
            cost,
            cost.count
            if strip_fusion(cost.label) in names
            else min(cost.count, labels[cost.label]),
        )
        for cost in manifest.node_costs
    ]


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
    nodes.sort(key=lambda node: (not node.elsewhere, -(node.share or 0.0)))
    return Placement(
        operators=_by_operator(nodes),
        nodes=tuple(nodes[:_MOST_NODES]),
        shape_nodes=sum(cost.count for cost, _ in costs if cost.label in shape),
    )


def _by_operator(nodes: Iterable[PlacedNode]) -> tuple[PlacedOperator, ...]:
    groups: dict[str, list[PlacedNode]] = defaultdict(list)
    for node in nodes:
        groups[operator_of(node.label)].append(node)
    operators = [
        PlacedOperator(
            operator=name,
            count=sum(node.count for node in group),
            elsewhere=sum(node.elsewhere for node in group),
            share=round(sum(node.share or 0.0 for node in group), _DIGITS),
            elsewhere_share=round(
                sum((node.share or 0.0) * node.elsewhere / node.count for node in group), _DIGITS
            ),
        )
        for name, group in groups.items()
    ]
    operators.sort(key=lambda operator: -(operator.share or 0.0))
    return tuple(operators[:_MOST_OPERATORS])


def operator_of(label: str) -> str:
    """Return the operator in a label "name (OpType)"."""
    return label.rpartition(" (")[2].removesuffix(")")
