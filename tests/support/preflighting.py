"""`enginewright preflight` as a process, as people start it."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enginewright_cli.preflight.result import Result

_SECONDS = 110


@dataclass(frozen=True)
class Preflighted:
    """A run that has ended, and the folder that it wrote to."""

    code: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def told(self) -> Any:
        """Return its JSON."""
        return json.loads(self.stdout)

    @property
    def result(self) -> Result:
        """Return its JSON as the class that wrote it."""
        return Result.model_validate_json(self.stdout)


def preflight(*arguments: str | Path, folder: Path) -> Preflighted:
    """Run the command in a folder, with an empty temporary folder, which it leaves empty, and cache."""
    command = [sys.executable, "-m", "enginewright_cli", "preflight", *map(str, arguments)]
    return _run(command, folder)


def shell(commands: str, *, folder: Path) -> Preflighted:
    """Run commands as people type them, likewise."""
    return _run(["bash", "-euc", commands], folder)


def _run(command: list[str], folder: Path) -> Preflighted:
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
        cwd=folder,
        env=os.environ
        | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TMPDIR": str(scratch),
            "XDG_CACHE_HOME": f"{folder}-cache",
        },
    )
    assert "Traceback" not in done.stdout + done.stderr
    assert not list(scratch.iterdir())
    scratch.rmdir()
    return Preflighted(done.returncode, done.stdout, done.stderr, folder)
