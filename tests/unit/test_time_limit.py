"""Neither other load nor many cores decide how far a search comes: both clocks must be over."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime as ort
import pytest
from enginewright_contract.manifest import TensorSpec
from enginewright_runtime.core.time_limit import TimeLimit
from enginewright_runtime.prepare.sizes.discovery import attempts
from enginewright_runtime.prepare.sizes.discovery.attempts import TrialRuns
from enginewright_runtime.prepare.sizes.discovery.graph import Clues
from enginewright_runtime.prepare.sizes.discovery.problem import pose
from enginewright_runtime.prepare.sizes.discovery.search import Outcome
from enginewright_runtime.prepare.sizes.trial_run import end_after


@pytest.mark.parametrize(
    ("processor", "elapsed", "over"),
    [(9.0, 9.0, False), (99.0, 9.0, False), (9.0, 99.0, False), (11.0, 11.0, True)],
)
def test_both_clocks_must_be_over(processor: float, elapsed: float, over: bool) -> None:
    now = {"processor": 100.0, "elapsed": 500.0}
    limit = TimeLimit(10.0, (lambda: now["processor"], lambda: now["elapsed"]))
    now = {"processor": 100.0 + processor, "elapsed": 500.0 + elapsed}
    assert limit.over() is over


def test_many_cores_end_no_run_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "process_time", lambda: 1000 * time.monotonic())
    with end_after(60.0) as options:
        time.sleep(0.3)
        assert not options.terminate


class SlowSession:
    """Runs until it is ended."""

    def get_inputs(self) -> list[Any]:
        return [SimpleNamespace(name="x", type="tensor(float)")]

    def get_outputs(self) -> list[Any]:
        return [SimpleNamespace(name="y", type="tensor(float)")]

    def run(self, _: list[str], __: dict[str, Any], options: ort.RunOptions) -> list[Any]:
        while not options.terminate:
            pass
        raise RuntimeError("ended")


def test_timeout_skips_larger_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_RUN_SECONDS", 0.02)
    problem = pose((TensorSpec(name="x", dtype="float32", shape=("n",)),), (), frozenset(), Clues())
    session: Any = SlowSession()
    runs = TrialRuns(session, problem, {}, tmp_path / "journal")
    slow = Outcome(ran=False, message="it would take too long")
    (name,) = (item.name for item in problem.unknowns)
    assert runs(problem.start | {name: 4}, "min") == slow
    monkeypatch.setattr(session, "run", lambda *_: pytest.fail("it was run"), raising=False)
    assert runs(problem.start | {name: 8}, "min") == slow
