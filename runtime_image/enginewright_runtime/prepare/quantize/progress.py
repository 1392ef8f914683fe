"""Progress of a child process: it writes a line to a file, and the waiting stage logs it."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_log: Final = logging.getLogger(__name__)
_EVERY_SECONDS: Final = 5.0


def write(path: Path, doing: str) -> None:
    """Write the current activity; readers see the old or the new line."""
    temporary = path.with_suffix(".new")
    temporary.write_text(doing)
    temporary.replace(path)


@contextmanager
def log_progress(path: Path) -> Iterator[None]:
    """Log the file's line, every 5 s if it has changed, while in the context."""
    done = threading.Event()

    def follow() -> None:
        logged_last = ""
        while not done.wait(_EVERY_SECONDS):
            doing = path.read_text() if path.exists() else ""
            if doing != logged_last:
                logged_last = doing
                _log.info("%s", doing)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        path.unlink(missing_ok=True)
