"""Shows progress: live rows on a terminal (`live`), otherwise one line per completed model."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from typing_extensions import override

from enginewright_cli import output
from enginewright_cli.formatting import visible
from enginewright_cli.preflight.many import Watcher
from enginewright_cli.preflight.result import Result


class _Lines(Watcher):
    def __init__(self, console: Console, models: int) -> None:
        self._console = console
        self._models = models
        self._done = 0

    @override
    def on_ended(self, result: Result) -> None:
        self._done += 1
        if self._models > 1:
            time = "cached" if result.cached else f"{result.seconds:.1f} s"
            count, source = f"[{self._done}/{self._models}]", visible(result.source)
            output.print_message(self._console, f"{count} {result.verdict} {source} ({time})")


@contextmanager
def show_progress(console: Console, models: int) -> Iterator[Watcher]:
    """Yield the watcher to notify of progress."""
    if not console.is_terminal:
        yield _Lines(console, models)
        return
    from enginewright_cli.preflight.live import live  # noqa: PLC0415 - only for terminals

    with live(console, models) as watcher:
        yield watcher
