"""Finds Debian's prometheus, promtool and alertmanager, or fetches them without installing them.

The packages are unpacked into a cache rather than installed, so that no service is started and
nothing of the machine changes.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

CACHE: Final = (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "enginewright" / "monitoring"
)
_PACKAGES: Final = {
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
}


class ToolError(Exception):
    """A program is neither here nor to be had; the message says what to install."""


def program(name: str) -> Path:
    """Return the path of one of the programs, fetching its package when it is missing.

    Raises:
        ToolError: There is no apt-get, or it failed.
    """
    if installed := shutil.which(name):
        return Path(installed)
    package = _PACKAGES[name]
    folder = CACHE / package
    if not folder.exists():
        _fetch(package, folder)
    return folder / "usr/bin" / name


def _fetch(package: str, folder: Path) -> None:
    if not shutil.which("apt-get"):
        raise ToolError(f"install {package} ({', '.join(_PACKAGES)} on PATH), then try again")
    partial = folder.with_suffix(f".{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    download = ["apt-get", "download", "-qq", package]
    if _run(download, partial):
        _must(["apt-get", "update", "-qq"], partial)
        _must(download, partial)
    (archive,) = partial.glob("*.deb")
    _must(["dpkg-deb", "--extract", archive.name, "."], partial)
    archive.unlink()
    try:
        partial.rename(folder)
    except OSError:  # somebody else was first
        shutil.rmtree(partial)


def _must(command: list[str], folder: Path) -> None:
    if said := _run(command, folder):
        raise ToolError(f"`{' '.join(command)}` failed:\n{said}")


def _run(command: list[str], folder: Path) -> str:
    """Run a command in `folder`; empty when it succeeded, else what it said."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    return "" if done.returncode == 0 else (done.stdout + done.stderr).strip() or "no output"
