"""CPU time: what a test costs, whatever else the machine does; the time on a clock grows with its load."""

import argparse
import inspect
import os
import time
from functools import cache
from pathlib import Path
from statistics import median
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")  # a second, in /proc
_PROC: Final = Path("/proc")
_REFERENCE: Final = (
    0.020  # CPU seconds of `measure_slowness`'s work on the processor that limits were set on
)
_SLOWEST: Final = 2.0  # beyond, a limit would say nothing


def processor_seconds(process: int) -> float:
    """Return the processor time of all threads of a process: see CPUCLOCK_SCHED in Linux's posix-timers.h."""
    return time.clock_gettime((~process << 3) | 2)


def measure_cpu() -> float:
    """Return the CPU seconds of this process and of its descendants, those that have ended and those that run.

    A process whose parent has ended before it is not counted, for example one of the local cluster.
    """
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return own + (_of_running() if _has_children() else 0.0)


@cache
def measure_slowness() -> float:
    """Return how many times the CPU seconds of the reference processor Python's work takes on this one: 1 to 2.

    Measured beside what else runs: threads that share a core take more CPU seconds each.
    """
    source = inspect.getsource(argparse)

    def work() -> float:
        before = time.thread_time()
        compile(source, "argparse.py", "exec")
        return time.thread_time() - before

    return min(max(median(work() for _ in range(10)) / _REFERENCE, 1.0), _SLOWEST)


def _has_children() -> bool:
    """Return whether this process has any child: the table of all processes is slow to read."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _of_running() -> float:
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for name in os.listdir(_PROC):
        if name.isdigit():
            try:
                text = (_PROC / name / "stat").read_text()
            except OSError:  # it has ended
                continue
            fields = text.rpartition(")")[2].split()  # a program's name may contain anything
            parents[int(name)] = int(fields[1])
            ticks[int(name)] = sum(map(int, fields[11:15]))  # also of its children that have ended
    descendants = {os.getpid()}
    running = descendants
    while running:
        running = {key for key, parent in parents.items() if parent in descendants} - descendants
        descendants = descendants | running
    return sum(ticks[descendant] for descendant in descendants - {os.getpid()}) / _TICKS
