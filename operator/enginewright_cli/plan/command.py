"""The command line of `plan`. Exit code 0: no model is refused, 1: one is, 2: there is no plan."""

from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from enginewright_cli import installing, output
from enginewright_cli.plan.result import Forecasts
from enginewright_cli.plan.table import show

REFUSED: Final = 1
NO_PLAN: Final = 2


class _PlanError(Exception):
    """There is no plan; the message states the cause."""


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
            help="Namespace of models that do not set one. Default: the current context's.",
        ),
    ] = None,
    offline: Annotated[
        bool,
        typer.Option(
            "--offline", help="Use no cluster: assume one class cpu and what is installed here."
        ),
    ] = False,
    facts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Use no cluster: read its state from a file of --save-facts."
        ),
    ] = None,
    save_facts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the cluster's state to this file, for --facts."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON, as docs/reference/commands.md describes.")
    ] = False,
) -> None:
    """Show what applying InferenceModels would do, without changing the cluster."""
    try:
        forecasts = _plan(manifest, namespace, offline=offline, file=facts, save=save_facts)
    except _PlanError as error:
        output.print_error("plan", str(error))
        raise typer.Exit(NO_PLAN) from None
    table = partial(show, forecasts)
    output.write(forecasts.to_json() if json else output.render(table))
    refused = any(model.verdict == "refused" for model in forecasts.models)
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
        raise _PlanError("interrupted; temporary files are removed") from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise _PlanError(f"{where}{error.strerror or error}") from None
