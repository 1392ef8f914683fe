"""Finds prometheus, promtool and Alertmanager, installing Debian's packages where they are missing."""

import contextlib
import fcntl
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PACKAGES: Final = ("prometheus", "prometheus-alertmanager")
_LOCK: Final = (
    "enginewright-monitoring-tools.lock"  # apt-get does not wait for another one's update
)
_POLICY: Final = Path("/usr/sbin/policy-rc.d")  # asked before a package may start its service


class ToolError(Exception):
    """A program is neither here nor to be had; the message says what to install."""


def program(name: str) -> str:
    """Return the path of `prometheus`, `promtool` or `prometheus-alertmanager`.

    Raises:
        ToolError: It is missing, and there is no apt-get or it failed.
    """
    if not shutil.which(name):
        with (Path(tempfile.gettempdir()) / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not shutil.which(name):  # another one may just have installed it
                _install()
    found = shutil.which(name)
    if not found:
        raise ToolError(f"{' and '.join(_PACKAGES)} bring no {name}: put it on PATH")
    return found


def _install() -> None:
    if not shutil.which("apt-get"):
        raise ToolError(f"install {' and '.join(_PACKAGES)}, then try again")
    with _no_service_starts():
        _run("apt-get", "update", "-qq")
        _run(
            "env", "DEBIAN_FRONTEND=noninteractive",
            "apt-get", "install", "-y", "-qq", "--no-install-recommends",
            "-o", "DPkg::Lock::Timeout=120", *_PACKAGES,
        )  # fmt: skip


@contextlib.contextmanager
def _no_service_starts() -> Iterator[None]:
    """Keep the packages from starting their services meanwhile: only the programs are wanted."""
    if _POLICY.exists():  # the machine's own decision
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()[-2000:]
        raise ToolError(f"`{' '.join(command)}` failed:\n{said}")
