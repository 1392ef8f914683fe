"""Jobs that fail while others run: what is reported of them meanwhile, and which run again alone."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from enginewright_cli.preflight.check import _ModelFindings, check
from enginewright_cli.preflight.result import Result
from enginewright_cli.preflight.stages import Stages
from enginewright_cli.preflight.workspace import workspace
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding, StageReport
from enginewright_contract.task import STORE_PATH, TASK_VARIABLE
from typing_extensions import override

from tests.support import broken_models as broken
from tests.support.preflight_runs import make_request


class Failing(Stages):
    """The real stages, but for the first runs of some Jobs, which report failures."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: dict[str, list[StageReport]] = {}  # by Job

    @override
    def call(
        self,
        call: tuple[Any, ...],
        environment: Mapping[str, str],
        output: int,
        poll: Callable[[], None],
    ) -> int:
        job = json.loads(environment[TASK_VARIABLE] or "{}").get("job", "")
        if not self.fails.get(job):
            return super().call(call, environment, output, poll)
        report = self.fails[job].pop(0)
        root = Path(environment["ENGINEWRIGHT_ROOT"])
        path = root / STORE_PATH.lstrip("/") / "reports" / job / f"{report.stage}.json"
        path.parent.mkdir(parents=True)
        path.write_text(report.model_dump_json())
        poll()
        return 1


def make_failure(stage: str, reason: Reason) -> StageReport:
    """Return the report of a stage that failed, with a warning."""
    warning = Finding(severity="warning", reason=Reason.CALIBRATION_TOO_SMALL, cause="earlier")
    failure = Finding(reason=reason, cause="why")
    return StageReport(stage=stage, ok=False, failure=failure, findings=(warning,))


@pytest.fixture
def stages() -> Iterator[Failing]:
    stages = Failing()
    yield stages
    stages.close()


def run_check(
    path: Path, stages: Stages, at_once: int, *names: str
) -> tuple[Result, list[tuple[str, str]]]:
    """Look at a model; return the result and what was reported meanwhile."""
    reported: list[tuple[str, str]] = []
    with workspace(stages) as place:
        with place.pod("probe") as pod:
            held = pod.facts()
        request = make_request(path, *names)
        result = check(request, place, held, lambda *stage: reported.append(stage), at_once)
    return result, reported


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(broken.relu().SerializeToString())
    return path


def test_no_stage_begins_after_one_that_failed(model: Path, stages: Failing) -> None:
    stages.fails["prepare-cpu-any"] = [make_failure("fetch", Reason.SOURCE_UNREACHABLE)]
    result, reported = run_check(model, stages, 1, "cpu")
    assert result.targets["cpu"].reason == "SourceUnreachable"
    assert reported == [("cpu", "fetch")]


def test_an_invalid_model_is_read_again(tmp_path: Path, model: Path) -> None:
    findings = _ModelFindings()
    with pytest.raises(FileNotFoundError):
        findings.describe_graph(tmp_path / "gone.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    findings.describe_graph(tmp_path / "bad.onnx")
    assert findings._graph is None
    findings.describe_graph(model)
    assert findings._graph is not None


def short() -> dict[str, list[StageReport]]:
    """Return what a prepare and an engine Job report that lack memory and disk."""
    return {
        "prepare-tensorrt-rtx": [make_failure("golden", Reason.OUT_OF_MEMORY)],
        "prepare-cpu-any": [make_failure("fetch", Reason.STORAGE_FULL)],
        "engine-sm89": [make_failure("build", Reason.BUILD_OUT_OF_MEMORY)],
    }


def test_a_job_without_memory_runs_again_alone(model: Path, stages: Failing) -> None:
    stages.fails = short()
    result, _ = run_check(model, stages, 2, "sm86", "sm89", "cpu")
    assert not any(stages.fails.values())
    assert {name: target.reason for name, target in result.targets.items()} == {
        "sm86": None,
        "sm89": None,
        "cpu": None,
    }
    assert "earlier" not in {finding.message for finding in result.findings}


def test_the_report_of_the_first_run_is_discarded(model: Path, stages: Failing) -> None:
    stages.fails = {
        "prepare-tensorrt-rtx": [make_failure("fetch", Reason.INVALID_MODEL)],
        "prepare-cpu-any": [
            make_failure("golden", Reason.OUT_OF_MEMORY),
            make_failure("fetch", Reason.SOURCE_UNREACHABLE),
        ],
    }
    result, _ = run_check(model, stages, 2, "sm89", "cpu")
    assert result.targets["cpu"].reason == "SourceUnreachable"
    assert "OutOfMemory" not in {finding.reason for finding in result.findings}


def test_a_job_that_ran_alone_does_not_run_again(model: Path, stages: Failing) -> None:
    stages.fails = short()
    result, reported = run_check(model, stages, 1, "sm89", "cpu")
    assert {name: target.reason for name, target in result.targets.items()} == {
        "sm89": "OutOfMemory",
        "cpu": "StorageFull",
    }
    assert [stage for _, stage in reported] == ["fetch", "fetch"]
