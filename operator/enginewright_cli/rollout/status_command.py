"""The command line of `status`. Exit code 0: healthy or progressing, 1: rejected or stalled, 2: not known."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from enginewright_cli import output
from enginewright_cli.options import Context, Json, Name, Namespace
from enginewright_cli.reporting import INTERRUPTED, REFUSED, report_errors
from enginewright_cli.rollout.result import RolloutStatus
from enginewright_cli.rollout.view import show

_OF_TIME: Final = {"progress": {"held_seconds", "left_seconds"}}  # would change at every look


def status(
    name: Name,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Look again until the rollout has ended.")
    ] = False,
    json: Json = False,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Show a model's rollout: both revisions, their comparison, and the history."""
    with report_errors("status"):
        from enginewright_cli.rollout import watching  # noqa: PLC0415 - heavy

        try:
            console = Console()
            if watch and not json and console.is_terminal:
                with Live(console=console, auto_refresh=False) as live:
                    rollout = watching.watch(
                        name, namespace, context, _make_refresher(live), until_ended=True
                    )
            else:
                shown = _make_printer(json=json)
                rollout = watching.watch(name, namespace, context, shown, until_ended=watch)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(REFUSED if rollout.verdict in ("rejected", "stalled") else 0)


def _make_printer(*, json: bool) -> Callable[[RolloutStatus], None]:
    """Return what prints a status, except if only times have passed since the last one."""
    last = [""]

    def print_change(rollout: RolloutStatus) -> None:
        state = rollout.model_dump_json(exclude=_OF_TIME)
        if state != last[0]:
            last[0] = state
            output.write(rollout.to_json() if json else _text(rollout))

    return print_change


def _make_refresher(live: Live) -> Callable[[RolloutStatus], None]:
    def refresh(rollout: RolloutStatus) -> None:
        live.update(Text.from_ansi(_text(rollout)), refresh=True)

    return refresh


def _text(rollout: RolloutStatus) -> str:
    return output.render(lambda console: show(rollout, console, datetime.now(UTC)))
