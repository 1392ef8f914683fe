"""Unpacks pieces as they arrive, runs each group once it has all of its pieces, and writes each result immediately.

Standard library only: the groups themselves run in the environment that the pieces make.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hack.gpu_proof import machine
from hack.gpu_proof.packing import LIBRARIES, MODELS, ROOT, SITE, TENSORRT
from hack.gpu_proof.pieces import Index, PieceError, has_arrived, unpack, verify

_BESIDE: Final = 8  # steps that run side by side
_TREE: Final = ("operator", "runtime_image", "hack/gpu_proof", "hack/samples")
_LIST: Final = """
import json
from hack.gpu_proof.groups import order_steps
print(json.dumps([[s.name, s.group, s.seconds, s.alone, s.about] for s in order_steps()]))
"""


@dataclass(frozen=True)
class Listed:
    """One step as the runner sees it."""

    name: str
    group: str
    seconds: float
    alone: bool
    about: str


class Run:
    """One run of the proof in a work folder."""

    def __init__(
        self, work: Path, *, device: bool, seconds: float, only: Sequence[str] = ()
    ) -> None:
        """Prepare folders.

        Args:
            work: folder for everything.
            device: whether it has one, or is a rehearsal.
            seconds: after which no further step is begun.
            only: names of the steps to run, again where they have run; (): all.
        """
        self.work = work
        self.device = device
        self.files = work / "files"
        self.results = work / "results"
        self._only = frozenset(only)
        self._end = time.monotonic() + seconds
        self._began = time.time()
        self._machine = machine.describe()
        self._timeline: list[list[Any]] = []
        self._steps: list[Listed] = []
        self.results.mkdir(parents=True, exist_ok=True)
        (work / "steps").mkdir(exist_ok=True)

    def say(self, text: str) -> None:
        """Print a line with the seconds since the start, and keep it."""
        self._timeline.append([round(time.time() - self._began, 1), text])
        print(f"{self._timeline[-1][0]:7.1f} s  {text}", flush=True)

    # On a device

    def run_pieces(self, pieces: Path) -> None:
        """Run all groups of the pieces in a folder, as they arrive.

        Raises:
            PieceError: a piece is damaged.
        """
        index = Index.read(pieces)
        self.say(f"machine: {', '.join(self._machine['devices'])}")
        self._copy_tree()
        for group in index.groups():
            if not self._receive(index, group, pieces):
                self.say(f"group {group}: not all pieces have arrived in time")
                continue
            python = self._make_environment()
            folders = machine.library_folders()
            if group == TENSORRT:
                folders.append(str(self.files / LIBRARIES))
            self.run_group(group, python, {"LD_LIBRARY_PATH": ":".join(folders)}, index.versions)
        self.say("end")
        self._write(index.versions)

    def _receive(self, index: Index, group: str, pieces: Path) -> bool:
        """Unpack the pieces of a group as they arrive; return whether all did in time."""
        expected = [piece for piece in index.pieces if piece.group == group]
        state, ended = self.work / "unpacked", False
        while time.monotonic() < self._end:
            here = [piece for piece in index.pieces if has_arrived(pieces, piece)]
            new = [piece for piece in here if not (state / piece.sha256).exists()]
            if new:
                unpack(pieces, new, self.files, state)
                self.say(f"unpacked {', '.join(piece.name for piece in new)}")
            ended = all((state / piece.sha256).exists() for piece in expected)
            if ended:
                break
            time.sleep(0.5)
        if ended:
            verify((file for file in index.files if file.group == group), self.files)
            self.say(f"group {group}: all files are there")
        return ended

    def _copy_tree(self) -> None:
        """Copy the sources: the tree may be replaced by the next transfer."""
        tree = self.work / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        for name in _TREE:
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", tree)

    def _make_environment(self) -> Path:
        """Create an environment of the unpacked packages and the sources; return its interpreter."""
        environment = self.work / "venv"
        python = environment / "bin/python"
        if not python.exists():
            subprocess.run(
                [sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True
            )
        site = next((environment / "lib").glob("python3.*/site-packages"))
        tree = self.work / "tree"
        folders = [self.files / SITE, tree / "operator", tree / "runtime_image", tree]
        (site / "proof.pth").write_text("".join(f"{folder}\n" for folder in folders))
        version = tomllib.loads((tree / "pyproject.toml").read_text())["project"]["version"]
        described = site / f"enginewright-{version}.dist-info"
        described.mkdir(exist_ok=True)
        (described / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: enginewright\nVersion: {version}\n"
        )
        return python

    # Steps

    def run_group(
        self,
        group: str,
        python: Path,
        environment: Mapping[str, str],
        versions: Mapping[str, str],
        models: Path | None = None,
    ) -> None:
        """Run the steps of a group: those that allow it side by side, the others alone."""
        variables = {
            **os.environ,
            "CUDA_CACHE_PATH": str(self.work / "cuda-cache"),
            "CUDA_CACHE_MAXSIZE": str(4 << 30),
            **environment,
        }
        listed = subprocess.run(
            [str(python), "-c", _LIST], capture_output=True, text=True, check=False, env=variables
        )
        if listed.returncode:
            raise PieceError(f"the steps cannot be loaded: {listed.stderr.strip()[-600:]}")
        steps = [Listed(*item) for item in json.loads(listed.stdout)]
        self._steps += [step for step in steps if step not in self._steps]
        chosen = [step for step in steps if not self._only or step.name in self._only]
        for batch in _batches([item for item in chosen if item.group == group]):
            if time.monotonic() > self._end:
                break
            with ThreadPoolExecutor(min(_BESIDE, len(batch))) as pool:
                for item in batch:
                    pool.submit(self._run_step, item, python, variables, versions, models)

    def _run_step(
        self,
        step: Listed,
        python: Path,
        variables: Mapping[str, str],
        versions: Mapping[str, str],
        models: Path | None,
    ) -> None:
        if time.monotonic() > self._end:
            return
        result = self.results / f"{step.name}.json"
        folder = self.work / "steps" / step.name
        context = {
            "work": str(folder),
            "shared": str(self.work / "shared" / step.group),
            "models": str(models or self.files / MODELS),
            "device": self.device,
        }
        shutil.rmtree(folder, ignore_errors=True)
        result.unlink(missing_ok=True)
        command = [
            str(python),
            "-m",
            "hack.gpu_proof.one_step",
            step.name,
            json.dumps(context),
            str(result),
        ]
        log = self.work / "steps" / f"{step.name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, env=dict(variables), start_new_session=True
            )
            try:
                code: int | str = process.wait(step.seconds)
            except subprocess.TimeoutExpired:
                code = f"no end within {step.seconds:.0f} s"
        _end_group(process)
        if not result.exists():
            said = log.read_text(errors="replace")[-400:]
            outcome = {"status": "failed", "message": f"the step's process ended: {code}; {said}"}
            result.write_text(json.dumps(outcome))
        outcome = json.loads(result.read_text())
        self.say(f"{step.name}: {outcome['status']} {outcome.get('message', '')[:300]}")
        self._write(versions)

    def find_failed(self) -> list[str]:
        """Return the names of the steps that failed or were not run."""
        bad = ("failed", "not run")
        return [step.name for step in self._steps if self._result(step.name)["status"] in bad]

    def _write(self, versions: Mapping[str, str]) -> None:
        """Write all results into one file."""
        document = {
            "date": time.strftime("%Y-%m-%d", time.gmtime(self._began)),
            "rehearsal": not self.device,
            "machine": self._machine,
            "versions": dict(versions),
            "timeline": self._timeline,
            "steps": {
                step.name: {"group": step.group, "about": step.about, **self._result(step.name)}
                for step in self._steps
            },
        }
        path = self.work / "results.json"
        temporary = path.with_suffix(f".{time.monotonic_ns()}")
        temporary.write_text(json.dumps(document, indent=1))
        temporary.rename(path)

    def _result(self, name: str) -> dict[str, Any]:
        path = self.results / f"{name}.json"
        try:
            outcome: dict[str, Any] = json.loads(path.read_text())
        except (OSError, ValueError):
            return {"status": "not run"}
        return outcome


def _batches(steps: Sequence[Listed]) -> Iterator[list[Listed]]:
    """Yield steps in their order: neighbours that allow it together, the others alone."""
    batch: list[Listed] = []
    for step in steps:
        if not step.alone:
            batch.append(step)
            continue
        if batch:
            yield batch
        batch = []
        yield [step]
    if batch:
        yield batch


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    """End what a step has left running."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()
