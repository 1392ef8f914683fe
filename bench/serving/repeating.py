"""Does something again and again beside a measurement, in a thread."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeat(seconds: float, act: Callable[[threading.Event], None]) -> Iterator[None]:
    """Call `act` after every `seconds`, with the event of the end, for which it may wait itself."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(seconds):
            act(ended)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
