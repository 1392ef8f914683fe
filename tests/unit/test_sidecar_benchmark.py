"""A pod that is slow from its start: against the benchmark of its class, like with like."""

import pytest
from enginewright_contract.execution import Baseline
from enginewright_contract.manifest import EngineInfo, Latency, Manifest
from enginewright_contract.reasons import Reason
from enginewright_serving.sidecar.benchmark import compare, outcome
from enginewright_serving.sidecar.checks import CheckResult

from tests.support.manifests import CPU_RECIPE, engine_info, manifest


def figure(shapes: str, p50: float) -> Latency:
    return Latency(p50=p50, p90=p50, p99=p50, samples=100, shapes=shapes)


def engine(*figures: Latency) -> EngineInfo:
    """Return an engine with these figures of its class."""
    return engine_info(latency=figures[0] if figures else None, latencies=figures)


def of_engine(*figures: Latency) -> Manifest:
    recipe = CPU_RECIPE.model_copy(update={"backend": "cuda"})
    return manifest(recipe=recipe, engine=engine(*figures))


MEASURED = of_engine(figure("opt", 0.010), figure("min", 0.004))


def judge_start(
    facts: Manifest, usual: Baseline | None = None, now: dict[str, float] | None = None
) -> CheckResult:
    return outcome(facts, compare(facts, usual, (now or {}).get))


def start(p50: float, shapes: str = "opt") -> Baseline:
    return Baseline(p50=p50, samples=100, shapes=shapes)


def test_a_pod_that_starts_slow_is_slower_than_the_benchmark_of_its_class() -> None:
    result = judge_start(MEASURED, start(0.021), {"min": 0.009})
    assert (result.state, result.reason) == ("failed", Reason.SLOWER_THAN_BENCHMARK)
    assert "2 times the benchmark of the class, 4 ms for shapes 'min'" in result.message or (
        "2 times the benchmark of the class, 10 ms for shapes 'opt'" in result.message
    )


@pytest.mark.parametrize(
    ("usual", "now"),
    [
        (start(0.019), {}),
        (start(0.010), {"min": 0.030}),  # a device that idles: its clocks are low
        (start(0.030), {"min": 0.005}),  # a neighbour's burst at the start
        (None, {"min": 0.0079}),
    ],
)
def test_one_good_figure_is_enough(usual: Baseline | None, now: dict[str, float]) -> None:
    assert judge_start(MEASURED, usual, now).state == "ok"


def test_noise_is_ok() -> None:
    assert judge_start(of_engine(figure("opt", 0.0003)), start(0.0012)).state == "ok"


@pytest.mark.parametrize(
    ("facts", "usual", "wording"),
    [
        (manifest(), start(9.0), "backend cpu has no engine"),
        (of_engine(), start(9.0), "the engine was built without a device"),
        (MEASURED, start(9.0, "s0"), "no run of the same shapes"),
        (MEASURED, None, "no run of the same shapes"),
    ],
)
def test_incomparable_is_unknown(facts: Manifest, usual: Baseline | None, wording: str) -> None:
    result = judge_start(facts, usual)
    assert result.state == "unknown"
    assert wording in result.message
