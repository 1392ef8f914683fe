"""The verdict on fallback: which nodes count, what they cost, what the policy makes of it."""

import pytest
from enginewright_contract.execution import PlacementFacts
from enginewright_contract.reasons import Reason
from enginewright_contract.task import Promise
from enginewright_runtime.core.labels import format_label
from enginewright_runtime.proof.promise import coverage, judge
from hypothesis import given
from hypothesis import strategies as st

from tests.support.placements import CPU, TENSORRT, facts, manifest

FORBID, ALLOW = Promise(), Promise(policy="Allow")


COSTS = [("conv (Conv)", 1, 0.9), ("relu (Relu)", 1, 0.01), ("det (Det)", 1, 0.09)]


def test_all_where_it_belongs() -> None:
    for promise in (FORBID, ALLOW, Promise(policy="Budget", max_node_share=0.0)):
        verdict = judge(facts(3), TENSORRT, manifest(COSTS), promise)
        assert not verdict.active
        assert not verdict.broken
        assert verdict.message == f"all 3 compute nodes run on {TENSORRT}"
        assert (verdict.nodes_total, verdict.nodes_elsewhere, verdict.compute_share) == (3, 0, 0.0)


def test_one_node_elsewhere_under_forbid() -> None:
    verdict = judge(facts(2, "det (Det)"), TENSORRT, manifest(COSTS), FORBID)
    assert (verdict.active, verdict.broken, verdict.kind) == (True, True, "NodeFallback")
    assert verdict.reason is Reason.NODE_FALLBACK
    assert verdict.compute_share == pytest.approx(0.09)
    assert verdict.message == (
        "1 of 3 compute nodes (33.3% of the nodes, 9% of the time) run on CPUExecutionProvider"
        " instead of TensorrtExecutionProvider: det (Det)"
    )


def test_an_engine_counts_as_the_nodes_in_it() -> None:
    """One EPContext node and one node on the CPU are not 50%."""
    proven = manifest(COSTS, partitions={"engine_0": ["conv (Conv)", "relu (Relu)"]})
    verdict = judge(facts(1, "det (Det)", contexts=["engine_0"]), TENSORRT, proven, FORBID)
    assert (verdict.nodes_total, verdict.nodes_elsewhere) == (3, 1)
    elsewhere = facts(0, "engine_0 (EPContext)", "det (Det)")
    verdict = judge(elsewhere, TENSORRT, proven, FORBID)
    assert (verdict.nodes_total, verdict.nodes_elsewhere, verdict.compute_share) == (3, 3, 1.0)


def test_file_labels_become_session_labels() -> None:
    """Constants and folded nodes are not work; a fused pair is one node under the first's name."""
    costs = [("dense/MatMul/MatMulAddFusion (Gemm)", 1, 0.6), ("bn (BatchNormalization)", 0, 0.0),
             ("unnamed (Mul)", 2, 0.2), ("shape (Shape)", 1, 0.0), ("det (Det)", 1, 0.2)]  # fmt: skip
    inside = ["dense/MatMul (MatMul)", "bn (BatchNormalization)", "w (Constant)", "shape (Shape)",
              *["unnamed (Mul)"] * 7]  # fmt: skip
    proven = manifest(costs, ["shape (Shape)"], {"engine_0": inside}, nodes=12)
    verdict = judge(facts(1, "det (Det)", contexts=["engine_0"]), TENSORRT, proven, FORBID)
    assert (verdict.nodes_total, verdict.nodes_elsewhere) == (4, 1)
    for labels, count, share in ((["det (Det)"], 1, 0.2), (inside, 3, 0.8)):
        total, elsewhere, time = coverage(labels, proven)
        assert (total, elsewhere) == (4, count)
        assert time == pytest.approx(share)


