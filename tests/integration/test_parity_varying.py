"""Outputs that vary from run to run: found on real sessions, judged in distribution, and not fooled."""

from collections.abc import Callable, Iterator
from functools import partial
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from enginewright_contract.manifest import Manifest, Spread, VaryingOutput
from enginewright_contract.reasons import Reason
from enginewright_runtime.proof.parity.comparison import Comparison, ParityVerdict
from enginewright_runtime.proof.parity.observing import is_random, observe
from enginewright_runtime.proof.parity.spread import (
    FEWEST_RUNS,
    REFERENCE_RUNS,
    DistributionTest,
    confirmations,
)
from enginewright_runtime.proof.parity.tolerances import Tolerances
from enginewright_runtime.session.arrays import Arrays
from numpy.typing import NDArray
from onnx import ModelProto, helper

from tests.support import broken_models as broken
from tests.support.preparing import Workplace

Array = NDArray[Any]
X = np.linspace(0.1, 1, 64, dtype=np.float32).reshape(1, 64)
MODELS = {
    "normal": "y = RandomNormalLike(x)",
    "seeded": "y = RandomNormalLike <seed = 7.0> (x)",
    "uniform": "y = RandomUniformLike(x)",
    "bernoulli": "y = Bernoulli(x)",
    "multinomial": "y = Multinomial <sample_size = 50, dtype = 6> (x)",
    "dropout": "y = Dropout(x, ratio, training)",
    "with signal": "r = RandomNormalLike <scale = 0.01> (x) y = Add(x, r)",
    "of one draw": "r = RandomNormal <shape = [1]> () y = Mul(x, r)",
    "heavy tails": "a = RandomNormalLike(x) b = RandomNormalLike(x) y = Div(a, b)",
    "one number": "r = RandomNormalLike(x) y = ReduceMean <keepdims = 0> (r)",
}


def build(name: str) -> ModelProto:
    weights = "<float ratio = {0.5}, bool training = {1}>" if name == "dropout" else ""
    kind = "int32[]" if name == "multinomial" else "float[]"
    return broken.parse_text(f"(float[1, 64] x) => ({kind} y) {weights} {{ {MODELS[name]} }}")


def runner(name: str) -> Callable[[Arrays], Arrays]:
    model = build(name)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return lambda feeds: {"y": session.run(["y"], dict(feeds))[0]}


def observe_golden(name: str) -> tuple[Arrays, tuple[VaryingOutput, ...]]:
    """Return the golden outputs of a model, and what is found to vary."""
    run = runner(name)
    golden = run({"x": X})
    varying = observe(
        run, {"s": {"x": X}}, {"s": golden}, {"y": "float32"}, random=is_random(build(name))
    )
    return golden, varying


def judge(
    golden: Arrays, varying: tuple[VaryingOutput, ...], runs: Callable[[], Arrays]
) -> ParityVerdict:
    comparison = Comparison("prepared", Tolerances(), {}, {}, varying)
    comparison.add("s", golden, runs(), runs)
    return comparison.verdict()


@pytest.mark.parametrize("name", MODELS)
def test_the_source_agrees_with_itself(name: str) -> None:
    golden, varying = observe_golden(name)
    assert [output.name for output in varying] == ["y"]
    assert varying[0].spreads[0].runs == REFERENCE_RUNS
    run = runner(name)
    for _ in range(10):
        verdict = judge(golden, varying, lambda: run({"x": X}))
        assert verdict.agrees, verdict.description
        assert verdict.compared
        assert verdict.outputs[0].runs


def replies(golden: Array, lie: str) -> Iterator[Array]:
    random = np.random.default_rng(3)
    shape, dtype = golden.shape, golden.dtype
    fixed = random.normal(size=shape)
    while True:
        noise = random.normal(size=shape)
        with np.errstate(invalid="ignore"):
            yield {
                "far": (noise * 1e6).astype(dtype),
                "NaN": np.full(shape, np.nan, np.float32).astype(dtype),
                "some NaN": np.where(random.random(shape) < 0.1, np.nan, noise).astype(dtype),
                "infinity": np.full(shape, np.inf, np.float32).astype(dtype),
                "zeros": np.zeros(shape, dtype),
                "ones": np.ones(shape, dtype),
                "repeated": fixed.astype(dtype),
                "memory": random.integers(0, 256, golden.nbytes, np.uint8)
                .view(dtype)
                .reshape(shape),
            }[lie]


LIES = ("far", "NaN", "some NaN", "infinity", "zeros", "ones", "repeated", "memory")


