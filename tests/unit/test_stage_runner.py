"""The frame around a stage: every end is told, to each of its readers, in words."""

import faulthandler
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from enginewright.contract.manifest import ArtifactFile, TensorSpec
from enginewright.contract.reasons import ExitCode, Reason
from enginewright.contract.report import StageReport, read_herald
from enginewright.contract.task import ShapeProfile
from enginewright_runtime.core import digests, isolation
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.graph import shapes
from enginewright_runtime.runner import run_stage
from hypothesis import given
from hypothesis import strategies as st

from tests.support import broken_models as broken
from tests.support.preparing import Workplace

TESTS = "tests.unit.test_stage_runner"


def crash(name: str) -> None:
    """End the child in the way that `name` says."""
    print("last words", flush=True)
    match name:
        case "segfault":
            faulthandler.disable()
            os.kill(os.getpid(), signal.SIGSEGV)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(7)
        case "memory":
            np.zeros(1 << 60, np.int8)
        case "error":
            raise ValueError("of no use")
        case _:
            raise StageFailure(Reason.PROVIDER_MISSING, "no provider", nodes=("a (B)",))


@pytest.mark.parametrize(
    ("name", "reason", "told"),
    [
        (
            "segfault",
            Reason.BACKEND_CRASHED,
            "trying crashed with SIGSEGV; its last words: last words",
        ),
        ("killed", Reason.OUT_OF_MEMORY, "trying was killed: out of memory"),
        ("exit", Reason.BACKEND_CRASHED, "trying ended its process with code 7"),
        ("memory", Reason.OUT_OF_MEMORY, "trying ran out of memory"),
        ("error", Reason.INTERNAL_ERROR, "trying failed: ValueError: of no use"),
        ("failure", Reason.PROVIDER_MISSING, "no provider"),
    ],
)
def test_ends_of_a_child(name: str, reason: Reason, told: str) -> None:
    with pytest.raises(StageFailure) as caught:
        isolation.run_isolated(f"{TESTS}:crash", "trying", name=name)
    assert caught.value.reason is reason
    assert told in caught.value.message
    assert "Traceback" not in caught.value.message


@pytest.mark.parametrize(
    ("error", "reason", "code"),
    [
        (
            StageFailure(Reason.STORE_UNAVAILABLE, "no"),
            Reason.STORE_UNAVAILABLE,
            ExitCode.TRANSIENT,
        ),
        (ValueError("line one\nline two"), Reason.INTERNAL_ERROR, ExitCode.INTERNAL),
        (MemoryError(), Reason.OUT_OF_MEMORY, ExitCode.TRANSIENT),
        (OSError(28, "No space left on device"), Reason.MODEL_TOO_LARGE, ExitCode.PERMANENT),
    ],
)
def test_every_exception_becomes_a_report(
    error: Exception, reason: Reason, code: ExitCode, tmp_path: Path
) -> None:
    for name in ("work", "store", "dev"):
        (tmp_path / name).mkdir()

    def run() -> StageReport:
        raise error

    assert run_stage("golden", run, Paths.under(tmp_path), "job-1") == code
    herald = read_herald((tmp_path / "dev/termination-log").read_text())
    full = json.loads((tmp_path / "store/reports/job-1/golden.json").read_text())
    assert herald is not None
    assert (herald.stage, herald.ok, herald.reason) == ("golden", False, reason)
    assert full["message"] == herald.message
    assert "\n" not in herald.message


@pytest.mark.parametrize("task", ["", "{}", "[1]", '{"job": 1}'])
def test_a_task_that_is_none(task: str, tmp_path: Path) -> None:
    place = Workplace(tmp_path)
    process = place.start(["stage", "fetch"], task)
    _, log = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERNAL
    assert "ENGINEWRIGHT_TASK is no PrepareTask" in log
    assert "Traceback" not in log


