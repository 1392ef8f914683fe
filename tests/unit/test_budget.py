"""The operator, the sidecar and preflight judge one promise alike: on the same numbers, exactly."""

from decimal import Decimal

import pytest
from enginewright.api.inference_engine import EngineFacts
from enginewright.api.scalars import share
from enginewright.plan.engines.status import engine_facts
from enginewright.plan.engines.wanted import _judge
from enginewright_contract.budget import billionths, excess
from enginewright_contract.report import PublishedEngine
from enginewright_contract.task import Promise
from enginewright_runtime.proof.promise import coverage, judge
from hypothesis import given
from hypothesis import strategies as st

from tests.support.placements import TENSORRT, facts, manifest


def publish_engine(total: int, elsewhere: int, compute: float | None) -> PublishedEngine:
    """Return what an engine Job tells, as it comes out of the pod's status."""
    reported = PublishedEngine(
        key="k",
        sha256="0" * 64,
        size_bytes=1,
        build_seconds=1.0,
        compute_capabilities=("8.9",),
        nodes_total=total,
        nodes_accelerated=total - elsewhere,
        compute_share_elsewhere=compute,
    )
    return PublishedEngine.model_validate_json(reported.to_json())


# fault: Engines | operator and runtime round a budget differently | one function in the contract,
#   on billionths | before a pod starts, and at every check
@given(
    costs=st.lists(st.integers(0, 10**6), min_size=1, max_size=40),
    outside=st.sets(st.integers(0, 39)),
    nodes=st.none() | st.integers(0, 1000),
    time=st.none() | st.integers(0, 1000) | st.just(-1),
    policy=st.sampled_from(["Forbid", "Budget", "Allow"]),
)
def test_sides_agree(
    costs: list[int], outside: set[int], nodes: int | None, time: int | None, policy: str
) -> None:
    """Limits are tenths of a per cent; -1: exactly what runs elsewhere, rounded as people write it."""
    whole = sum(costs)
    labels = [f"n{index} (Relu)" for index in range(len(costs))]
    measured = [
        (name, 1, round(cost / whole, 6) if whole else 0.0)
        for name, cost in zip(labels, costs, strict=True)
    ]
    left = [labels[index] for index in sorted(outside) if index < len(labels)]
    inside = [name for name in labels if name not in left]
    total, elsewhere, compute = coverage(left, manifest(measured, nodes=len(labels)))
    limit = f"{Decimal(compute or 0) * 100:.4f}%" if time == -1 else f"{(time or 0) / 10}%"
    promise = Promise.model_validate(
        {
            "policy": policy,
            "max_compute_share": None if time is None else share(limit),
            "max_node_share": None if nodes is None else share(f"{nodes / 10}%"),
        }
    )
    before = _judge(engine_facts(publish_engine(total, elsewhere, compute)), promise, "l4")
    served = manifest(measured, partitions={"engine": inside} if inside else {}, nodes=len(labels))
    placed = facts(bool(inside), *left, contexts=["engine"] if inside else [])
    verdict = judge(placed, TENSORRT, served, promise)
    assert (before is not None) == verdict.broken
    if before is not None:
        assert before.reason is verdict.reason


@pytest.mark.parametrize(
    ("percent", "elsewhere", "total", "kept"),
    [("7%", 7, 100, True), ("7%", 8, 100, False), ("29%", 29, 100, True), ("0.1%", 1, 1000, True),
     ("0.1%", 1, 999, False), ("33.3%", 1, 3, False), ("100%", 3, 3, True)],
)  # fmt: skip
def test_nodes_exactly_on_the_limit(percent: str, elsewhere: int, total: int, kept: bool) -> None:
    promise = Promise(policy="Budget", max_node_share=share(percent))
    assert (excess(promise, total, elsewhere, None) is None) is kept


@pytest.mark.parametrize(
    ("percent", "compute", "kept"),
    [("2.05%", 0.0204, True), ("2.05%", 0.02051, False), ("30%", 0.1 + 0.2, True), ("2%", None, False)],
)  # fmt: skip
def test_time_is_judged_exactly(percent: str, compute: float | None, kept: bool) -> None:
    """2.04% of the time, kept as 21 thousandths, would have broken a promise of 2.05%."""
    promise = Promise(policy="Budget", max_compute_share=share(percent))
    before = _judge(engine_facts(publish_engine(100, 1, compute)), promise, "l4")
    assert (before is None) is kept
    reported = None if compute is None else billionths(compute)
    assert (excess(promise, 100, 1, reported) is None) is kept


def test_engines_of_earlier_versions_are_judged_by_their_records() -> None:
    old = EngineFacts(
        sha256="0" * 64, size_bytes=1, build_milliseconds=1, nodes_total=100,
        nodes_accelerated=99, compute_permille_elsewhere=21,
    )  # fmt: skip
    for percent, kept in (("2.1%", True), ("2%", False)):
        promise = Promise(policy="Budget", max_compute_share=share(percent))
        assert (_judge(old, promise, "l4") is None) is kept
