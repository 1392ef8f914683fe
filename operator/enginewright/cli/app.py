"""All commands in one tree. A further one is a function in a module of its own, registered here."""

from importlib import metadata
from typing import Annotated, Final

import typer

from enginewright.cli.inspect.command import inspect
from enginewright.cli.plan.command import plan
from enginewright.cli.preflight.command import preflight

app: Final = typer.Typer(
    name="enginewright",
    help="Looks into models and engines that Enginewright makes, and what a cluster would do with them.",
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


def _tell_version(wanted: bool) -> None:
    if wanted:
        print(f"enginewright {metadata.version('enginewright')}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    """Look into models and engines that Enginewright makes, and what a cluster would do with them."""
