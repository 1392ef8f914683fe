"""The container's CPU and memory limits, from its cgroup.

A process that exceeds the memory limit is killed with its container, without a report. A thread pool
sized by `os.cpu_count()` in a container limited to one CPU is throttled most of the time, which raises
latency and is not logged.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/sys/fs/cgroup")
_SELF: Final = Path("/proc/self/cgroup")
_NO_LIMIT: Final = 1 << 60  # bytes; without a limit v1 has a number near 2**63
_RESERVE: Final = 128 << 20  # bytes of the container's memory for this process to grow
_SHARE: Final = 0.75  # of the machine's memory, for a child in a container without a limit


def cpu_limit(root: Path = _ROOT, membership: Path = _SELF) -> float | None:
    """Return the CPUs that the cgroup (v1 or v2) and its parents grant, quota over period, or None without a limit."""
    folders = _folders(root, membership)
    return min((quota for folder in folders for quota in _quotas(folder)), default=None)


def threads(root: Path = _ROOT, membership: Path = _SELF) -> int:
    """Return the number of compute threads: complete CPUs of the limit, within the CPU affinity."""
    runnable = len(os.sched_getaffinity(0))
    limit = cpu_limit(root, membership)
    return runnable if limit is None else max(1, min(runnable, int(limit)))


def memory_limit(root: Path = _ROOT, membership: Path = _SELF) -> int | None:
    """Return the bytes that the cgroup grants (`memory.max`, `memory.limit_in_bytes`), or None without a limit."""
    limits = [
        limit
        for folder in _folders(root, membership, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
        for limit in _numbers(folder / name)
        if limit < _NO_LIMIT
    ]
    return min(limits, default=None)


def memory() -> int:
    """Return the memory of this container in bytes: its limit, otherwise the machine's memory."""
    machine = _machine()
    return min(memory_limit() or machine, machine)


def memory_of_child() -> int:
    """Return the memory limit of a child in bytes: below what the container has, so that the child reports it.

    A container without a limit shares the machine's memory with others, which an untrusted model must not take.
    """
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return max(_RESERVE, _count_granted() - resident - _RESERVE)


def _count_granted() -> int:
    granted, machine = memory_limit(), _machine()
    return int(machine * _SHARE) if granted is None else min(granted, machine)


def _machine() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _folders(root: Path, membership: Path, controller: str = "cpu") -> list[Path]:
    folders: list[Path] = []
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = _mount(root, controllers, controller) if controllers else root
        if mount is None:
            continue
        folder = mount / path.lstrip("/")
        folders += [p for p in (folder, *folder.parents) if p.is_relative_to(mount)]
    return folders or [root, root / controller]


def _mount(root: Path, controllers: str, controller: str) -> Path | None:
    names = (controllers, controller, "cpu,cpuacct")
    return next((root / name for name in names if (root / name).is_dir()), None)


def _quotas(folder: Path) -> Iterator[float]:
    quota_v1 = [*_numbers(folder / "cpu.cfs_quota_us"), *_numbers(folder / "cpu.cfs_period_us")]
    for quota in (_numbers(folder / "cpu.max"), quota_v1):
        if len(quota) == 2 and quota[0] > 0:
            yield quota[0] / quota[1]


def _numbers(file: Path) -> list[int]:
    """Return the numbers in a file, none if it has a "max"."""
    try:
        return [int(word) for word in file.read_text().split()]
    except (OSError, ValueError):
        return []
