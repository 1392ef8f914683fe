"""A pod that is slow from its start: against the benchmark of its class, like with like."""

import pytest
from enginewright.contract.execution import Baseline
from enginewright.contract.manifest import EngineInfo, Latency, Manifest
from enginewright.contract.reasons import Reason
from enginewright.contract.task import EngineRecipe, Recipe
from enginewright_runtime.serve.sidecar.benchmark import compared, outcome
from enginewright_runtime.serve.sidecar.board import Outcome
from enginewright_runtime.serve.sidecar.settings import Settings


def figure(shapes: str, p50: float) -> Latency:
    return Latency(p50=p50, p90=p50, p99=p50, samples=100, shapes=shapes)


def engine(*figures: Latency) -> EngineInfo:
    return EngineInfo(
        recipe=EngineRecipe(
            backend="tensorrt", backend_version="10.1", ort_version="1.31.1", accelerator_class="l4"
        ),
        prepared_key="a" * 64,
        file="engine",
        sha256="e" * 64,
        size_bytes=1,
        compute_capabilities=("8.9",),
        partitions=(),
        nodes_total=4,
        nodes_accelerated=4,
        build_seconds=1.0,
        latency=figures[0] if figures else None,
        latencies=figures,
    )


def manifest(info: EngineInfo | None) -> Manifest:
    return Manifest(
        key="a" * 64,
        model_digest="d" * 64,
        recipe=Recipe(backend="cuda", ort_version="1.31.1", max_opset=26, max_ir_version=13),
        files=(),
        opset=17,
        ir_version=9,
        nodes=4,
        inputs=(),
        outputs=(),
        golden_source="generated",
        versions={},
        engine=info,
    )


MEASURED = manifest(engine(figure("opt", 0.010), figure("min", 0.004)))


def judged(
    facts: Manifest, usual: Baseline | None = None, now: dict[str, float] | None = None
) -> Outcome:
    return outcome(facts, compared(facts, usual, (now or {}).get, Settings()))


def started(p50: float, shapes: str = "opt") -> Baseline:
    return Baseline(p50=p50, samples=100, shapes=shapes)


def test_a_pod_that_starts_slow_is_slower_than_the_benchmark_of_its_class() -> None:
    found = judged(MEASURED, started(0.021), {"min": 0.009})
    assert (found.state, found.reason) == ("failed", Reason.SLOWER_THAN_BENCHMARK)
    assert "2 times the benchmark of the class, 4 ms for shapes 'min'" in found.message or (
        "2 times the benchmark of the class, 10 ms for shapes 'opt'" in found.message
    )


@pytest.mark.parametrize(
    ("usual", "now"),
    [
        (started(0.019), {}),
        (started(0.010), {"min": 0.030}),  # a device that idles: its clocks are low
        (started(0.030), {"min": 0.005}),  # a neighbour's burst at the start
        (None, {"min": 0.0079}),
    ],
)
def test_one_figure_near_the_benchmark_is_enough(
    usual: Baseline | None, now: dict[str, float]
) -> None:
    assert judged(MEASURED, usual, now).state == "ok"


def test_what_is_slower_by_less_than_noise_is_ok() -> None:
    assert judged(manifest(engine(figure("opt", 0.0003))), started(0.0012)).state == "ok"


@pytest.mark.parametrize(
    ("facts", "usual", "words"),
    [
        (manifest(None), started(9.0), "backend cuda has no engine"),
        (manifest(engine()), started(9.0), "the engine was built without a device"),
        (MEASURED, started(9.0, "s0"), "nothing of the same shapes"),
        (MEASURED, None, "nothing of the same shapes"),
    ],
)
def test_what_cannot_be_compared_is_unknown_and_says_why(
    facts: Manifest, usual: Baseline | None, words: str
) -> None:
    found = judged(facts, usual)
    assert found.state == "unknown"
    assert words in found.message
