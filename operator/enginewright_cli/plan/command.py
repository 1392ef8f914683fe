"""The command: from a manifest to an exit code. 0: it would be brought up, 1: not, 2: unusable input."""

from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from enginewright_cli import installing, output
from enginewright_cli.plan.result import Forecasts
from enginewright_cli.plan.table import show

REFUSED: Final = 1
UNUSABLE: Final = 2


class _PlanError(Exception):
    """Nothing can be planned; says why."""


def plan(
    manifest: Annotated[
        str,
        typer.Option(
            "--filename",
            "-f",
            metavar="FILE",
            help="YAML or JSON with InferenceModels; - for stdin.",
        ),
    ],
    *,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            help="Namespace of models that name none. Default: the current context's.",
        ),
    ] = None,
    offline: Annotated[
        bool,
        typer.Option(
            "--offline", help="Ask no cluster: assume one class cpu and what is installed here."
        ),
    ] = False,
    facts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Ask no cluster: read its state from what --save-facts wrote."
        ),
    ] = None,
    save_facts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the cluster's state to this file, for --facts."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON: docs/plan.md.")] = False,
) -> None:
    """Show what applying InferenceModels would do. Nothing is applied, and nothing is written."""
    console = Console(stderr=True)
    try:
        found = _plan(manifest, namespace, offline=offline, file=facts, save=save_facts)
    except _PlanError as error:
        message = f"enginewright plan: {error}"
        console.print(message, style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(UNUSABLE) from None
    output.write(found.to_json() if json else _table(found))
    refused = any(each.verdict == "refused" for each in found.models)
    raise typer.Exit(REFUSED if refused else 0)


def _plan(
    manifest: str, namespace: str | None, *, offline: bool, file: Path | None, save: Path | None
) -> Forecasts:
    if sum((offline, file is not None)) > 1:
        raise _PlanError("give --offline or --facts, not both")
    try:
        from enginewright_cli.plan import run  # noqa: PLC0415 - heavy
    except ImportError as error:
        raise _PlanError(
            f"it needs {error.name}, which is not installed; {installing.remedy('cli')}"
        ) from None
    try:
        return run.plan(manifest, namespace, offline=offline, file=file, save=save)
    except run.ERRORS as error:
        raise _PlanError(str(error)) from None
    except run.INTERRUPTS:
        raise _PlanError("interrupted; nothing is left behind") from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise _PlanError(f"{where}{error.strerror or error}") from None


def _table(found: Forecasts) -> str:
    return output.rendered(lambda console: show(found, console))
