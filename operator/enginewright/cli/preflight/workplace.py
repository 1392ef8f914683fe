"""The folders of one preflight, and the stages that run on them as they do in a Job's pod."""

import json
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from enginewright.cli.preflight import locales
from enginewright.cli.preflight.stages import Stages
from enginewright.cli.preflight.stopping import Stop, Stopped
from enginewright.contract import task as contract
from enginewright.contract.images import ImageFacts
from enginewright.contract.manifest import MANIFEST_NAME, Manifest
from enginewright.contract.reasons import Reason
from enginewright.contract.report import Finding, StageReport
from enginewright.contract.task import TASK_VARIABLE, EngineTask, PrepareTask, ServeTask

EXAMINE: Final = "examine"

JOB_SECONDS: Final = 3600  # that the stages of one Job may take, as in a cluster
_RUNTIME: Final = "enginewright_runtime"
_EXAMINATION: Final = "enginewright_runtime.examination"
_FULL: Final = "the work folder has "
_MISSING: Final = re.compile(r"No module named '?([\w.]+)")
_ROOT_VARIABLE: Final = "ENGINEWRIGHT_ROOT"
_LAST_WORDS: Final = 2000  # characters


class InstallationError(Exception):
    """The runtime package is not there, or says nothing that can be read."""


class _LateError(Exception):
    """A Job's time has ended."""


