"""Processes of the runtime, forked from one that has already imported their modules.

A stage, a server and a sidecar are processes of their own in a pod, and so they are here; but what takes
most of the time of a small model, the imports, the fork server does once, as it does for preflight.
"""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from enginewright_cli.preflight.stages import _PRELOAD
from enginewright_runtime.core.children import Child, ForkServer

REPOSITORY = Path(__file__).resolve().parents[2]
_SERVING = ("server.main", "sidecar.main", "fetch_artifact")
# a fork server outlives the test that starts it, whose changes of variables are not for the others
_ENVIRONMENT = os.environ | {"PYTHONUNBUFFERED": "1"}
_running: list[
    "subprocess.Popen[bytes]"
] = []  # keeps references: Python warns if a running process is garbage-collected


@cache
def _fork_server(python: str) -> ForkServer:
    """Start the fork server of an interpreter, which ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    modules = (*_PRELOAD, *(f"enginewright_serving.{item}" for item in _SERVING))
    # a name that is wrong would only make every child import the module again
    assert all(map(find_spec, modules)), modules
    number = str(theirs.fileno())
    with theirs:
        process = subprocess.Popen(
            [python, "-m", "enginewright_runtime.core.forkserver", number, *modules],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            cwd=REPOSITORY,  # for tests.support.pod_process
            env=_ENVIRONMENT,
        )
    _running.append(process)
    return ForkServer(ours)


class Forked:
    """A function in a separate process, with the part of `subprocess.Popen`'s interface that tests use."""

    def __init__(
        self,
        python: str | Path,
        call: str,
        *arguments: Any,
        output: int,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Call "module:name", which returns an exit code, with arguments that JSON can hold."""
        child = Child(
            call,
            *arguments,
            output=output,
            environment=environment,
            server=_fork_server(str(python)),
        )
        self._child = child
        self._ends = ExitStack()
        self._ends.enter_context(child)
        self.pid = child.pid

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        end = self._child.wait(0)
        return None if end is None else end.code

    def wait(self, timeout: float) -> int:
        end = self._child.wait(timeout)
        if end is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return end.code

    def send_signal(self, number: int) -> None:
        self._child.send_signal(signal.Signals(number))

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Kill it if it still runs, and forget it."""
        self._ends.close()


def pod_process(
    call: str, arguments: dict[str, Any], *, python: str | Path, log: Path, fresh: bool
) -> "Forked | subprocess.Popen[bytes]":
    """Start a function of tests.support.pod_process; a fresh one imports all modules itself."""
    with log.open("wb") as output:
        if not fresh:
            return Forked(
                python, f"tests.support.pod_process:{call}", arguments, output=output.fileno()
            )
        return subprocess.Popen(
            [python, "-m", "tests.support.pod_process", call, json.dumps(arguments)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_ENVIRONMENT,
            cwd=REPOSITORY,
        )


def end(process: "Forked | subprocess.Popen[bytes]") -> None:
    """Kill a process if it still runs."""
    process.kill()
    process.wait(10)
    if isinstance(process, Forked):
        process.close()
