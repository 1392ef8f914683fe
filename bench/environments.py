"""Each peer of a benchmark has a separate environment, from a lock file with hashes, created when first needed.

`make venv` and the tests do not need them: only the benchmarks compare with others.
"""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LIMIT_SECONDS: Final = 900


class AbsentError(Exception):
    """A peer cannot be installed on this machine."""


@dataclass(frozen=True)
class Environments:
    """Virtual environments of a benchmark's peers."""

    locks: Path  # folder of NAME.txt
    home: Path  # where they are created

    def python_of(self, peer: str) -> Path:
        """Return the interpreter of a peer's environment."""
        return self.home / peer / "bin/python"

    def site_packages_of(self, peer: str) -> Path:
        """Return the folder of a peer's packages."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.home / peer / "lib" / version / "site-packages"

    def read_locked_version(self, peer: str, package: str) -> str:
        """Return the version of a package in a peer's lock file."""
        lines = (self.locks / f"{peer}.txt").read_text().splitlines()
        return next(
            line.partition("==")[2].split()[0] for line in lines if line.startswith(f"{package}==")
        )

    def create(self, peer: str) -> None:
        """Create a peer's environment unless it is up to date.

        Raises:
            AbsentError: It cannot be created; with the end of pip's output.
        """
        folder, lock = self.home / peer, self.locks / f"{peer}.txt"
        installed = folder / ".locked"
        if installed.exists() and installed.read_bytes() == lock.read_bytes():
            return
        print(f"… installing {peer}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        run(sys.executable, "-m", "venv", str(folder))
        pip = (
            *(str(self.python_of(peer)), "-m", "pip"),
            "install",
            "--quiet",
            "--disable-pip-version-check",
        )
        run(*pip, "--require-hashes", "--no-deps", "--only-binary=:all:", "-r", str(lock))
        shutil.copyfile(lock, installed)


def run(*command: str) -> None:
    """Run a step of an installation; raises AbsentError."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise AbsentError(f"installing took more than {_LIMIT_SECONDS} s") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise AbsentError(lines[-1])
