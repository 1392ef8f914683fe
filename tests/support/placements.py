"""Manifests and placements, as `promise` judges them."""

from collections.abc import Mapping, Sequence

from enginewright_contract.execution import PlacementFacts
from enginewright_contract.manifest import Manifest, NodeCost, Partition

from tests.support.manifests import CPU_RECIPE, engine_info
from tests.support.manifests import manifest as smallest

TENSORRT = "TensorrtExecutionProvider"
CPU = "CPUExecutionProvider"
RECIPE = CPU_RECIPE.model_copy(update={"backend": "tensorrt"})


def manifest(
    costs: Sequence[tuple[str, int, float]] = (),
    shape: Sequence[str] = (),
    partitions: Mapping[str, Sequence[str]] | None = None,
    nodes: int = 10,
) -> Manifest:
    """Return a prepared model's manifest, or with partitions an engine's."""
    engine = engine_info(
        partitions=tuple(
            Partition(context_node=name, nodes=tuple(labels))
            for name, labels in (partitions or {}).items()
        ),
        nodes_total=nodes,
        nodes_accelerated=nodes,
    )
    return smallest(
        recipe=RECIPE,
        nodes=nodes,
        node_costs=tuple(NodeCost(label=name, count=n, share=share) for name, n, share in costs),
        shape_nodes=tuple(shape),
        engine=engine if partitions is not None else None,
    )


def facts(here: int, *elsewhere: str, contexts: Sequence[str] = (), **more: int) -> PlacementFacts:
    """Return a placement: so many nodes on TensorRT, these labels on the CPU."""
    nodes = {TENSORRT: here, CPU: len(elsewhere)} | more
    return PlacementFacts(
        nodes={name: count for name, count in nodes.items() if count},
        elsewhere=elsewhere,
        context_nodes=tuple(contexts),
    )
