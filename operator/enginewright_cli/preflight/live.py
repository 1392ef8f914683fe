"""Progress on a terminal: a row per model, with the stage of every Job."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from typing_extensions import override

from enginewright_cli.formatting import visible
from enginewright_cli.preflight.many import Watcher
from enginewright_cli.preflight.result import Result
from enginewright_cli.preflight.stage_line import update_line

_LONGEST: Final = 80  # characters of a name


@contextmanager
def live(console: Console, models: int) -> Iterator[Watcher]:
    """Yield the watcher to notify of progress; remove the rows on exit."""
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as progress:
        yield _Live(progress, models)


class _Live(Watcher):
    """Rows of a live display, thread-safe: every update is shown before the next."""

    def __init__(self, progress: Progress, models: int) -> None:
        self._progress = progress
        self._models = models
        self._done = 0
        self._lock = threading.Lock()
        self._rows: dict[str, TaskID] = {}
        self._stages: dict[str, dict[str, str]] = {}  # by source and targets
        self._total = progress.add_task(self._count(), visible=models > 1, total=None)

    def _count(self) -> str:
        return f"{self._done} of {self._models} models"

    @override
    def on_started(self, source: str) -> None:
        with self._lock:
            self._rows[source] = self._progress.add_task(_name(source), total=None)
            self._stages[source] = {}

    @override
    def stage(self, source: str, target: str, stage: str) -> None:
        name = f"{_name(source)}  " if self._models > 1 else ""
        with self._lock:
            row = update_line(self._stages[source], target, stage)
            self._progress.update(self._rows[source], description=f"{name}{row}")

    @override
    def on_ended(self, result: Result) -> None:
        with self._lock:
            self._progress.remove_task(self._rows.pop(result.source))
            self._done += 1
            self._progress.update(self._total, description=self._count())


def _name(source: str) -> str:
    return visible(source if len(source) <= _LONGEST else f"…{source[-_LONGEST:]}")
