"""The command: from options to an exit code. 0: deployable, 1: not, 2: unusable input or usage."""

import sys
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from enginewright.cli.preflight import options, targets
from enginewright.cli.preflight.check import Request, check, local_uri
from enginewright.cli.preflight.outputs import Outputs, Told
from enginewright.cli.preflight.result import Result
from enginewright.cli.preflight.table import show
from enginewright.cli.preflight.words import visible
from enginewright.cli.preflight.workplace import InstallationError, Workplace, workplace
from enginewright.contract.images import ImageFacts

UNUSABLE: Final = 2
_INTERRUPTED: Final = 130
_PLAIN_WIDTH: Final = 160  # columns, where there is no terminal to have a width


def preflight(
    model: Annotated[str, typer.Argument(help="An .onnx file, a folder with one, or a URI.")],
    *,
    target: Annotated[
        str | None,
        typer.Option(
            help="Where it is to run, with commas between: sm75 to sm121, cpu, openvino, cuda."
            " Absent: all that this installation has, and sm89."
        ),
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="FP32, FP16, BF16, FP8 or INT8. Absent: the model's own.")
    ] = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option(help="Sizes of a dynamic input, INPUT=MIN:OPT:MAX; once an input."),
    ] = None,
    samples: Annotated[
        Path | None,
        typer.Option(help="A .npz file as for spec.parity.samples.", exists=True, dir_okay=False),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Data as for spec.quantization.calibration.", exists=True)
    ] = None,
    target_opset: Annotated[
        int | None, typer.Option(min=7, help="Opset to convert to, as spec.targetOpset.")
    ] = None,
    runtime_version: Annotated[
        str | None,
        typer.Option(
            help="ONNX Runtime that is to serve, such as 1.24. Absent: the installed one."
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="What may run elsewhere: allow, or compute=2%,nodes=5%. Absent: nothing may."
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page for people to this file.")
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write JUnit's XML to this file.")
    ] = None,
    fix: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT.onnx",
            help="Write the model that would be served, with a log of what was changed.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON: docs/preflight.md.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing; see the code.")] = False,
) -> None:
    """Find out what a cluster would do with a model, before it is applied."""
    console = Console(stderr=True, quiet=quiet)
    outputs = Outputs(html, junit, fix)
    said: list[Told] = []
    try:
        outputs.check([model])
        with workplace() as place:
            held = place.facts()
            wanted = tuple(targets.parse(each) for each in target.split(",")) if target else ()
            wanted = wanted or targets.defaults(held)
            for each in wanted:
                targets.check(each, held)
            request = Request(
                source=_source(model),
                targets=tuple(dict.fromkeys(wanted)),
                recipe=options.recipe(
                    held,
                    shapes=tuple(options.shape(each) for each in shapes or ()),
                    wanted=options.precision(precision),
                    runtime_version=runtime_version,
                    target_opset=target_opset,
                    samples_uri=local_uri(samples) if samples else None,
                    calibration_uri=local_uri(calibration) if calibration else None,
                ),
                promise=options.promise(budget),
                samples=samples,
                calibration=calibration,
            )
            result = _check(request, place, held, console)
            said += outputs.save_model(result, lambda key: place.artifact("prepared", key))
    except (targets.TargetError, options.OptionError, InstallationError) as error:
        console.print(f"enginewright preflight: {error}", style="red", markup=False)
        raise typer.Exit(UNUSABLE) from None
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        told = f"enginewright preflight:{where} {error.strerror or error}"
        console.print(told, style="red", markup=False)
        raise typer.Exit(UNUSABLE) from None
    except KeyboardInterrupt:
        console.print("enginewright preflight: interrupted; nothing is left behind", style="red")
        raise typer.Exit(_INTERRUPTED) from None
    said += outputs.save_reports([result])
    if json:
        sys.stdout.write(result.to_json() + "\n")
    elif not quiet:
        show(result, Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH))
    for one in said:
        style = "red" if one.failed else None
        words = f"enginewright preflight: {visible(one.words)}"
        console.print(words, style=style, markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(UNUSABLE if any(one.failed for one in said) else _code(result))


def _source(model: str) -> str:
    if "://" in model:
        return model
    path = Path(model)
    if not path.exists():
        raise options.OptionError(f"{model}: there is no such file")
    return model


def _check(request: Request, place: Workplace, held: ImageFacts, console: Console) -> Result:
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as progress:
        bar = progress.add_task("starting", total=None)

        def tell(target: str, stage: str) -> None:
            progress.update(bar, description=f"{target}: {stage}")

        return check(request, place, held, tell)


def _code(result: Result) -> int:
    if result.model is None:
        return UNUSABLE
    return 1 if result.verdict == "fail" else 0
