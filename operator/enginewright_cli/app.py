"""All commands in one tree. A further one is a function in a module of its own, registered here."""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import typer
from typer.core import TyperGroup
from typing_extensions import override

if TYPE_CHECKING:
    from typer._click.core import Command, Context

_OPTIONS: Final[dict[str, Any]] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,  # errors are reported as sentences; a bug's traceback is Python's own
}


class _Lazy(TyperGroup):
    """Imports a command when it is named: all together take as long as a preflight that is cached."""

    functions: ClassVar[Mapping[str, str]] = {}  # "module:name" by command

    @override
    def list_commands(self, ctx: "Context") -> list[str]:
        return [*super().list_commands(ctx), *self.functions]

    @override
    def get_command(self, ctx: "Context", cmd_name: str) -> "Command | None":
        if cmd_name not in self.functions:
            return super().get_command(ctx, cmd_name)
        module, _, name = self.functions[cmd_name].partition(":")
        alone = typer.Typer(**_OPTIONS)
        alone.command(cmd_name)(getattr(import_module(module), name))
        return typer.main.get_command(alone)


class _Commands(_Lazy):
    functions: ClassVar[Mapping[str, str]] = {
        "preflight": "enginewright_cli.preflight.command:preflight",
        "plan": "enginewright_cli.plan.command:plan",
    }


class _EngineCommands(_Lazy):
    functions: ClassVar[Mapping[str, str]] = {"inspect": "enginewright_cli.inspect.command:inspect"}


app: Final = typer.Typer(
    name="enginewright",
    cls=_Commands,
    help="Looks into models and engines that Enginewright makes, and what a cluster would do with them.",
    no_args_is_help=True,
    **_OPTIONS,
)
engine: Final = typer.Typer(cls=_EngineCommands, no_args_is_help=True)
app.add_typer(engine, name="engine")


@engine.callback()
def _engine() -> None:
    """Engines: built for one class of accelerator."""


def _tell_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata  # noqa: PLC0415 - it takes 30 ms of every start

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
