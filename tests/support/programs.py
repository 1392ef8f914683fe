"""Runs other programs to their end."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SECONDS = 300.0
_REPOSITORY = Path(__file__).resolve().parents[2]


def run_program(
    command: Sequence[str | Path], *, code: int | None = 0, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command, which must end with `code` unless that is None; return what it printed."""
    options = {"timeout": SECONDS} | options
    ended = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert code is None or ended.returncode == code, f"{ended.stdout}\n{ended.stderr}"
    return ended


def go_program(folder: str, package: str) -> Path:
    """Return the program of a package in Go, of the module in `folder`, which is built once."""
    command: list[str | Path] = [_REPOSITORY / "hack/go-program", folder, package]
    built = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Path(built.stdout.strip())
