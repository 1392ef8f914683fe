"""Throttles a server under load, as the CPU limit of a pod does: a fifth of each tenth of a second.

By a control group where one can be created (version 1), else by stopping and continuing the server's processes.
"""

import contextlib
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.serving import load
from bench.serving.exchange import Request
from bench.serving.processes import tree
from bench.serving.repeating import repeat

_PERIOD_SECONDS: Final = 0.1
_SHARE: Final = 0.2
_CONNECTIONS: Final = 8
_CONTROLLER: Final = Path("/sys/fs/cgroup/cpu")
_QUOTA: Final = "cpu.cfs_quota_us"  # in a period, of which a tenth of a second is the default


def throttle(process: int, request: Request, port: int, seconds: float) -> str:
    """Put load on a server that has too little CPU time; return how its time was limited."""
    with contextlib.ExitStack() as limits:
        try:
            limits.enter_context(_limit_group(process))
            means = _QUOTA
        except OSError:
            limits.enter_context(_stop_and_continue(process))
            means = "SIGSTOP and SIGCONT"
        load.press(request, port, connections=_CONNECTIONS, seconds=seconds)
    return means


def read_group(text: str) -> str:
    """Return the path of a process's group from its /proc/PID/cgroup, relative to the controller's; may raise OSError."""
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return path.lstrip("/")
    raise OSError("the controller of CPU time has no hierarchy of its own")


@contextmanager
def _limit_group(process: int) -> Iterator[None]:
    """Move a server's processes to a group with a quota, and back; may raise OSError before that."""
    parent = _CONTROLLER / read_group(Path("/proc/self/cgroup").read_text())
    group = Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
    try:
        (group / _QUOTA).write_text(str(round(_SHARE * _PERIOD_SECONDS * 1e6)))
        try:
            _move(process, group)
            yield
        finally:
            _move(process, parent)
    finally:
        group.rmdir()


def _move(process: int, group: Path) -> None:
    for number in tree(process):
        with contextlib.suppress(ProcessLookupError):
            (group / "cgroup.procs").write_text(str(number))


@contextmanager
def _stop_and_continue(process: int) -> Iterator[None]:
    def stop(ended: threading.Event) -> None:
        _signal(process, signal.SIGSTOP)
        ended.wait((1 - _SHARE) * _PERIOD_SECONDS)
        _signal(process, signal.SIGCONT)

    with repeat(_SHARE * _PERIOD_SECONDS, stop):
        yield


def _signal(process: int, number: signal.Signals) -> None:
    for pid in tree(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
