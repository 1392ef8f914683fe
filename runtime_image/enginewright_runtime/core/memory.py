"""Memory use of this process, as the kernel reports it."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_STATUS: Final = Path("/proc/self/status")
_PEAK: Final = "VmHWM:"  # proc(5): peak resident set size
_RESIDENT: Final = "VmRSS:"
_REFERENCES: Final = Path("/proc/self/clear_refs")
_RESET_PEAK: Final = "5"  # proc(5), clear_refs


def peak_bytes() -> int | None:
    """Return the peak resident memory of this process, if the kernel reports it."""
    return _field(_PEAK)


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 if the kernel does not report it."""
    return _field(_RESIDENT) or 0


@contextmanager
def peak_since() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the peak resident memory since; an earlier peak, if the kernel cannot reset it."""
    with contextlib.suppress(OSError):
        _REFERENCES.write_text(_RESET_PEAK)
    yield lambda: peak_bytes() or 0


def _field(name: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    kibibytes = next((line.split()[1] for line in lines if line.startswith(name)), None)
    return int(kibibytes) * 1024 if kibibytes else None