def test_shape_arithmetic_may_run_anywhere() -> None:
    costs = [*COSTS, ("shape (Shape)", 1, 0.0), ("unnamed (Gather)", 3, 0.0)]
    proven = manifest(costs, ["shape (Shape)", "unnamed (Gather)"])
    verdict = judge(facts(3, "shape (Shape)", *["unnamed (Gather)"] * 3), TENSORRT, proven, FORBID)
    assert (verdict.active, verdict.nodes_total, verdict.nodes_elsewhere) == (False, 3, 0)
    verdict = judge(facts(6, "shape (Shape)"), TENSORRT, proven, FORBID)
    assert (verdict.active, verdict.nodes_total) == (False, 3)


def test_nodes_that_share_a_label_are_counted_one_by_one() -> None:
    proven = manifest([("unnamed (Mul)", 4, 0.8), ("conv (Conv)", 1, 0.2)])
    verdict = judge(facts(2, *["unnamed (Mul)"] * 3), TENSORRT, proven, FORBID)
    assert (verdict.nodes_total, verdict.nodes_elsewhere) == (5, 3)
    assert verdict.compute_share == pytest.approx(0.6)
    assert "unnamed (Mul) x3" in verdict.message


@pytest.mark.parametrize(
    ("promise", "broken", "reported"),
    [
        (Promise(policy="Budget", max_compute_share=0.1), False, None),
        (Promise(policy="Budget", max_compute_share=0.08), True, "allowed: 8% of the time"),
        (Promise(policy="Budget", max_node_share=0.34), False, None),
        (Promise(policy="Budget", max_node_share=0.33), True, "allowed: 33% of the nodes"),
        (Promise(policy="Budget", max_node_share=0.2, max_compute_share=0.1), True, "20% of the nodes"),
        (Promise(policy="Budget", max_node_share=0.5, max_compute_share=0.05), True, "5% of the time"),
        (Promise(policy="Budget"), True, "the budget sets no share"),
        (FORBID, True, None),
    ],
)  # fmt: skip
def test_budgets(promise: Promise, broken: bool, reported: str | None) -> None:
    verdict = judge(facts(2, "det (Det)"), TENSORRT, manifest(COSTS), promise)
    assert (verdict.active, verdict.broken) == (broken, broken)
    assert (reported or "") in verdict.message
    if broken and promise.policy == "Budget":
        assert verdict.reason is Reason.FALLBACK_OVER_BUDGET
    if not broken:
        assert (verdict.reason, verdict.kind, verdict.nodes_elsewhere) == (None, None, 1)


def test_a_share_exactly_on_the_limit_keeps_the_promise() -> None:
    labels = [f"n{i} (Relu)" for i in range(100)]
    proven = manifest([(label, 1, 0.01) for label in labels], nodes=100)
    promise = Promise(policy="Budget", max_node_share=0.07, max_compute_share=0.07)
    assert not judge(facts(93, *labels[:7]), TENSORRT, proven, promise).broken
    assert judge(facts(92, *labels[:8]), TENSORRT, proven, promise).broken


def test_unprofiled_node_is_not_proven() -> None:
    within = Promise(policy="Budget", max_compute_share=0.99)
    for proven in (manifest(), manifest([("conv (Conv)", 1, 1.0)])):
        verdict = judge(facts(2, "det (Det)"), TENSORRT, proven, within)
        assert (verdict.broken, verdict.compute_share) == (True, None)
        assert "cannot be verified" in verdict.message
        nodes_only = Promise(policy="Budget", max_node_share=0.5)
        assert not judge(facts(2, "det (Det)"), TENSORRT, proven, nodes_only).broken


def test_allow_reports_and_keeps_serving() -> None:
    verdict = judge(
        facts(0, *(name for name, _, _ in COSTS)), TENSORRT, manifest(COSTS), ALLOW,
        cause=Reason.DRIVER_MISSING,
    )  # fmt: skip
    assert (verdict.active, verdict.broken, verdict.reason) == (True, False, Reason.DRIVER_MISSING)
    assert (verdict.nodes_elsewhere, verdict.compute_share) == (3, 1.0)