@dataclass(frozen=True)
class Outcome:
    """What one stage has found."""

    report: StageReport

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return the findings; a failure that has none of its own is one."""
        report = self.report
        if report.ok or report.reason is None:
            return report.findings
        errors = [each for each in report.findings if each.severity == "error"]
        if errors:
            return report.findings
        nodes = tuple(report.facts.get("nodes", ()))
        failure = Finding(
            severity="error",
            reason=report.reason,
            message=report.message,
            nodes=nodes,
            node_count=len(nodes),
        )
        return (failure, *report.findings)


@contextmanager
def workplace(
    stages: Stages, stop: Stop | None = None, job_seconds: float = JOB_SECONDS
) -> Iterator["Workplace"]:
    """Make the folders, and remove them, whatever happens.

    TMPDIR counts where it is set, even if it cannot be used: what is large belongs where it was
    meant to go. Once `stop` is set, what runs is ended.

    Args:
        stages: that begins what runs here.
        stop: is set when nobody wants to know any more.
        job_seconds: that the stages of one Job may take.

    Raises:
        OSError: there is no room, or no right.
    """
    parent = os.environ.get("TMPDIR") or None
    root = Path(tempfile.mkdtemp(prefix="enginewright-preflight-", dir=parent))
    try:
        yield Workplace(root, stages, stop or Stop(), job_seconds)
    finally:
        shutil.rmtree(root, ignore_errors=True)


class Workplace:
    """What a pod would see as its volumes, below one folder."""

    def __init__(self, root: Path, stages: Stages, stop: Stop, job_seconds: float) -> None:
        self.root = root
        self._job_seconds = job_seconds
        self._stages = stages
        self._stop = stop
        for path in (contract.WORK_PATH, contract.STORE_PATH, "/dev", "/tmp"):  # noqa: S108 - below root
            self._place(path).mkdir(parents=True)
        self._locales = locales.lay_out(self._place(locales.FOLDER))

    def mount(self, path: str, folder: Path) -> None:
        """Show a folder of this machine where a claim would be."""
        place = self._place(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(folder.resolve(), target_is_directory=True)

    def run(
        self, stages: tuple[str, ...], task: PrepareTask | EngineTask, tell: Callable[[str], None]
    ) -> tuple[Outcome, ...]:
        """Run the stages of one Job until one fails; return what each of them found.

        `tell` hears of every stage when it begins.

        Raises:
            InstallationError: nothing readable came of it.
            Stopped: it was ended.
        """
        call = (f"{_RUNTIME}.__main__:main", ["stage", *stages])
        return self._run(call, stages, task.job, task.to_json(), tell)

    def examine(self, task: ServeTask, tell: Callable[[str], None]) -> Outcome:
        """Run a prepared model as a serving pod would.

        Raises:
            InstallationError, Stopped: as `run`.
        """
        stages = (EXAMINE,)
        return self._run((f"{_EXAMINATION}:main",), stages, task.revision, task.to_json(), tell)[-1]

    def _run(
        self,
        call: tuple[Any, ...],
        stages: tuple[str, ...],
        job: str,
        task: str,
        tell: Callable[[str], None],
    ) -> tuple[Outcome, ...]:
        reports = self._place(contract.STORE_PATH) / "reports" / job
        begun = iter(stages)
        tell(next(begun))
        waited = list(stages[:-1])
        end = time.monotonic() + self._job_seconds

        def look() -> None:
            if waited and (reports / f"{waited[0]}.json").exists():
                waited.pop(0)
                tell(next(begun))
            if time.monotonic() > end:
                raise _LateError

        def read() -> list[StageReport | None]:
            return [_read(reports / f"{stage}.json") for stage in stages]

        try:
            code, words = self._call(call, task, look)
        except _LateError:
            done = [Outcome(report) for report in read() if report and report.ok]
            return (*done, self._late(stages[-1 - len(waited)]))
        known = read()
        found = [Outcome(report) for report in known if report]
        if last := _read(self._place(contract.TERMINATION_LOG)):
            # where the store is full the herald alone is left
            found += [Outcome(last)] if not found or found[-1].report.stage != last.stage else []
        if not found or (code and found[-1].report.ok):
            raise InstallationError(f"stage {stages[len(found)]} {_ended(code)}{words}")
        if found[-1].report.ok and known[-1] is None:
            raise InstallationError(f"there is no room for the report of stage {stages[-1]}")
        return tuple(found)

    def _late(self, stage: str) -> Outcome:
        """Return the outcome of a stage in which the Job's time ended, as the operator reports it."""
        message = (
            f"the Job took longer than {self._job_seconds:g} s, the last of it in stage {stage}"
        )
        return Outcome(StageReport(stage=stage, ok=False, reason=Reason.TIMEOUT, message=message))

    def handoff(self, name: str) -> dict[str, Any]:
        """Return what a stage that went well has left for the next one."""
        path = self._place(contract.WORK_PATH) / f"{name}.json"
        told: dict[str, Any] = json.loads(path.read_bytes())
        return told

    def manifest(self, kind: str, key: str) -> Manifest:
        """Return what was published as `prepared` or `engines`."""
        path = self.artifact(kind, key) / MANIFEST_NAME
        return Manifest.model_validate_json(path.read_bytes())

    def artifact(self, kind: str, key: str) -> Path:
        """Return the folder of an artefact."""
        return self._place(contract.STORE_PATH) / kind / key

    def fetched(self) -> tuple[str, ...]:
        """Return the files that stage `fetch` has brought, the .onnx file first; (): none."""
        reports = self._place(contract.STORE_PATH) / "reports"
        told = (_read(path) for path in reports.glob("prepare-*/fetch.json"))
        facts = next((each.facts for each in told if each and each.ok), {})
        return tuple(each["path"] for each in facts.get("files", ()))

    def fetched_model(self) -> Path:
        """Return the source's file, once stage `fetch` has brought it."""
        from enginewright_runtime.digests import MODEL_NAME  # noqa: PLC0415 - loaded lazily
        from enginewright_runtime.handoff import MODEL_FOLDER  # noqa: PLC0415 - loaded lazily

        return self._place(contract.WORK_PATH) / MODEL_FOLDER / MODEL_NAME

    def clear_work(self) -> None:
        """Empty the folder that the stages of one Job share."""
        work = self._place(contract.WORK_PATH)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()

    def facts(self) -> ImageFacts:
        """Ask this installation what it holds, as the operator asks an image.

        Raises:
            InstallationError: it cannot say.
        """
        code, words = self._call((f"{_RUNTIME}.__main__:main", ["probe"]), "")
        words += self._stages.last_words()
        try:
            return ImageFacts.model_validate_json(
                self._place(contract.TERMINATION_LOG).read_bytes()
            )
        except (OSError, ValidationError):
            missing = _MISSING.search(words)
            why = f"needs {missing[1]}, which is not installed" if missing else "does not work"
            more = "" if missing else f": its probe {_ended(code)}{words}"
            raise InstallationError(
                f"the runtime package {why}{more}; run: pip install 'enginewright[preflight]'"
            ) from None

    def _call(
        self, call: tuple[Any, ...], task: str, look: Callable[[], None] = lambda: None
    ) -> tuple[int, str]:
        """Call a function of the runtime in a process of its own; return exit code and last words.

        Args:
            call: "module:name", and arguments.
            task: what it finds in its environment.
            look: is called while it runs.
        """
        self._place(contract.TERMINATION_LOG).unlink(missing_ok=True)
        scratch = self._place("/tmp")  # noqa: S108 - below root
        environment = os.environ | {
            _ROOT_VARIABLE: str(self.root),
            TASK_VARIABLE: task,
            "TMPDIR": str(scratch),
            **self._locales,
        }
        with tempfile.TemporaryFile(dir=scratch) as log:
            code = self._stages.call(call, environment, log.fileno(), lambda: self._look(look))
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST_WORDS))
            words = log.read().decode(errors="replace").strip()
        return code, f"; its last words: {words}" if words else ""

    def _look(self, look: Callable[[], None]) -> None:
        self._go_on()
        look()

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise Stopped

    def _place(self, path: str) -> Path:
        return self.root / path.lstrip("/")


def _ended(code: int) -> str:
    """Say how a process ended."""
    if code >= 0:
        return f"ended with code {code}"
    return f"was killed by {signal.Signals(-code).name}"


def _read(path: Path) -> StageReport | None:
    try:
        told: Any = json.loads(path.read_bytes())
        report = StageReport.model_validate(told)
    except (OSError, ValueError):
        return None
    if report.reason is Reason.MODEL_TOO_LARGE and report.message.startswith(_FULL):
        # a pod has too little room for such a model; here it is this machine's disk that is full
        return report.model_copy(update={"reason": Reason.STORE_UNAVAILABLE})
    return report
