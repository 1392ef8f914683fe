"""Manifests and placements, as `promise` judges them."""

from collections.abc import Mapping, Sequence

from enginewright.contract.execution import PlacementFacts
from enginewright.contract.manifest import EngineInfo, Manifest, NodeCost, Partition
from enginewright.contract.task import EngineRecipe, Recipe

TENSORRT = "TensorrtExecutionProvider"
CPU = "CPUExecutionProvider"
RECIPE = Recipe(backend="tensorrt", ort_version="1.31.1", max_opset=26, max_ir_version=13)


def manifest(
    costs: Sequence[tuple[str, int, float]] = (),
    shape: Sequence[str] = (),
    partitions: Mapping[str, Sequence[str]] | None = None,
    nodes: int = 10,
) -> Manifest:
    """Return a prepared model's manifest, or with partitions an engine's."""
    engine = EngineInfo(
        recipe=EngineRecipe(
            backend="tensorrt", backend_version="10.9", ort_version="1.31.1", accelerator_class="l4"
        ),
        prepared_key="p",
        file="model.engine",
        sha256="0" * 64,
        size_bytes=1,
        compute_capabilities=("8.9",),
        partitions=tuple(
            Partition(context_node=name, nodes=tuple(labels))
            for name, labels in (partitions or {}).items()
        ),
        nodes_total=nodes,
        nodes_accelerated=nodes,
        build_seconds=1.0,
    )
    return Manifest(
        key="k",
        model_digest="d",
        recipe=RECIPE,
        files=(),
        opset=17,
        ir_version=9,
        nodes=nodes,
        inputs=(),
        outputs=(),
        golden_source="generated",
        versions={},
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
