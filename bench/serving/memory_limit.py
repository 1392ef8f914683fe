"""A limit of memory for a server and all its processes, as a pod has: above it, they are killed."""

import contextlib
import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.serving import processes

_SECONDS: Final = 0.05  # between two looks
_LOOKS: Final = 20  # with the same processes; new ones are rare
_PAGE: Final = resource.getpagesize()


class MemoryLimit:
    """Looks at the memory of a process tree all the time."""

    def __init__(self, process: int, most_mb: float) -> None:
        self.highest_mb = 0.0
        self.is_exceeded = False
        self._process = process
        self._most_mb = most_mb
        self._ended = threading.Event()

    @contextmanager
    def enforce(self) -> Iterator[None]:
        """Look, and kill the tree above the limit, in a thread."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            pids = processes.tree(self._process)
            for _ in range(_LOOKS):
                now = sum(_resident_mb(pid) for pid in pids)
                self.highest_mb = max(self.highest_mb, now)
                if now > self._most_mb:
                    self.is_exceeded = True
                    for pid in processes.tree(self._process):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                    return
                if self._ended.wait(_SECONDS):
                    return


def _resident_mb(pid: int) -> float:
    """Return what the kernel counts, without a look at every page as `processes.resident_mb` takes."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):  # it has ended
        return 0.0
    return pages * _PAGE / 1e6
