"""`enginewright preflight` as a process, as people start it."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enginewright.cli.preflight.result import Result

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
    """Run the command in a folder, with a temporary folder of its own, which it leaves empty."""
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "enginewright.cli", "preflight", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
        cwd=folder,
        env=os.environ | {"TMPDIR": str(scratch)},
    )
    assert "Traceback" not in done.stdout + done.stderr
    assert not list(scratch.iterdir())
    scratch.rmdir()
    return Preflighted(done.returncode, done.stdout, done.stderr, folder)