def test_a_stage_before_its_turn(tmp_path: Path) -> None:
    place = Workplace(tmp_path, in_process=True)
    outcome = place.stage("golden", place.task("pvc://models/m.onnx"))
    assert outcome.report.reason is Reason.INTERNAL_ERROR
    assert "what an earlier stage left" in outcome.message


def test_a_herald_of_many_nodes_is_cut_and_the_report_is_not(tmp_path: Path) -> None:
    place = Workplace(tmp_path, in_process=True)
    model = broken.newer_operators(150)
    model.opset_import[0].version = 17  # which has them not
    for index, node in enumerate(model.graph.node):
        node.name = f"/一个/很长的/作用域/第{index}层/注意力" * 8  # three bytes a letter
    _, outcome = place.prepare(place.task(place.put("m.onnx", model)))
    assert outcome.report.reason is Reason.UNSUPPORTED_OPERATOR
    assert outcome.message.endswith("…")
    assert outcome.full is not None
    finding = outcome.full["findings"][0]
    assert (len(finding["nodes"]), finding["node_count"]) == (100, 150)


def test_digests_of_models() -> None:
    """One file: what sha256sum prints. Several: order and names of the data files count."""
    model = ArtifactFile(path="model.onnx", sha256="a" * 64, size_bytes=1)
    first = ArtifactFile(path="a.bin", sha256="b" * 64, size_bytes=1)
    second = ArtifactFile(path="b.bin", sha256="c" * 64, size_bytes=1)
    assert digests.model_digest((model,)) == "a" * 64
    together = digests.model_digest((model, first, second))
    assert digests.model_digest((second, model, first)) == together
    swapped = first.model_copy(update={"sha256": second.sha256})
    assert digests.model_digest((model, swapped, second)) != together


def spec(name: str, *shape: int | str | None) -> TensorSpec:
    return TensorSpec(name=name, dtype="float32", shape=shape)


def test_defaults_and_named_dimensions() -> None:
    ids, mask, state = spec("ids", "n", "s"), spec("mask", "n", "s"), spec("state", "n", 7)
    declared = ShapeProfile(input="ids", min=(1, 2), opt=(2, 4), max=(3, 8))
    resolved = shapes.resolve([ids, mask, state], [declared], frozenset())
    assert not resolved.findings
    assert [profile.max for profile in resolved.profiles] == [(3, 8), (3, 8), (3, 7)]
    batch = shapes.resolve([spec("x", None, 4)], [], frozenset())
    assert batch.profiles[0] == ShapeProfile(input="x", min=(1, 4), opt=(8, 4), max=(32, 4))


def test_an_input_without_a_rank_needs_a_profile() -> None:
    resolved = shapes.resolve([spec("x")], [], frozenset({"x"}))
    assert (resolved.unsized, resolved.findings) == (("x",), ())
    told = shapes.missing([spec("x")], resolved.unsized, ["x"])
    assert told.reason is Reason.SHAPE_PROFILE_MISSING
    assert "input x has an unknown rank" in told.message
    declared = ShapeProfile(input="x", min=(1, 2), opt=(1, 2), max=(1, 2))
    assert not shapes.resolve([spec("x")], [declared], frozenset({"x"})).unsized


SIZES = st.one_of(st.integers(1, 9), st.sampled_from(["n", "s"]), st.none())


@given(st.lists(st.lists(SIZES, max_size=4), min_size=1, max_size=3))
def test_an_input_has_sizes_or_lacks_some(drawn: list[list[int | str | None]]) -> None:
    inputs = [spec(f"x{index}", *shape) for index, shape in enumerate(drawn)]
    resolved = shapes.resolve(inputs, [], frozenset())
    by_input = {profile.input: profile for profile in resolved.profiles}
    for each in inputs:
        assert (each.name in by_input) != (each.name in resolved.unsized)
        if profile := by_input.get(each.name):
            assert len(profile.opt) == len(each.shape)
            for fixed, low, usual, high in zip(
                each.shape, profile.min, profile.opt, profile.max, strict=True
            ):
                assert low <= usual <= high
                assert not isinstance(fixed, int) or {low, usual, high} == {fixed}
