"""The folders of one preflight, and the stages that run on them as they do in a Job's pod."""

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from enginewright.cli.preflight.stopping import Stop, Stopped
from enginewright.contract import task as contract
from enginewright.contract.images import ImageFacts
from enginewright.contract.manifest import MANIFEST_NAME, Manifest
from enginewright.contract.reasons import Reason
from enginewright.contract.report import Finding, StageReport
from enginewright.contract.task import TASK_VARIABLE, EngineTask, PrepareTask, ServeTask

EXAMINE: Final = "examine"

_RUNTIME: Final = "enginewright_runtime"
_EXAMINATION: Final = "enginewright_runtime.examination"
_FULL: Final = "the work folder has "
_MISSING: Final = re.compile(r"No module named '?([\w.]+)")
_ROOT_VARIABLE: Final = "ENGINEWRIGHT_ROOT"
_STOP_SECONDS: Final = 10.0  # that a stage has to end its children
_LAST_WORDS: Final = 2000  # characters
_LOOK_SECONDS: Final = 0.05  # between two looks at how far a Job is


class InstallationError(Exception):
    """The runtime package is not there, or says nothing that can be read."""


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
def workplace(stop: Stop | None = None) -> Iterator["Workplace"]:
    """Make the folders, and remove them, whatever happens.

    TMPDIR counts where it is set, even if it cannot be used: what is large belongs where it was
    meant to go. Once `stop` is set, what runs is ended.

    Raises:
        OSError: there is no room, or no right.
    """
    parent = os.environ.get("TMPDIR") or None
    root = Path(tempfile.mkdtemp(prefix="enginewright-preflight-", dir=parent))
    try:
        yield Workplace(root, stop or Stop())
    finally:
        shutil.rmtree(root, ignore_errors=True)


class Workplace:
    """What a pod would see as its volumes, below one folder."""

    def __init__(self, root: Path, stop: Stop) -> None:
        self.root = root
        self._stop = stop
        for path in (contract.WORK_PATH, contract.STORE_PATH, "/dev", "/tmp"):  # noqa: S108 - below root
            self._place(path).mkdir(parents=True)

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
        command = (_RUNTIME, "stage", *stages)
        return self._run(command, stages, task.job, task.to_json(), tell)

    def examine(self, task: ServeTask, tell: Callable[[str], None]) -> Outcome:
        """Run a prepared model as a serving pod would.

        Raises:
            InstallationError, Stopped: as `run`.
        """
        stages = (EXAMINE,)
        return self._run((_EXAMINATION,), stages, task.revision, task.to_json(), tell)[-1]

    def _run(
        self,
        command: tuple[str, ...],
        stages: tuple[str, ...],
        job: str,
        task: str,
        tell: Callable[[str], None],
    ) -> tuple[Outcome, ...]:
        reports = self._place(contract.STORE_PATH) / "reports" / job
        begun = iter(stages)
        tell(next(begun))
        waited = list(stages[:-1])

        def look() -> None:
            if waited and (reports / f"{waited[0]}.json").exists():
                waited.pop(0)
                tell(next(begun))

        code, words = self._call(command, task, look)
        known = [_read(reports / f"{stage}.json") for stage in stages]
        found = [Outcome(report) for report in known if report]
        if last := _read(self._place(contract.TERMINATION_LOG)):
            # where the store is full the herald alone is left
            found += [Outcome(last)] if not found or found[-1].report.stage != last.stage else []
        if not found or (code and found[-1].report.ok):
            raise InstallationError(f"stage {stages[len(found)]} {_ended(code)}{words}")
        if found[-1].report.ok and known[-1] is None:
            raise InstallationError(f"there is no room for the report of stage {stages[-1]}")
        return tuple(found)

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
        code, words = self._call((_RUNTIME, "probe"), "")
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
        self, command: tuple[str, ...], task: str, look: Callable[[], None] = lambda: None
    ) -> tuple[int, str]:
        """Run a module; return its exit code and its last words."""
        self._place(contract.TERMINATION_LOG).unlink(missing_ok=True)
        scratch = self._place("/tmp")  # noqa: S108 - below root
        environment = os.environ | {
            _ROOT_VARIABLE: str(self.root),
            TASK_VARIABLE: task,
            "TMPDIR": str(scratch),
        }
        with tempfile.TemporaryFile(dir=scratch) as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # an interrupt is ours to pass on, once
            )
            try:
                while not _has_ended(process, _LOOK_SECONDS):
                    self._go_on()
                    look()
            except BaseException:
                _end(process)
                raise
            finally:
                _sweep(process)
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST_WORDS))
            words = log.read().decode(errors="replace").strip()
        return process.returncode, f"; its last words: {words}" if words else ""

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise Stopped

    def _place(self, path: str) -> Path:
        return self.root / path.lstrip("/")


def _has_ended(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    """Wait so long; tell whether it has ended, and leave it to be reaped."""
    descriptor = os.pidfd_open(process.pid)
    try:
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        return bool(ended.poll(seconds * 1000))
    finally:
        os.close(descriptor)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a stage as a pod's end would: it kills its own children."""
    process.send_signal(signal.SIGTERM)
    _has_ended(process, _STOP_SECONDS)


def _sweep(process: "subprocess.Popen[bytes]") -> None:
    """Kill what is left of a stage: one that was killed has told its children nothing."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so the group is still its own
    process.wait()


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
