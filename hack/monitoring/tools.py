"""Finds Prometheus, promtool and Alertmanager, installing Debian's packages if they are missing."""

import shutil
import subprocess
from pathlib import Path
from typing import Final

_PACKAGES: Final = ("prometheus", "prometheus-alertmanager")
_INSTALL: Final = Path(__file__).resolve().parents[1] / "packages"


class ToolError(Exception):
    """A program is missing and cannot be installed; the message names the packages to install."""


def program(name: str) -> str:
    """Return the path of `prometheus`, `promtool` or `prometheus-alertmanager`.

    Raises:
        ToolError: It is missing and cannot be installed.
    """
    if not shutil.which(name):
        done = subprocess.run(
            [_INSTALL, *_PACKAGES], capture_output=True, text=True, timeout=900, check=False
        )
        if done.returncode != 0:
            raise ToolError((done.stdout + done.stderr).strip()[-2000:])
    path = shutil.which(name)
    if not path:
        raise ToolError(f"{' and '.join(_PACKAGES)} do not contain {name}: add it to PATH")
    return path
