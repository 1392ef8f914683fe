"""Processors that this machine may not have: programs run under emulation of one without VNNI."""

import platform
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from enginewright_runtime.session import processor

WITHOUT_VNNI = "Haswell"  # AVX2 and no more, as qemu's TCG implements it
TIMEOUT = 900.0  # seconds; emulation is 10 to 30 times slower, and other load may slow it more

needs_exact_products = pytest.mark.skipif(
    not processor.read().exact_products,
    reason=f"INT8 products saturate on this processor: {processor.read().described}",
)


def without_vnni(*options: str, python: str = sys.executable) -> list[str]:
    """Return the command that runs Python on a processor without VNNI, on any x86 machine."""
    if platform.machine() != "x86_64":
        pytest.skip("qemu emulates a processor for x86 programs, which do not run here")
    return [_emulator(), "-cpu", WITHOUT_VNNI, *options, python]


@cache
def _emulator() -> str:
    """Return the path of qemu-x86_64, installed where it is missing."""
    command = [str(Path(__file__).parents[2] / "hack/qemu-user")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def python_without_vnni(root: Path) -> Path:
    """Write a Python whose children run on a processor without VNNI too; return its path.

    It believes that it is this file (qemu's -0), so that `sys.executable` is what starts the emulator.
    """
    environment = Path(sys.prefix)
    (root / "bin").mkdir(parents=True)
    for name in ("lib", "pyvenv.cfg"):
        (root / name).symlink_to(environment / name)
    path = root / "bin/python"
    command = " ".join(f"'{item}'" for item in without_vnni("-0", str(path)))
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o755)
    return path
