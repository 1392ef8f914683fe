"""The command line of `plan`. Exit code 0: no model is refused, 1: one is, 2: there is no plan."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from enginewright_cli import output
from enginewright_cli.options import Json
from enginewright_cli.plan.result import Forecasts
from enginewright_cli.plan.table import show
from enginewright_cli.reporting import REFUSED, CommandError, WrongUsage, report_errors


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
    json: Json = False,
) -> None:
    """Show what applying InferenceModels would do, without changing the cluster."""
    with report_errors("plan"):
        forecasts = _plan(manifest, namespace, offline=offline, file=facts, save=save_facts)
    table = partial(show, forecasts)
    output.write(forecasts.to_json() if json else output.render(table))
    refused = any(model.verdict == "refused" for model in forecasts.models)
    raise typer.Exit(REFUSED if refused else 0)


def _plan(
    manifest: str, namespace: str | None, *, offline: bool, file: Path | None, save: Path | None
) -> Forecasts:
    if offline and file is not None:
        raise WrongUsage("give --offline or --facts, not both")
    from enginewright_cli.plan import run  # noqa: PLC0415 - heavy

    try:
        return run.plan(manifest, namespace, offline=offline, file=file, save=save)
    except run.INTERRUPTS:
        raise CommandError("interrupted; temporary files are removed") from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise CommandError(f"{where}{error.strerror or error}") from None
