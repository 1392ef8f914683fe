"""The command line of `engine inspect`. Exit code 0: ok, 1: it will not load, 2: not inspected."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
from enginewright_contract.base import Message
from rich.console import Console

from enginewright_cli import output
from enginewright_cli.inspect import files
from enginewright_cli.inspect.files import Progress
from enginewright_cli.inspect.fit import EngineTarget, judge
from enginewright_cli.inspect.result import (
    WILL_NOT_LOAD,
    EngineFit,
    EngineInspection,
)
from enginewright_cli.inspect.view import one_line, show
from enginewright_cli.options import Json
from enginewright_cli.reporting import WrongUsage, report_errors

_CAPABILITY: Final = re.compile(r"\d{1,2}\.\d")


class Printed(Message):
    """What `--json` prints."""

    engine: EngineInspection
    fit: EngineFit | None = None  # if a target was given


def inspect(
    what: Annotated[
        str,
        typer.Argument(
            metavar="PATH|NAME",
            help="An artefact's folder, a manifest.json, an .engine or .plan file, an .onnx model"
            " that wraps engines, or the name of an InferenceEngine in the cluster.",
        ),
    ],
    *,
    class_name: Annotated[
        str | None,
        typer.Option("--class", metavar="NAME", help="AcceleratorClass that it should load on."),
    ] = None,
    compute_capability: Annotated[
        str | None, typer.Option(metavar="8.9", help="Compute capability that it should load on.")
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", "-n", help="Namespace of NAME. Default: the current context's."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show what an engine is, and whether it will load on a class."""
    with report_errors("engine inspect"):
        with _progress(Console(stderr=True)) as progress:
            engine = _inspect(what, namespace, progress)
            target = _target(class_name, compute_capability, progress)
        fit = None if target is None else judge(engine, target)
    printed = Printed(engine=engine, fit=fit)
    output.write(printed.to_json() if json else output.render(partial(show, engine, fit)))
    loads = fit.loads if fit is not None else not engine.problems
    raise typer.Exit(0 if loads else WILL_NOT_LOAD)


def _inspect(what: str, namespace: str | None, progress: Progress) -> EngineInspection:
    if files.is_path(what):
        if namespace is not None:
            raise WrongUsage(
                f"{what} is a path, and --namespace applies only to the name of an InferenceEngine"
            )
        return files.inspect(Path(what), progress)
    from enginewright_cli.inspect import cluster  # noqa: PLC0415 - heavy

    return cluster.inspect(what, namespace, progress)


def _target(
    class_name: str | None, capability: str | None, progress: Progress
) -> EngineTarget | None:
    if class_name is not None and capability is not None:
        raise WrongUsage("give one of --class and --compute-capability, not both")
    if class_name is not None:
        from enginewright_cli.inspect import cluster  # noqa: PLC0415 - heavy

        return cluster.target(class_name, progress)
    if capability is None:
        return None
    if not _CAPABILITY.fullmatch(capability):
        raise WrongUsage(
            f"--compute-capability {capability}: write MAJOR.MINOR, such as 8.9 for an L4"
        )
    return EngineTarget(f"compute capability {capability}", compute_capability=capability)


@contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("") as status:
        yield lambda text: status.update(one_line(text))