@pytest.mark.parametrize("policy", ["Forbid", "Budget", "Allow"])
def test_a_lower_backend_serves(policy: str) -> None:
    promise = Promise.model_validate(
        {"policy": policy, "max_node_share": 0.5, "asked_backend": "tensorrt"}
    )
    verdict = judge(PlacementFacts(nodes={CPU: 3}), CPU, manifest(COSTS), promise)
    assert (verdict.kind, verdict.reason) == ("BackendFallback", Reason.BACKEND_FALLBACK)
    assert (verdict.active, verdict.broken) == (True, policy != "Allow")
    assert (verdict.nodes_elsewhere, verdict.compute_share) == (3, 1.0)
    assert verdict.message == f"backend tensorrt was requested, but {CPU} serves"


def test_nodes_without_a_label_or_a_report_are_not_taken_on_trust() -> None:
    hidden = PlacementFacts(nodes={TENSORRT: 1, CPU: 2})
    verdict = judge(hidden, TENSORRT, manifest(COSTS), FORBID)
    assert (verdict.broken, verdict.nodes_elsewhere, verdict.compute_share) == (True, 2, None)
    verdict = judge(PlacementFacts(nodes={}), TENSORRT, manifest(COSTS), FORBID)
    assert (verdict.broken, verdict.nodes_elsewhere) == (True, 3)
    assert not judge(PlacementFacts(nodes={}), TENSORRT, manifest(nodes=1), FORBID).active


LABELS = [f"n{i} (Op{i % 3})" for i in range(8)] + ["unnamed (Mul)", "s (Shape)"]
PROMISES = st.builds(
    Promise,
    policy=st.sampled_from(["Forbid", "Budget", "Allow"]),
    max_compute_share=st.none() | st.floats(0, 1),
    max_node_share=st.none() | st.floats(0, 1),
    asked_backend=st.none() | st.just("tensorrt"),
)
WEIGHTS = st.lists(st.floats(0, 1), min_size=len(LABELS), max_size=len(LABELS))


@given(
    promise=PROMISES,
    weights=st.none() | WEIGHTS,
    elsewhere=st.lists(st.sampled_from(LABELS), unique=True),
    more=st.sampled_from(LABELS),
    partition=st.none() | st.lists(st.sampled_from(LABELS), unique=True),
    shape=st.booleans(),
)
def test_verdicts_are_in_bounds_monotone_and_by_policy(
    promise: Promise,
    weights: list[float] | None,
    elsewhere: list[str],
    more: str,
    partition: list[str] | None,
    shape: bool,
) -> None:
    whole = sum(weights or []) or 1.0
    costs = [(name, 1, value / whole) for name, value in zip(LABELS, weights or [], strict=False)]
    engine = None if partition is None else {"e": [x for x in partition if x not in elsewhere]}
    proven = manifest(costs, LABELS[-1:] if shape else [], engine)
    here, contexts = (1, ["e"]) if engine is not None else (len(LABELS) - len(elsewhere), [])
    verdict = judge(facts(here, *elsewhere, contexts=contexts), TENSORRT, proven, promise)
    assert 0 <= verdict.nodes_elsewhere <= verdict.nodes_total
    assert verdict.compute_share is None or 0 <= verdict.compute_share <= 1
    assert not verdict.broken or verdict.active
    assert verdict.active == (verdict.reason is not None) == (verdict.kind is not None)
    if promise.policy == "Forbid":
        assert verdict.broken == verdict.active
        assert verdict.active or not verdict.nodes_elsewhere
    if promise.policy == "Allow":
        assert not verdict.broken
    if more in elsewhere:
        return
    worse = judge(facts(here, *elsewhere, more, contexts=contexts), TENSORRT, proven, promise)
    assert worse.nodes_elsewhere >= verdict.nodes_elsewhere
    assert worse.nodes_total >= verdict.nodes_total
    assert worse.broken >= verdict.broken
    if verdict.compute_share is not None and worse.compute_share is not None:
        assert worse.compute_share >= verdict.compute_share - 1e-9


def test_labels_match_placements() -> None:
    assert format_label("conv", "Conv") == "conv (Conv)"
    assert format_label("", "Conv") == "unnamed (Conv)"
