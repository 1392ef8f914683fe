"""All commands in one tree. A further one is a function in a module of its own, registered here."""

from typing import Final

import typer

from enginewright.cli.inspect.command import inspect
from enginewright.cli.plan.command import plan
from enginewright.cli.preflight.command import preflight

app: Final = typer.Typer(
    name="enginewright",
    help="Looks into models and engines that Enginewright makes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # users are told in words; a bug's traceback is Python's own
)
engine: Final = typer.Typer(
    help="Engines: built for one class of accelerator.", no_args_is_help=True
)
app.add_typer(engine, name="engine")
engine.command()(inspect)
app.command()(preflight)
app.command()(plan)


@app.callback()
def root() -> None:
    """Look into models and engines that Enginewright makes."""