# fault: Outputs | another distribution, NaN, constants or uninitialized memory where an output
#   varies | every comparison, by distribution | 8 runs
@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize(
    "name",
    ["normal", "uniform", "bernoulli", "dropout", "with signal", "of one draw", "one number"],
)
def test_other_noise_is_refused(name: str, lie: str) -> None:
    golden, varying = observe_golden(name)
    made = replies(golden["y"], lie)
    verdict = judge(golden, varying, lambda: {"y": next(made)})
    if name == "one number" and lie in {"some NaN", "memory"}:
        return  # beyond the range in some of the runs only: as the module says, not found
    assert not verdict.agrees
    assert verdict.failures[0].figure == "distribution"


def test_integers_are_judged_too() -> None:
    golden, varying = observe_golden("multinomial")
    for value in (0, 63, 10**6):
        reply = {"y": np.full_like(golden["y"], value)}
        assert not judge(golden, varying, partial(dict, reply)).agrees


@pytest.mark.parametrize("changed", ["shape", "type"])
def test_the_form_is_compared_at_once(changed: str) -> None:
    golden, varying = observe_golden("normal")
    array = golden["y"][:, :8] if changed == "shape" else golden["y"].astype(np.float64)
    verdict = judge(golden, varying, lambda: {"y": array})
    assert verdict.failures[0].figure == changed


# fault: Outputs | a wrong signal under noise | cosine with the golden run | 8 runs
def test_a_wrong_signal_under_the_noise_is_refused() -> None:
    """Its values are distributed alike: only their places are others."""
    golden, varying = observe_golden("with signal")
    run = runner("with signal")
    verdict = judge(golden, varying, lambda: {"y": run({"x": X})["y"][:, ::-1]})
    assert "cosine similarity with the golden run" in str(verdict.description)


# fault: Outputs | an output varies and the source's does not | every comparison | first golden
#   inference
def test_an_output_stable_in_the_source_may_not_vary() -> None:
    golden, _ = observe_golden("normal")
    run = runner("normal")
    run({"x": X})  # ONNX Runtime begins every session with the same numbers
    verdict = judge(golden, (), lambda: run({"x": X}))
    assert not verdict.agrees
    assert "differs between runs, although the source's output does not" in str(verdict.description)


def test_where_the_distribution_is_not_known_nothing_is_compared() -> None:
    golden, _ = observe_golden("normal")
    run = runner("normal")
    verdict = judge(golden, (VaryingOutput(name="y"),), lambda: run({"x": X}))
    assert verdict.agrees
    assert not verdict.compared


def test_false_alarms() -> None:
    """The bound that the module states, for every number of runs of the reference."""
    assert confirmations(REFERENCE_RUNS) == 8
    for runs in range(FEWEST_RUNS, REFERENCE_RUNS + 1):
        assert 31 / comb(runs + confirmations(runs), runs) < 1e-6
        assert confirmations(runs) <= 32


def test_one_run_out_of_range_is_no_failure() -> None:
    """The bound counts on it that all runs must be beyond the same end."""
    spread = Spread(sample="s", runs=32, shape=(1,), distinct=True, ranges={"mean": (0.0, 1.0)})
    golden = np.array([0.5])
    allowed = Tolerances().of_output("y", "float64")
    high, low, usual = (np.array([value]) for value in (9.0, -9.0, 0.7))
    for series in ([high] * 7 + [usual], [high, low], [low] * 7 + [high]):
        trial = DistributionTest(spread, golden, allowed, None)
        assert [trial.take(array) for array in series] == [True] * (len(series) - 1) + [False]
        assert trial.wrong is None
    trial = DistributionTest(spread, golden, allowed, None)
    assert [trial.take(high) for _ in range(8)] == [True] * 7 + [False]
    assert "in each of 8 runs its mean is above the allowed range" in str(trial.wrong)


def test_golden_publishes_varying_outputs(place: Workplace, tmp_path: Path) -> None:
    task = place.task(place.put("model.onnx", broken.random_output()))
    place.complete(task)
    path = next((tmp_path / "store").rglob("manifest.json"))
    manifest = Manifest.model_validate_json(path.read_bytes())
    assert manifest.varying is not None
    assert [output.name for output in manifest.varying] == ["noise"]
    assert manifest.varying[0].spreads[0].distinct


def test_a_conversion_that_changes_the_noise_is_refused(place: Workplace, tmp_path: Path) -> None:
    task = place.task(place.put("model.onnx", broken.random_output()), target_opset=18)
    place.complete(task)
    converted = tmp_path / "work/converted/model.onnx"
    model = onnx.load(converted)
    model.graph.node[0].attribute.append(helper.make_attribute("scale", 1e6))
    onnx.save(model, converted)
    outcome = place.stage("golden", task)
    assert outcome.report.reason is Reason.PARITY_FAILED
    assert "output 'noise'" in outcome.message
