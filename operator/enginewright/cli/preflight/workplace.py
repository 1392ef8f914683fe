"""The folders of one preflight, and the stages that run on them as they do in a Job's pod."""

import json
import os
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

from enginewright.contract import task as contract
from enginewright.contract.images import ImageFacts
from enginewright.contract.manifest import MANIFEST_NAME, Manifest
from enginewright.contract.report import Finding, StageReport
from enginewright.contract.task import TASK_VARIABLE, EngineTask, PrepareTask

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
def workplace(parent: Path | None = None) -> Iterator["Workplace"]:
    """Make the folders, and remove them, whatever happens. Raises OSError where there is no room."""
    root = Path(tempfile.mkdtemp(prefix="enginewright-preflight-", dir=parent))
    try:
        yield Workplace(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


class Workplace:
    """What a pod would see as its volumes, below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
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
        """
        reports = self._place(contract.STORE_PATH) / "reports" / task.job
        begun = iter(stages)
        tell(next(begun))
        waited = list(stages[:-1])

        def look() -> None:
            if waited and (reports / f"{waited[0]}.json").exists():
                waited.pop(0)
                tell(next(begun))

        code, words = self._call(["stage", *stages], task.to_json(), look)
        known = [_read(reports / f"{stage}.json") for stage in stages]
        found = [Outcome(report) for report in known if report]
        if last := _read(self._place(contract.TERMINATION_LOG)):
            # where the store is full the herald alone is left
            found += [Outcome(last)] if not found or found[-1].report.stage != last.stage else []
        if not found or (code and found[-1].report.ok):
            raise InstallationError(f"stage {stages[len(found) - 1]} ended with code {code}{words}")
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
        code, words = self._call(["probe"], "")
        try:
            return ImageFacts.model_validate_json(
                self._place(contract.TERMINATION_LOG).read_bytes()
            )
        except (OSError, ValidationError):
            raise InstallationError(
                f"the runtime package does not say what it holds (code {code}){words};"
                " run: pip install 'enginewright[preflight]'"
            ) from None

    def _call(
        self, arguments: list[str], task: str, look: Callable[[], None] = lambda: None
    ) -> tuple[int, str]:
        self._place(contract.TERMINATION_LOG).unlink(missing_ok=True)
        environment = os.environ | {
            _ROOT_VARIABLE: str(self.root),
            TASK_VARIABLE: task,
            "TMPDIR": str(self._place("/tmp")),  # noqa: S108 - below root
        }
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "enginewright_runtime", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # an interrupt is ours to pass on, once
            )
            try:
                while (code := _wait(process)) is None:
                    look()
            except BaseException:
                _stop(process)
                raise
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST_WORDS))
            words = log.read().decode(errors="replace").strip()
        return code, f"; its last words: {words}" if words else ""

    def _place(self, path: str) -> Path:
        return self.root / path.lstrip("/")


def _wait(process: "subprocess.Popen[bytes]") -> int | None:
    """Return the exit code; None while it runs."""
    try:
        return process.wait(_LOOK_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End a stage as a pod's end would: it kills its own children."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _read(path: Path) -> StageReport | None:
    try:
        told: Any = json.loads(path.read_bytes())
        return StageReport.model_validate(told)
    except (OSError, ValueError):
        return None
