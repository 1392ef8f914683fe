"""Memory of this process, as the kernel reports it."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_STATUS: Final = Path("/proc/self/status")
_PEAK: Final = "VmHWM:"  # proc(5): peak resident set size
_RESIDENT: Final = "VmRSS:"
_REFERENCES: Final = Path("/proc/self/clear_refs")
_FORGET_PEAK: Final = "5"  # proc(5), clear_refs


def peak_bytes() -> int | None:
    """Return the most memory that this process has had resident; None: the kernel does not report it."""
    return _field(_PEAK)


def resident_bytes() -> int:
    """Return the memory that this process has resident; 0: the kernel does not report it."""
    return _field(_RESIDENT) or 0


@contextmanager
def peak_since() -> Iterator[Callable[[], int]]:
    """Give what returns the most memory that was resident since the beginning of the context.

    Where the kernel does not forget an earlier peak, that one counts too.
    """
    with contextlib.suppress(OSError):
        _REFERENCES.write_text(_FORGET_PEAK)
    yield lambda: peak_bytes() or 0


def _field(name: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    found = next((line.split()[1] for line in lines if line.startswith(name)), None)
    return int(found) * 1024 if found else None
