"""Several runs at a time only where outputs stay the same, memory suffices, and they are faster."""

import threading
from collections.abc import Mapping
from typing import Any, Final, cast

import numpy as np
import pytest
from enginewright_runtime.session.datatypes import BY_ONNX
from enginewright_runtime.session.samples import GoldenSample
from enginewright_runtime.session.signature import Signature, Tensor
from enginewright_serving.server.inference.batching import BatchLimits
from enginewright_serving.server.startup.concurrency import (
    Concurrency,
    ConcurrencyProver,
    RunConditions,
)
from numpy.typing import NDArray
from typing_extensions import override

FLOAT: Final = BY_ONNX["tensor(float)"]
SIGNATURE: Final = Signature(
    {"x": Tensor("x", FLOAT, (-1,), ())}, {"y": Tensor("y", FLOAT, (-1,), ())}, ()
)
SAMPLES: Final = [
    GoldenSample(f"s{index}", {"x": np.full(4, index + 1, np.float32)}, {}) for index in range(3)
]
MIB: Final = 1 << 20


class Doubling:
    """Returns twice its input; `neighbour` is added in runs that others overlap."""

    def __init__(self, neighbour: float = 0.0, error: bool = False) -> None:
        self._neighbour, self._error = neighbour, error
        self._now = 0
        self._lock = threading.Lock()
        self._pair = threading.Barrier(2)

    def run(self, outputs: list[str], feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        assert outputs == ["y"]
        beside = threading.current_thread() is not threading.main_thread()
        if beside:
            self._pair.wait(20)  # so that they do overlap
            if self._error:
                raise RuntimeError("no")
        return [feeds["x"] * 2 + self._neighbour * beside]


class TimedProver(ConcurrencyProver):
    """With given times: the seconds of a run by number of runs at the same time."""

    def __init__(
        self, model: Doubling, times: Mapping[int, float], resident: int = 100, **changes: Any
    ) -> None:
        super().__init__(cast("Any", model), SIGNATURE, lambda _: None, **changes)
        self.rounds = 0  # of several runs
        self._resident = lambda: resident * MIB
        self._clock = lambda: 0.0
        self._given = times

    @override
    def _time(self, feeds: Any, runs: int, count: int) -> float:
        self.rounds += runs > 1
        return self._given[runs] * count


def prove(
    prover: ConcurrencyProver, batches: BatchLimits | None = None, **changes: Any
) -> Concurrency:
    given: dict[str, Any] = {
        "threads": 2,
        "most": None,
        "memory": 1000 * MIB,
        "loaded": 50 * MIB,
        "varying": False,
        "on_cpu": True,
        "foreign": False,
    }
    conditions = RunConditions(**(given | changes))
    return prover.prove(SAMPLES, SAMPLES[0].feeds, batches or BatchLimits(), conditions)


def test_runs_that_are_faster_together_take_place_together() -> None:
    proof = prove(TimedProver(Doubling(), {1: 0.010, 2: 0.015}))
    assert (proof.runs, proof.off) == (2, "")
    assert proof.gain == pytest.approx(4 / 3)


@pytest.mark.parametrize(("earlier", "rounds"), [({2: 1.3}, 1), ({2: 1.6}, 3), ({4: 1.3}, 3)])
def test_one_round_confirms_the_gain_of_another_pod(earlier: dict[int, float], rounds: int) -> None:
    prover = TimedProver(Doubling(), {1: 0.010, 2: 0.015}, earlier=earlier)
    assert prove(prover).runs == 2
    assert prover.rounds == rounds
    assert prover.gains[2] == pytest.approx(1.3 if rounds == 1 else 4 / 3)


def test_runs_that_are_hardly_faster_take_place_one_by_one() -> None:
    proof = prove(TimedProver(Doubling(), {1: 0.010, 2: 0.018}))
    assert (proof.runs, proof.off) == (1, "several runs at a time are not faster")
    assert proof.gain == pytest.approx(10 / 9)


@pytest.mark.parametrize(
    ("times", "runs"),
    [
        ({1: 1, 2: 1.0, 4: 2.0, 8: 4.0}, 2),  # no more after two
        ({1: 1, 2: 1.0, 4: 1.0, 8: 1.95}, 4),  # 8 gain less than 5% over 4
        ({1: 1, 2: 1.0, 4: 1.0, 8: 1.0}, 8),
        ({1: 1, 2: 1.9, 4: 1.0, 8: 1.0}, 8),
    ],
)
def test_as_few_as_are_about_as_fast_as_any(times: dict[int, float], runs: int) -> None:
    class Model(Doubling):
        @override
        def run(self, outputs: list[str], feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
            return [feeds["x"] * 2]

    prover = TimedProver(Model(), {runs: 0.01 * value for runs, value in times.items()})
    assert prove(prover, threads=8).runs == runs
    assert prove(prover, threads=8, most=2).runs <= 2


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"most": 1}, "serving.maxConcurrentRuns is 1"),
        ({"threads": 1}, "less than two CPUs"),
        ({"on_cpu": False}, "only ONNX Runtime's CPU provider"),
        ({"varying": True}, "outputs differ from run to run"),
        ({"foreign": True}, "the libraries of spec.extensions may not allow it"),
        ({"memory": 149 * MIB}, "the memory does not suffice"),
        ({"batches": BatchLimits(turn_rows=1)}, "runs are short"),
    ],
)
def test_there_is_one_run_at_a_time_where(changes: dict[str, Any], why: str) -> None:
    proof = prove(TimedProver(Doubling(), {1: 0.010, 2: 0.010}), **changes)
    assert proof.runs == 1
    assert why in proof.off


def test_short_runs_are_not_worth_a_thread() -> None:
    proof = prove(TimedProver(Doubling(), {1: 0.0002, 2: 0.0002}))
    assert proof == Concurrency(1, "a run takes only 200 µs")


def test_memory_that_is_not_known_does_not_count() -> None:
    assert prove(TimedProver(Doubling(), {1: 0.010, 2: 0.010}), memory=None).runs == 2


def test_outputs_that_depend_on_neighbours_are_found() -> None:
    proof = prove(TimedProver(Doubling(neighbour=0.1), {1: 0.010, 2: 0.010}))
    assert proof == Concurrency(1, "output 'y' of a run depends on others at the same time")


def test_a_model_that_fails_beside_others_runs_alone() -> None:
    proof = prove(TimedProver(Doubling(error=True), {1: 0.010, 2: 0.010}))
    assert proof == Concurrency(1, "the model fails with several runs at a time: no")
