"""CPU time and memory of a server with all its processes, from /proc."""

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_USER, _SYSTEM, _CHILDREN_USER, _CHILDREN_SYSTEM = range(11, 15)  # of `stat` after the name


def tree(root: int) -> list[int]:
    """Return a process and all its descendants."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (fields := _stat(int(entry.name))):
            children[int(fields[1])].append(int(entry.name))
    processes = [root]
    for process in processes:
        processes += children[process]
    return processes


def has_ended(process: int) -> bool:
    """Whether a process is gone, or a zombie."""
    return _stat(process)[:1] in ([], ["Z"])


def cpu_seconds(root: int) -> float:
    """Return the user and system time of the tree, ended children included."""
    ticks = 0
    for process in tree(root):
        fields = _stat(process)
        if fields:
            ticks += sum(
                int(fields[number]) for number in (_USER, _SYSTEM, _CHILDREN_USER, _CHILDREN_SYSTEM)
            )
    return ticks / _TICKS


def busy_seconds(cores: Iterable[int]) -> float:
    """Return how long cores have not been idle, time taken by a hypervisor included."""
    lines = dict(line.split(maxsplit=1) for line in Path("/proc/stat").read_text().splitlines())
    ticks = 0
    for core in cores:
        user, nice, system, _idle, _waiting, *other = map(int, lines[f"cpu{core}"].split()[:8])
        ticks += user + nice + system + sum(other)
    return ticks / _TICKS


def proportional_mb(root: int) -> float:
    """Return the proportional set size of the tree, in MB: a page that it shares counts once."""
    return _memory_mb(root, "Pss")


def resident_mb(root: int) -> float:
    """Return the resident set size of the tree, in MB, shared pages included."""
    return _memory_mb(root, "Rss")


def _memory_mb(root: int, field: str) -> float:
    kibibytes = 0
    for process in tree(root):
        try:
            rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
        except OSError:  # it has ended
            continue
        kibibytes += sum(
            int(line.split()[1]) for line in rollup.splitlines() if line.startswith(f"{field}:")
        )
    return kibibytes * 1024 / 1e6


def _stat(process: int) -> list[str]:
    """Return the fields of `stat` after the name, unless the process has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
