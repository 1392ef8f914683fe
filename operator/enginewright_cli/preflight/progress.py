"""Shows how far models are: a line for each that moves on a terminal (`live`), one at its end elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from typing_extensions import override

from enginewright_cli.preflight.formatting import visible
from enginewright_cli.preflight.many import Watcher
from enginewright_cli.preflight.result import Result


class _Lines(Watcher):
    """One line a model, for logs."""

    def __init__(self, console: Console, models: int) -> None:
        self._console = console
        self._models = models
        self._done = 0

    @override
    def begins(self, source: str) -> None:
        return

    @override
    def stage(self, source: str, target: str, stage: str) -> None:
        return

    @override
    def ends(self, result: Result) -> None:
        self._done += 1
        if self._models > 1:
            time = "an earlier run" if result.cached else f"{result.seconds:.1f} s"
            self._console.print(
                f"[{self._done}/{self._models}] {result.verdict} {visible(result.source)} ({time})",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )


@contextmanager
def shown(console: Console, models: int) -> Iterator[Watcher]:
    """Give what is notified of the models."""
    if not console.is_terminal:
        yield _Lines(console, models)
        return
    from enginewright_cli.preflight.live import live  # noqa: PLC0415 - terminals alone have it

    with live(console, models) as watcher:
        yield watcher
