"""Runs the stages of a prepare Job through the real command, on folders that stand for volumes."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from enginewright_contract.images import ImageFacts
from enginewright_contract.report import (
    TERMINATION_MESSAGE_LIMIT,
    Published,
    StageReport,
    read_termination_message,
)
from enginewright_contract.task import (
    PREPARE_STAGES,
    PrepareTask,
    Recipe,
    ServeTask,
    ShapeProfile,
)
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.runner import run_stage
from enginewright_runtime.stages import prepare_stage

from tests.support.forked import Forked

STAGE_SECONDS = 200.0
LIMITS = {"1.31.1": (26, 13), "1.24.1": (25, 13)}


@dataclass(frozen=True)
class Outcome:
    """What one stage reported, to each of its readers."""

    code: int
    report: StageReport
    stored: dict[str, Any] | None  # the report in the store
    log: str

    @property
    def full(self) -> dict[str, Any]:
        """Return the report in the store."""
        assert self.stored is not None, self.message
        return self.stored

    @property
    def published(self) -> Published:
        assert self.report.published is not None, self.message
        return self.report.published

    @property
    def message(self) -> str:
        return self.report.outcome


def rename_artifact(store: Path, key: str, other: str) -> Path:
    """Give a prepared model in a store another key, which no digest contains; return its folder."""
    folder = store / "prepared" / other
    (store / "prepared" / key).rename(folder)
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace(key, other))
    return folder


def replace_file(artifact: Path, name: str, content: bytes) -> None:
    """Replace a file of an artefact in a store and what its manifest says of it, so that it is whole."""
    (artifact / name).write_bytes(content)
    path = artifact / "manifest.json"
    manifest = json.loads(path.read_text())
    (listed,) = (file for file in manifest["files"] if file["path"] == name)
    listed |= {"sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)}
    path.write_text(json.dumps(manifest))


class Workplace:
    """One pod's folders under `root`, and the environment that the command runs in."""

    def __init__(
        self,
        root: Path,
        python: Path | str = sys.executable,
        *,
        in_process: bool = False,
        fresh: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Make the folders; stages run in this process, in forked ones, or in fresh ones as in a container."""
        self.root = root
        self.in_process = in_process
        self.fresh = fresh
        self.environment = environment or {}
        self.python = str(python)
        for name in ("work", "store", "source", "samples", "dev", "tmp"):
            (root / name).mkdir(exist_ok=True)

    def put(self, name: str, content: onnx.ModelProto | Path | bytes) -> str:
        """Put a file on the claim; return its address."""
        path = self.root / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            path.write_bytes(content.read_bytes())
        elif isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_bytes(content.SerializeToString())
        return f"pvc://models/{name}"

    def give(self, secret: Mapping[str, str], folder: str = "credentials") -> None:
        """Mount a Secret."""
        (self.root / folder).mkdir(exist_ok=True)
        for key, value in secret.items():
            (self.root / folder / key).write_text(value)

    def fetch(self, uri: str, secret: Mapping[str, str] | None = None) -> Outcome:
        if secret is not None:
            self.give(secret)
        return self.stage("fetch", self.task(uri))

    def task(
        self,
        uri: str,
        *,
        backend: str = "cpu",
        sha256: str | None = None,
        shapes: Sequence[ShapeProfile] = (),
        **recipe: Any,
    ) -> PrepareTask:
        """Return a task with the limits of the ONNX Runtime that the backend has."""
        version = "1.24.1" if backend == "openvino" else "1.31.1"
        opset, ir_version = LIMITS[version]
        return PrepareTask(
            job="job-1",
            source_uri=uri,
            source_sha256=sha256,
            recipe=Recipe(
                backend=backend,
                ort_version=version,
                max_opset=opset,
                max_ir_version=ir_version,
                shapes=tuple(shapes),
                **recipe,
            ),
        )

    def stage(self, name: str, task: PrepareTask) -> Outcome:
        if not self.in_process:
            return self._run(["stage", name], task.to_json())
        self._termination_log().unlink(missing_ok=True)
        paths = Paths.under(self.root)
        code = run_stage(name, lambda: prepare_stage(name)(task, paths), paths, task.job)
        return self._outcome(code, "")

    def prepare(self, task: PrepareTask, until: str = PREPARE_STAGES[-1]) -> tuple[str, Outcome]:
        """Run the stages up to one until one fails; return the last one's name and outcome."""
        outcomes = [(PREPARE_STAGES[0], self.stage(PREPARE_STAGES[0], task))]
        for name in PREPARE_STAGES[1 : PREPARE_STAGES.index(until) + 1]:
            if outcomes[-1][1].code != 0:
                break
            outcomes.append((name, self.stage(name, task)))
        return outcomes[-1]

    def complete(self, task: PrepareTask, until: str = PREPARE_STAGES[-1]) -> Outcome:
        """Run the stages up to one, all of which must succeed; return the outcome of the last."""
        last, outcome = self.prepare(task, until)
        assert (last, outcome.code) == (until, 0), outcome.message
        return outcome

    def fetch_artifact(self, key: str, backend: str = "cpu") -> Outcome:
        """Run the stage that copies the artefact into a serving pod."""
        task = ServeTask(model="m", revision="r", prepared_key=key, backend=backend)
        return self._run(["fetch-artifact"], task.to_json())

    def probe(self) -> ImageFacts:
        done = self.start(["probe"], "")
        text, _ = done.communicate(timeout=STAGE_SECONDS)
        assert done.returncode == 0
        assert self._termination_log().read_text() == text.strip()
        return ImageFacts.model_validate_json(text)

    def start(
        self, arguments: Sequence[str], task: str, **environment: str
    ) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [self.python, "-m", "enginewright_runtime", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment(task) | environment,
        )

    def leftovers(self) -> list[str]:
        """Return files that the stages have left in temporary folders."""
        folders = (self.root / "tmp", self.root / "store/tmp")
        hidden = [path for path in (self.root / "store").rglob(".*") if path.is_file()]
        return [str(path) for folder in folders if folder.is_dir() for path in folder.iterdir()] + [
            str(path) for path in hidden
        ]

    def _termination_log(self) -> Path:
        return self.root / "dev/termination-log"

    def _run(self, arguments: Sequence[str], task: str) -> Outcome:
        self._termination_log().unlink(missing_ok=True)
        if self.fresh:
            process = self.start(arguments, task)
            _, log = process.communicate(timeout=STAGE_SECONDS)
            code = process.returncode
        else:
            code, log = self._fork(arguments, task)
        assert "Traceback" not in log
        return self._outcome(code, log)

    def _fork(self, arguments: Sequence[str], task: str) -> tuple[int, str]:
        main = "enginewright_runtime.__main__:main"
        with tempfile.TemporaryFile("w+") as output:
            process = Forked(
                self.python,
                main,
                list(arguments),
                output=output.fileno(),
                environment=self._environment(task),
            )
            try:
                code = process.wait(STAGE_SECONDS)
            finally:
                process.close()
            output.seek(0)
            return code, output.read()

    def _environment(self, task: str) -> dict[str, str]:
        return {
            **os.environ,
            **self.environment,
            "ENGINEWRIGHT_ROOT": str(self.root),
            "ENGINEWRIGHT_TASK": task,
            "TMPDIR": str(self.root / "tmp"),
        }

    def _outcome(self, code: int, log: str) -> Outcome:
        termination_message = self._termination_log().read_bytes()
        report = read_termination_message(termination_message.decode())
        assert report is not None, log
        assert len(termination_message) <= TERMINATION_MESSAGE_LIMIT
        assert not self.leftovers(), self.leftovers()
        path = self.root / "store/reports/job-1" / f"{report.stage}.json"
        full = json.loads(path.read_text()) if path.exists() else None
        return Outcome(code, report, full, log)
