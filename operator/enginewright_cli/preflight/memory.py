"""Estimates the memory of models, which limits how many of them and of their Jobs run at once."""

import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from enginewright_cli.preflight.request import PreflightRequest
from enginewright_cli.preflight.targets import group_key

_MIB: Final = 1 << 20
# Measured as proportional set size of all processes, from 79 bytes to 207 MB: 136 MiB and 2.8 times
# the size on a CPU; with an engine 320 MiB and 4.3 times.
_MEMORY_AT_LEAST: Final = 200 * _MIB
_MEMORY_FOR_AN_ENGINE: Final = 400 * _MIB
_MEMORY_TIMES_SIZE: Final = 5
_USABLE: Final = 0.8  # of the free memory
_MODEL: Final = ".onnx"
_SMALL: Final = _MIB  # smaller files are ignored
_MAX_SEARCHED: Final = 16  # file names that are searched in a model


class Memory:
    """Memory reserved for the models in progress."""

    def __init__(self) -> None:
        self._free = _free_memory() * _USABLE
        self._taken: dict[int, int] = {}

    def reserve(self, number: int, request: PreflightRequest, most: int) -> int:
        """Reserve what a model may need; return how many of its Jobs may run: at least one if it is alone."""
        needed = need(request)
        left = self._free - sum(self._taken.values())
        fitting = next((jobs for jobs in range(most, 0, -1) if jobs * needed <= left), 0)
        jobs = fitting or (0 if self._taken else 1)
        if jobs:
            self._taken[number] = jobs * needed
        return jobs

    def release(self, number: int) -> None:
        """Release the memory of a model that has been checked."""
        del self._taken[number]


def independent_jobs(request: PreflightRequest) -> int:
    """Return how many Jobs of a model are independent of each other."""
    if not _is_known(request.source):
        return 1
    engines = sum(target.compute_capability is not None for target in request.checked)
    return max(engines, len(set(map(group_key, request.checked))))


def _is_known(source: str) -> bool:
    """Return whether the model's size is known before it is fetched: not for a URI or an archive."""
    path = Path(source)
    return "://" not in source and (path.suffix.lower() == _MODEL or path.is_dir())


def need(request: PreflightRequest) -> int:
    """Return the bytes that one Job of a model is likely to need."""
    compiled = any(target.compute_capability for target in request.checked)
    least = _MEMORY_FOR_AN_ENGINE if compiled else _MEMORY_AT_LEAST
    return least + _MEMORY_TIMES_SIZE * _size(request.source)


def _size(source: str) -> int:
    """Return the bytes of a model with its external data, or of an archive; 0: not known."""
    if "://" in source:
        return 0
    path = Path(source)
    try:
        if path.is_dir():
            return sum(item.stat().st_size for item in path.iterdir() if item.is_file())
        if path.suffix.lower() != _MODEL:
            return path.stat().st_size
        beside = {
            item.name: item.stat().st_size
            for item in path.resolve().parent.iterdir()
            if item.suffix.lower() != _MODEL and item.is_file()
        }
        large = {name: size for name, size in beside.items() if size > _SMALL}
        return path.stat().st_size + sum(large[name] for name in _find_named(path, tuple(large)))
    except OSError:
        return 0


def _find_named(path: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that occur in a model, as those of its external data do; all if too many."""
    if not names or len(names) > _MAX_SEARCHED or not path.stat().st_size:
        return names
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return tuple(name for name in names if content.find(os.fsencode(name)) >= 0)


def _free_memory() -> int:
    """Return the free memory of this machine, or of the container if that is less, in bytes."""
    from enginewright_runtime.core.limits import memory_limit  # noqa: PLC0415 - loaded lazily

    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    limit = memory_limit()
    return free if limit is None else min(free, limit)
