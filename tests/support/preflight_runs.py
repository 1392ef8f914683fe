"""Runs `enginewright preflight` like a user, in separate folders, and checks what it leaves behind."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enginewright_cli.preflight import options, targets
from enginewright_cli.preflight.request import PreflightRequest
from onnx import ModelProto

from tests.support.plan_objects import image_facts

SECONDS = 110.0
COMMAND = (sys.executable, "-m", "enginewright_cli")
HELD = image_facts("cpu")


def drop_progress(said: str) -> str:
    """Return what the command said, without what runs after some seconds."""
    lines = said.splitlines(keepends=True)
    return "".join(line for line in lines if not re.search(r"\(after \d+ s\)$", line))


class Desk:
    """One folder to work in, one for temporary files, one for the cache."""

    def __init__(self, root: Path) -> None:
        self.root = root / "desk"
        self.scratch = root / "scratch"
        self.cache = root / "cache"
        for folder in (self.root, self.scratch):
            folder.mkdir()

    def save(self, model: ModelProto, name: str = "model.onnx") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(model.SerializeToString())
        return path

    def environment(self) -> dict[str, str]:
        return {"TMPDIR": str(self.scratch), "XDG_CACHE_HOME": str(self.cache)}

    def start(
        self,
        *arguments: str | Path,
        command: tuple[str, ...] = (*COMMAND, "preflight"),
        prefix: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*prefix, *command, *map(str, arguments)],
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
            text=True,
            cwd=self.root,
            env={**os.environ, **self.environment(), **(environment or {})},
        )

    def run(self, *arguments: str | Path, **options: Any) -> "subprocess.CompletedProcess[str]":
        """Run it to its end, which leaves nothing behind and shows no traceback."""
        process = self.start(*arguments, **options)
        try:
            out, wording = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
        done = subprocess.CompletedProcess(process.args, process.returncode, out, wording)
        assert "Traceback" not in f"{out}{wording}", wording
        self.check_clean()
        return done

    def run_json(self, *arguments: str | Path, **options: Any) -> tuple[int, dict[str, Any]]:
        done = self.run("--json", *arguments, **options)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def check_clean(self) -> None:
        """Assert that no file and no process is left."""
        assert not list(self.scratch.iterdir())
        assert not self.processes()

    def processes(self) -> list[str]:
        """Return the command lines of running processes with our temporary folder."""
        return [line for _, line in self._ours()]

    def _ours(self) -> list[tuple[int, str]]:
        mark = f"TMPDIR={self.scratch}".encode()
        processes = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) == os.getpid():
                continue
            try:
                if mark in (entry / "environ").read_bytes():
                    line = (entry / "cmdline").read_bytes()
                    if line:  # else it is a zombie
                        wording = line.replace(b"\0", b" ").decode()
                        processes.append((int(entry.name), wording))
            except OSError:
                continue
        return processes

    def find_named(self, name: str) -> list[int]:
        """Return the processes of that name, 15 bytes of it, which run with our temporary folder."""
        processes = []
        for pid, _ in self._ours():
            try:
                title = Path(f"/proc/{pid}/comm").read_text().strip()
            except OSError:
                continue
            processes += [pid] if title == name else []
        return processes


def make_request(source: str | Path, *names: str) -> PreflightRequest:
    """Return what is asked of a model with no further options."""
    return PreflightRequest(
        source=str(source),
        targets=tuple(targets.parse(name, "cpu") for name in names),
        recipe=options.recipe(HELD),
        promise=options.promise(None),
    )
