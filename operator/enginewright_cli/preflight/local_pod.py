"""The pod of one Job on this machine: its volumes as folders, and the stages that run in it."""

import json
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from enginewright_contract import task as contract
from enginewright_contract.images import ImageFacts
from enginewright_contract.manifest import MODEL_NAME
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding, StageReport
from enginewright_contract.task import (
    EXAMINE_STAGE,
    ROOT_VARIABLE,
    STORE_VARIABLE,
    TASK_VARIABLE,
    EngineTask,
    PrepareTask,
    ServeTask,
)
from pydantic import ValidationError

from enginewright_cli import installing
from enginewright_cli.preflight.stages import InstallationError, Stages, tail
from enginewright_cli.preflight.stopping import Stop, Stopped

if TYPE_CHECKING:
    from enginewright_runtime.core.handoff import Validated

_RUNTIME: Final = "enginewright_runtime"
_EXAMINATION: Final = "enginewright_serving.examination"
_MISSING: Final = re.compile(r"No module named '?([\w.]+)")


class _TimeoutError(Exception):
    """A Job has exceeded its time limit."""


@dataclass(frozen=True)
class PodSettings:
    """What the pods of one model have in common."""

    stages: Stages  # runs the processes
    stop: Stop  # when set, running processes are ended
    job_seconds: float  # time limit for the stages of one Job
    environment: Mapping[str, str]  # in addition to this process's


class LocalPod:
    """One pod, whose volumes are folders below `root`."""

    def __init__(self, root: Path, settings: PodSettings) -> None:
        self._root = root
        self._settings = settings
        for path in (contract.WORK_PATH, "/dev", "/tmp"):  # noqa: S108 - below root
            self._path(path).mkdir(parents=True)

    def mount(self, path: str, folder: Path) -> None:
        """Mount a folder of this machine as a volume."""
        place = self._path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(folder, target_is_directory=True)

    def run(
        self,
        stages: tuple[str, ...],
        task: PrepareTask | EngineTask,
        progress: Callable[[str], None],
    ) -> tuple[StageReport, ...]:
        """Run stages until one fails; `progress` gets their names. Raises InstallationError and Stopped."""
        call = (f"{_RUNTIME}.__main__:main", ["stage", *stages])
        return self._run(call, stages, task.job, task.to_json(), progress)

    def examine(
        self, task: ServeTask, request: Path | None, progress: Callable[[str], None]
    ) -> StageReport:
        """Run a prepared model as a serving pod would, and answer a request if there is one. Raises as `run`."""
        stages = (EXAMINE_STAGE,)
        return self._run(
            (f"{_EXAMINATION}:main", request and str(request)),
            stages,
            task.revision,
            task.to_json(),
            progress,
        )[-1]

    def _run(
        self,
        call: tuple[Any, ...],
        stages: tuple[str, ...],
        job: str,
        task: str,
        progress: Callable[[str], None],
    ) -> tuple[StageReport, ...]:
        reports = self._path(contract.STORE_PATH) / "reports" / job
        shutil.rmtree(reports, ignore_errors=True)  # of an earlier run of this Job
        starting = iter(stages)
        progress(next(starting))
        pending = list(stages[:-1])
        end = time.monotonic() + self._settings.job_seconds

        def poll() -> None:
            report = read_report(reports / f"{pending[0]}.json") if pending else None
            if report and report.ok:
                pending.pop(0)
                progress(next(starting))
            if time.monotonic() > end:
                raise _TimeoutError

        def read() -> list[StageReport | None]:
            return [read_report(reports / f"{stage}.json") for stage in stages]

        try:
            code, output = self._call(call, task, poll)
        except _TimeoutError:
            done = [report for report in read() if report and report.ok]
            return (*done, self._make_timeout(stages[-1 - len(pending)]))
        stored = read()
        results = [report for report in stored if report]
        # if the store is full, only the termination message exists
        last = read_report(self._path(contract.TERMINATION_LOG))
        if last and (not results or results[-1].stage != last.stage):
            results.append(last)
        if not results or (code and results[-1].ok):
            raise InstallationError(f"stage {stages[len(results)]} {_describe_end(code)}{output}")
        if results[-1].ok and stored[-1] is None:
            raise InstallationError(f"no space for the report of stage {stages[-1]}")
        return tuple(results)

    def _make_timeout(self, stage: str) -> StageReport:
        """Return the result of the stage in which the Job timed out, as the operator reports it."""
        failure = Finding(
            reason=Reason.TIMEOUT,
            cause=f"the Job exceeded its time limit of {self._settings.job_seconds:g} s in stage {stage}",
        )
        return StageReport(stage=stage, ok=False, failure=failure)

    def read_validated(self) -> "Validated":
        """Return the result of stage `validate`, after it succeeded."""
        from enginewright_runtime.core.handoff import Validated  # noqa: PLC0415 - loaded lazily

        return Validated.read(self._path(contract.WORK_PATH))

    def find_model(self) -> Path:
        """Return the source's file, after stage `fetch` has written it."""
        from enginewright_runtime.core.handoff import MODEL_FOLDER  # noqa: PLC0415 - loaded lazily

        return self._path(contract.WORK_PATH) / MODEL_FOLDER / MODEL_NAME

    def facts(self) -> ImageFacts:
        """Probe this installation, as the operator probes an image. Raises InstallationError."""
        code, output = self._call((f"{_RUNTIME}.__main__:main", ["probe"]), "")
        output += self._settings.stages.server_output()
        try:
            return ImageFacts.model_validate_json(self._path(contract.TERMINATION_LOG).read_bytes())
        except (OSError, ValidationError):
            missing = _MISSING.search(output)
            why = f"needs {missing[1]}, which is not installed" if missing else "does not work"
            more = "" if missing else f": its probe {_describe_end(code)}{output}"
            raise InstallationError(
                f"the runtime package {why}{more}; {installing.remedy('preflight')}"
            ) from None

    def _call(
        self, call: tuple[Any, ...], task: str, poll: Callable[[], None] = lambda: None
    ) -> tuple[int, str]:
        """Call "module:name" with arguments in a process, and `poll` meanwhile; return exit code and end of output."""
        self._path(contract.TERMINATION_LOG).unlink(missing_ok=True)
        scratch = self._path("/tmp")  # noqa: S108 - below root
        environment = {
            **{name: item for name, item in os.environ.items() if name != STORE_VARIABLE},
            ROOT_VARIABLE: str(self._root),
            TASK_VARIABLE: task,
            "TMPDIR": str(scratch),
            **self._settings.environment,
        }
        with tempfile.TemporaryFile(dir=scratch) as log:
            code = self._settings.stages.call(
                call, environment, log.fileno(), lambda: self._poll(poll)
            )
            output = tail(log.fileno()).strip()
        return code, f"; last output: {output}" if output else ""

    def _poll(self, poll: Callable[[], None]) -> None:
        if self._settings.stop.is_set():
            raise Stopped
        poll()

    def _path(self, path: str) -> Path:
        return self._root / path.lstrip("/")


def _describe_end(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    return f"was killed by {signal.Signals(-code).name}"


def read_report(path: Path) -> StageReport | None:
    """Return a stage's report, or None if it is missing or unreadable."""
    try:
        content: Any = json.loads(path.read_bytes())
        return StageReport.model_validate(content)
    except (OSError, ValueError):
        return None
