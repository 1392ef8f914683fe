"""The operator's process, forked from one that has already imported its modules.

A new interpreter spends a second of processor time on imports, several times what the operator does in a test.
The command line's comes out of the same one.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TextIO

from enginewright.main import main

FORKS: Final = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "enginewright.main",
        "enginewright_cli.app",
        "enginewright_cli.rollout.carry_out",
        "enginewright_cli.rollout.status_command",
        "pytest",  # multiprocessing imports this process's main module in each child
    ]
)


class ForkedOperator:
    """The part of `subprocess.Popen`'s interface that tests use."""

    def __init__(self, log: Path, environment: Mapping[str, str]) -> None:
        self._process = FORKS.Process(target=_run, args=(str(log), dict(environment)))
        self._process.start()

    def send_signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def poll(self) -> int | None:
        """Return the exit code once it has ended."""
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        """Wait until it ends; return the exit code. Raises subprocess.TimeoutExpired."""
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(_run.__name__, timeout)
        return code


def redirect(path: str, *streams: TextIO) -> None:
    """Have this process's streams append to a file."""
    output = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in streams:
        os.dup2(output, stream.fileno())
    os.close(output)


def _run(log: str, environment: dict[str, str]) -> None:
    redirect(log, sys.stdout, sys.stderr)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    main()
