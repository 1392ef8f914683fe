"""The operator's process, forked from one that has already imported its modules.

A new interpreter spends a second of processor time on imports, several times what the operator does in a test.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from enginewright.main import main

_FORKS: Final = multiprocessing.get_context("forkserver")
# pytest, because multiprocessing imports this process's main module in each child
_FORKS.set_forkserver_preload(["enginewright.main", "pytest"])


class ForkedOperator:
    """The part of `subprocess.Popen`'s interface that tests use."""

    def __init__(self, log: Path, environment: Mapping[str, str]) -> None:
        self._process = _FORKS.Process(target=_run, args=(str(log), dict(environment)))
        self._process.start()

    def send_signal(self, number: int) -> None:
        """Signal it."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()

    def wait(self, timeout: float) -> int:
        """Wait until it ends; return the exit code. Raises subprocess.TimeoutExpired."""
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(_run.__name__, timeout)
        return code


def _run(log: str, environment: dict[str, str]) -> None:
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    os.close(output)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    main()
