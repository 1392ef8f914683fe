"""How far a child process is: it writes a line to a file, and the stage that waits logs it."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_log: Final = logging.getLogger(__name__)
_EVERY_SECONDS: Final = 5.0


def tell(path: Path, words: str) -> None:
    """Write what is being done; readers see the old or the new line."""
    temporary = path.with_suffix(".new")
    temporary.write_text(words)
    temporary.replace(path)


@contextmanager
def followed(path: Path) -> Iterator[None]:
    """Log what the file says, every 5 s if it is something new, while in the context."""
    done = threading.Event()

    def follow() -> None:
        told = ""
        while not done.wait(_EVERY_SECONDS):
            words = path.read_text() if path.exists() else ""
            if words != told:
                told = words
                _log.info("%s", words)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        path.unlink(missing_ok=True)
