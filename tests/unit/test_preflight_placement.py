"""The map counts as the pipeline counts: fused, folded, nameless and shape nodes too."""

import pytest
from enginewright_cli.preflight.placement import of_engine, of_session
from enginewright_cli.preflight.result import Placement
from enginewright_contract.manifest import Manifest, NodeCost, Partition
from enginewright_runtime.proof.promise import coverage

from tests.support.manifests import CPU_RECIPE, engine_info, manifest

COSTS = (
    NodeCost(label="conv (Conv)", count=1, share=0.5),
    NodeCost(label="dense/MatMulAddFusion (Gemm)", count=1, share=0.2),
    NodeCost(label="unnamed (Relu)", count=4, share=0.2),
    NodeCost(label="det (Det)", count=1, share=0.05),
    NodeCost(label="shape (Shape)", count=1, share=0.05),
    NodeCost(label="folded (Mul)", count=0, share=0.0),
)


def engine(*inside: str, costs: tuple[NodeCost, ...] = COSTS) -> Manifest:
    partitions = (Partition(context_node="part-0", nodes=inside),)
    info = engine_info("tensorrt-rtx", partitions=partitions, nodes_total=7, nodes_accelerated=0)
    recipe = CPU_RECIPE.model_copy(update={"backend": "tensorrt-rtx"})
    return manifest(
        recipe=recipe, nodes=10, node_costs=costs, shape_nodes=("shape (Shape)",), engine=info
    )


def elsewhere(placement: Placement | None) -> dict[str, int]:
    assert placement is not None
    return {node.label: node.elsewhere for node in placement.nodes}


def test_nodes_in_no_engine_are_elsewhere() -> None:
    built = engine(
        "conv (Conv)", "dense (MatMul)", "dense_add (Add)", *["unnamed (Relu)"] * 3, "folded (Mul)"
    )
    placement = of_engine(built)
    assert elsewhere(placement) == {
        "det (Det)": 1,
        "unnamed (Relu)": 1,
        "conv (Conv)": 0,
        "dense/MatMulAddFusion (Gemm)": 0,
    }
    assert placement is not None
    assert placement.shape_nodes == 1
    outside = ["det (Det)", "unnamed (Relu)", "shape (Shape)", "folded (Mul)"]
    total, count, share = coverage(outside, built)
    assert sum(operator.count for operator in placement.operators) == total == 7
    assert sum(operator.elsewhere for operator in placement.operators) == count == 2
    spent = sum(operator.elsewhere_share or 0.0 for operator in placement.operators)
    assert spent == pytest.approx(share, abs=1e-5)
    assert sum(operator.share or 0.0 for operator in placement.operators) == pytest.approx(
        1.0, abs=1e-5
    )


def test_nodes_of_a_session_elsewhere() -> None:
    labels = ["unnamed (Relu)", "unnamed (Relu)", "shape (Shape)", "dense/MatMulAddFusion (Gemm)"]
    assert elsewhere(of_session(engine(), labels)) == {
        "dense/MatMulAddFusion (Gemm)": 1,
        "unnamed (Relu)": 2,
        "conv (Conv)": 0,
        "det (Det)": 0,
    }


def test_lists_end_and_operators_count_all() -> None:
    costs = tuple(
        NodeCost(label=f"n{i} (Kind{i % 150})", count=1, share=1 / 600) for i in range(600)
    )
    placement = of_session(engine(costs=costs), ["n599 (Kind149)"])
    assert placement is not None
    assert len(placement.nodes) == 200
    assert placement.nodes[0].label == "n599 (Kind149)"
    assert len(placement.operators) == 100


def test_without_a_profile_there_is_no_map() -> None:
    assert of_engine(engine(costs=())) is None
