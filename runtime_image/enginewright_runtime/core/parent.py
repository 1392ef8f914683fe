"""Children that end with the process that started them, however that ends."""

import ctypes
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1  # prctl(2)


def end_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends; Linux only.

    If it has ended before, nothing happens: check os.getppid(), or a pipe to it.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
