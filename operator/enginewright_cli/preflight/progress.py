"""Shows progress: live rows on a terminal (`live`); otherwise lines: what runs, at most one in some seconds, and completed models."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from typing_extensions import override

from enginewright_cli import output
from enginewright_cli.formatting import visible
from enginewright_cli.preflight.many import Watcher
from enginewright_cli.preflight.result import Result
from enginewright_cli.preflight.stage_line import update_line

_EVERY_SECONDS: Final = 5.0


class _Lines(Watcher):
    """Prints from the threads of models, and from its own."""

    def __init__(self, console: Console, command: str, models: int) -> None:
        self._console = console
        self._command = command
        self._models = models
        self._done = 0
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._stages: dict[str, dict[str, str]] = {}  # by source and targets
        self._running = {"": "probing what is installed"}  # by source
        self._told = ""

    @override
    def on_started(self, source: str) -> None:
        with self._lock:
            self._running.pop("", None)
            self._stages[source] = {}

    @override
    def stage(self, source: str, target: str, stage: str) -> None:
        with self._lock:
            self._running[source] = f"{source}: {update_line(self._stages[source], target, stage)}"

    @override
    def on_ended(self, result: Result) -> None:
        with self._lock:
            self._running.pop(result.source, None)
            self._done += 1
            if self._models > 1:
                took = "cached" if result.cached else f"{result.seconds:.1f} s"
                count, source = f"[{self._done}/{self._models}]", visible(result.source)
                output.print_message(self._console, f"{count} {result.verdict} {source} ({took})")

    def tell_until(self, ended: threading.Event) -> None:
        """Print what runs whenever it has changed."""
        while not ended.wait(_EVERY_SECONDS):
            with self._lock:
                running = visible("; ".join(self._running.values()))
            if running and running != self._told:
                self._told = running
                seconds = time.monotonic() - self._began
                line = f"enginewright {self._command}: {running} (after {seconds:.0f} s)"
                output.print_message(self._console, line)


@contextmanager
def show_progress(console: Console, models: int, command: str = "preflight") -> Iterator[Watcher]:
    """Yield the watcher to notify of progress."""
    if console.is_terminal:
        from enginewright_cli.preflight.live import live  # noqa: PLC0415 - only for terminals

        with live(console, models) as watcher:
            yield watcher
        return
    lines, ended = _Lines(console, command, models), threading.Event()
    telling = threading.Thread(target=lines.tell_until, args=(ended,))
    telling.start()
    try:
        yield lines
    finally:
        ended.set()
        telling.join()
