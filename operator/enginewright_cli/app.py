"""The command tree. To add a command, write a function in its own package and register it here."""

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import typer
from typer._click.exceptions import UsageError
from typer.core import TyperCommand, TyperGroup
from typing_extensions import override

if TYPE_CHECKING:
    from typer._click.core import Command, Context
    from typer._click.formatting import HelpFormatter

_SENTENCE: Final = 200  # characters of a command's first sentence, which is shown whole
_OPTIONS: Final[dict[str, Any]] = {
    "add_completion": False,  # of the whole command line alone
    "rich_markup_mode": None,  # plain: frames would break sentences in two in a log
    "pretty_exceptions_enable": False,  # expected errors are messages; a bug has Python's traceback
}


class _Command(TyperCommand):
    """Refuses empty values, such as of a variable that is not set: they would be taken for absent ones, or for a folder."""

    @override
    def parse_args(self, ctx: "Context", args: list[str]) -> list[str]:
        for before, word in pairwise(("", *args)):
            option, assigned, value = word.partition("=")
            if not option.startswith("--") or not assigned:
                option, value = before, word
            if not value.strip():
                name = option if option.startswith("-") else "an argument"
                ctx.fail(f"{name} is empty; write a value, or leave it out")
        return super().parse_args(ctx, args)


class _Lazy(TyperGroup):
    """Imports a command only when it is invoked: to import all takes as long as a cached preflight."""

    functions: ClassVar[Mapping[str, str]] = {}  # "module:name" by command

    @override
    def list_commands(self, ctx: "Context") -> list[str]:
        return [*self.functions, *super().list_commands(ctx)]

    @override
    def format_commands(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, one.get_short_help_str(_SENTENCE)) for name, one in commands if one]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    @override
    def get_command(self, ctx: "Context", cmd_name: str) -> "Command | None":
        if cmd_name not in self.functions:
            return super().get_command(ctx, cmd_name)
        module, _, name = self.functions[cmd_name].partition(":")
        single = typer.Typer(**_OPTIONS)
        single.command(cmd_name, cls=_Command)(getattr(import_module(module), name))
        return typer.main.get_command(single)

    @override
    def resolve_command(
        self, ctx: "Context", args: list[str]
    ) -> "tuple[str | None, Command | None, list[str]]":
        name, commands = args[0], self.list_commands(ctx)
        if name not in commands and not name.startswith("-"):
            near = get_close_matches(name, commands, n=1)
            hint = f"did you mean {near[0]}?" if near else f"write one of {', '.join(commands)}"
            ctx.fail(f"No such command {name!r}; {hint}")
        return super().resolve_command(ctx, args)


class _Commands(_Lazy):
    functions: ClassVar[Mapping[str, str]] = {
        "preflight": "enginewright_cli.preflight.command:preflight",
        "describe": "enginewright_cli.describe.command:describe",
        "serve": "enginewright_cli.serve.command:serve",
        "upload": "enginewright_cli.upload.command:upload",
        "plan": "enginewright_cli.plan.command:plan",
        "migrate": "enginewright_cli.migrate.command:migrate",
        **{
            name: f"enginewright_cli.diagnose.commands:{name}"
            for name in ("explain", "placement", "diff", "logs", "bundle", "watch")
        },
        "rollback": "enginewright_cli.rollout.commands:rollback",
        "status": "enginewright_cli.rollout.status_command:status",
        "promote": "enginewright_cli.rollout.commands:promote",
        "pause": "enginewright_cli.rollout.commands:pause",
        "resume": "enginewright_cli.rollout.commands:resume",
    }


class _EngineCommands(_Lazy):
    functions: ClassVar[Mapping[str, str]] = {"inspect": "enginewright_cli.inspect.command:inspect"}


class _StoreCommands(_Lazy):
    functions: ClassVar[Mapping[str, str]] = {
        "ls": "enginewright_cli.store.command:ls",
        "report": "enginewright_cli.store.command:report",
        "verify": "enginewright_cli.store.command:verify",
        "gc": "enginewright_cli.store.command:gc",
        "release": "enginewright_cli.store.command:release",
        "export": "enginewright_cli.store.command:export",
        "import": "enginewright_cli.store.command:import_",
    }


app: Final = typer.Typer(
    name="enginewright",
    cls=_Commands,
    help="Check ONNX models, plan and control their rollout, and inspect engines and stores.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    **{**_OPTIONS, "add_completion": True},
)
engine: Final = typer.Typer(cls=_EngineCommands, no_args_is_help=True, **_OPTIONS)
app.add_typer(engine, name="engine")
store: Final = typer.Typer(cls=_StoreCommands, no_args_is_help=True, **_OPTIONS)
app.add_typer(store, name="store")


@engine.callback()
def _engine() -> None:
    """Inspect engines, each built for one AcceleratorClass."""


@store.callback()
def _store() -> None:
    """List, verify, clean, export and import the artefacts of a store."""


def _print_version(requested: bool) -> None:
    if requested:
        from importlib import metadata  # noqa: PLC0415 - it takes 30 ms of every start

        print(f"enginewright {metadata.version('enginewright')}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Check ONNX models, plan and control their rollout, and inspect engines and stores."""


def run() -> int:
    """Run the command line; return its exit code."""
    try:
        code: int | None = app(prog_name="enginewright", standalone_mode=False)
    except UsageError as error:
        from enginewright_cli.reporting import WRONG_USAGE  # noqa: PLC0415 - heavy

        error.show()
        return WRONG_USAGE
    return code or 0
