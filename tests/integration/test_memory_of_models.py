"""A model that asks for more memory than there is ends the process that loads it, with a reason; not the pod."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from enginewright_contract.reasons import Reason
from enginewright_runtime.core import limits
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.proof import costs
from enginewright_runtime.proof.golden_run import GoldenFiles, JudgedRun
from enginewright_runtime.session.arrays import write_arrays
from onnx import ModelProto

from tests.support.broken_models import parse_text
from tests.support.manifests import CPU_RECIPE
from tests.support.preparing import Workplace

GIBIBYTE = 1 << 30
# 3 GiB made of a few bytes, and reduced to one number; of more, ONNX Runtime itself refuses Tile
OPERATORS = {
    "ConstantOfShape": "big = ConstantOfShape(size) s = ReduceSum<keepdims = 0>(big) y = Add(s, x)",
    "Expand": "big = Expand(x, size) y = ReduceMax(big)",
    "Tile": "big = Tile(x, size) y = ReduceMax(big)",
}


def hungry(operator: str) -> ModelProto:
    """Return x [1] to y [1], through a tensor of 3 GiB."""
    text = (
        f"(float[1] x) => (float[1] y) <int64[1] size = {{805306368}}> {{ {OPERATORS[operator]} }}"
    )
    return parse_text(text)


@pytest.fixture
def _limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process, and so its children, the memory of a container of 2 GiB."""
    monkeypatch.setattr(limits, "memory_limit", lambda: 2 * GIBIBYTE)


# fault: Hostile | a model that makes a tensor of 100 GiB of a few bytes | the memory limit of the process that loads it,
#   in every stage: `OutOfMemory` | before the pod is killed
@pytest.mark.usefixtures("_limited")
@pytest.mark.parametrize("operator", OPERATORS)
def test_preparation_of_a_model_that_wants_all_memory_ends_with_a_reason(
    operator: str, place: Workplace
) -> None:
    stage, outcome = place.prepare(place.task(place.put("m.onnx", hungry(operator))))
    assert outcome.report.reason is Reason.OUT_OF_MEMORY, (stage, outcome.message)


def judge(model: Path, inputs: Path) -> object:
    return JudgedRun(
        model=model,
        backend="cpu",
        files=GoldenFiles(inputs, inputs, None),
        recipe=CPU_RECIPE,
        compared_with="source",
        precision=None,
    ).run()


def profile(model: Path, inputs: Path) -> object:
    return costs.measure(model, inputs, CPU_RECIPE)


@pytest.mark.usefixtures("_limited")
@pytest.mark.parametrize("run", [judge, profile])
def test_later_runs_of_such_a_model_end_likewise(
    run: Callable[[Path, Path], object], tmp_path: Path
) -> None:
    onnx.save(hungry("Expand"), tmp_path / "model.onnx")
    write_arrays(tmp_path / "inputs.npz", {"a": {"x": np.ones(1, np.float32)}})
    with pytest.raises(StageFailure) as caught:
        run(tmp_path / "model.onnx", tmp_path / "inputs.npz")
    assert caught.value.reason is Reason.OUT_OF_MEMORY


def test_a_container_without_a_limit_leaves_memory_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = limits.memory()
    monkeypatch.setattr(limits, "memory_limit", lambda: None)
    assert 0 < limits.memory_of_child() < 0.75 * machine
    monkeypatch.setattr(limits, "memory_limit", lambda: 4 * GIBIBYTE)
    assert limits.memory_of_child() < 4 * GIBIBYTE
