"""The frame around a stage: every end is reported to each of its readers."""

import json
from pathlib import Path

import pytest
from enginewright_contract.manifest import ArtifactFile, TensorSpec
from enginewright_contract.reasons import ExitCode, Reason
from enginewright_contract.report import StageReport, read_termination_message
from enginewright_contract.task import ShapeProfile
from enginewright_runtime.core import digests
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.graph import shapes
from enginewright_runtime.runner import run_stage
from hypothesis import given
from hypothesis import strategies as st

from tests.support.preparing import Workplace


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
        (OSError(28, "No space left on device"), Reason.STORAGE_FULL, ExitCode.TRANSIENT),
    ],
)
def test_exceptions_become_reports(
    error: Exception, reason: Reason, code: ExitCode, tmp_path: Path
) -> None:
    for name in ("work", "store", "dev"):
        (tmp_path / name).mkdir()

    def run() -> StageReport:
        raise error

    assert run_stage("golden", run, Paths.under(tmp_path), "job-1") == code
    termination_message = read_termination_message((tmp_path / "dev/termination-log").read_text())
    full = json.loads((tmp_path / "store/reports/job-1/golden.json").read_text())
    assert termination_message is not None
    assert (termination_message.stage, termination_message.ok, termination_message.reason) == (
        "golden",
        False,
        reason,
    )
    assert StageReport.model_validate(full).outcome == termination_message.outcome
    assert "\n" not in termination_message.outcome


def test_a_stage_before_its_turn(tmp_path: Path) -> None:
    place = Workplace(tmp_path, in_process=True)
    outcome = place.stage("golden", place.task("pvc://models/m.onnx"))
    assert outcome.report.reason is Reason.INTERNAL_ERROR
    assert "cannot read the result of an earlier stage" in outcome.message


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
    reported = shapes.missing([spec("x")], resolved.unsized, ["x"])
    assert reported.reason is Reason.SHAPE_PROFILE_MISSING
    assert "input x has an unknown rank" in reported.message
    declared = ShapeProfile(input="x", min=(1, 2), opt=(1, 2), max=(1, 2))
    assert not shapes.resolve([spec("x")], [declared], frozenset({"x"})).unsized


SIZES = st.one_of(st.integers(1, 9), st.sampled_from(["n", "s"]), st.none())


@given(st.lists(st.lists(SIZES, max_size=4), min_size=1, max_size=3))
def test_an_input_has_sizes_or_lacks_some(drawn: list[list[int | str | None]]) -> None:
    inputs = [spec(f"x{index}", *shape) for index, shape in enumerate(drawn)]
    resolved = shapes.resolve(inputs, [], frozenset())
    by_input = {profile.input: profile for profile in resolved.profiles}
    for input_ in inputs:
        assert (input_.name in by_input) != (input_.name in resolved.unsized)
        if profile := by_input.get(input_.name):
            assert len(profile.opt) == len(input_.shape)
            for fixed, low, usual, high in zip(
                input_.shape, profile.min, profile.opt, profile.max, strict=True
            ):
                assert low <= usual <= high
                assert not isinstance(fixed, int) or {low, usual, high} == {fixed}
