"""Runs other programs to their end."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SECONDS = 300.0


def run_program(
    command: Sequence[str | Path], *, code: int | None = 0, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command, which must end with `code` unless that is None; return what it printed."""
    options = {"timeout": SECONDS} | options
    ended = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert code is None or ended.returncode == code, f"{ended.stdout}\n{ended.stderr}"
    return ended
