"""The command line of `preflight`, and its exit codes.

0: deployable. 1: not deployable. 2: unknown: invalid input or usage, a failing machine, an interrupt.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from enginewright_contract.images import ImageFacts
from enginewright_contract.reasons import Fault, Reason
from rich.console import Console

from enginewright_cli import installing, output
from enginewright_cli.preflight import config, options, targets
from enginewright_cli.preflight.cache import ResultCache, default_folder, installation
from enginewright_cli.preflight.config import ConfigError, Configuration, ModelOptions
from enginewright_cli.preflight.formatting import counted, visible
from enginewright_cli.preflight.many import RunSettings, check_all
from enginewright_cli.preflight.outputs import Outputs
from enginewright_cli.preflight.progress import shown
from enginewright_cli.preflight.request import PreflightRequest, request
from enginewright_cli.preflight.result import VERDICTS, Result, Results, worst
from enginewright_cli.preflight.stages import JOB_SECONDS, InstallationError, running_stages
from enginewright_cli.preflight.stopping import Stopped, stopped_by_signals
from enginewright_cli.preflight.table import show
from enginewright_cli.preflight.tools import installed_facts

UNKNOWN: Final = 2


class _UsageError(ValueError):
    """An invalid combination of arguments; the message states the remedy."""


def preflight(
    model: Annotated[
        list[str] | None,
        typer.Argument(
            help="An .onnx file, a folder with one, or a URI; several may be given."
            " Default: the models of enginewright.toml."
        ),
    ] = None,
    *,
    target: Annotated[
        str | None,
        typer.Option(
            help="Targets, comma-separated: sm86 to sm121, cpu, openvino, cuda, cpu:avx2."
            " Default: all backends installed here, and sm89."
        ),
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="FP32, FP16, BF16, FP8 or INT8. Default: the model's own.")
    ] = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option(help="Shapes of a dynamic input, INPUT=MIN:OPT:MAX; repeat for each input."),
    ] = None,
    samples: Annotated[
        str | None, typer.Option(help="Samples (.npz), like spec.parity.samples.")
    ] = None,
    calibration: Annotated[
        str | None, typer.Option(help="Calibration data, like spec.quantization.calibration.")
    ] = None,
    before: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STEP",
            help="A step before the model, like spec.processing.before; repeat for a second.",
        ),
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STEP",
            help="A step after the model, like spec.processing.after; repeat for a second.",
        ),
    ] = None,
    extension: Annotated[
        list[str] | None,
        typer.Option(help="Operators that they need, like spec.extensions: ONNXRuntimeExtensions."),
    ] = None,
    request_file: Annotated[
        str | None,
        typer.Option(
            "--request",
            metavar="FILE",
            help="A request in JSON, as clients send it over HTTP, that each target answers.",
        ),
    ] = None,
    target_opset: Annotated[
        int | None, typer.Option(min=7, help="Opset to convert to, like spec.targetOpset.")
    ] = None,
    runtime_version: Annotated[
        str | None,
        typer.Option(
            help="ONNX Runtime that will serve, such as 1.24. Default: the installed one."
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            metavar="DIGEST",
            help="Runtime image that will serve, as the cluster's operator probed it.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Allowed fallback to other providers: allow, or compute=2%,nodes=5%. Default: none."
        ),
    ] = None,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="Configuration. Default: enginewright.toml in this folder or a parent.",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Maximum number of models at once. Default: as CPUs and memory allow."
        ),
    ] = None,
    timeout: Annotated[
        int,
        typer.Option(min=1, help="Time limit of a Job in seconds, like spec.build.timeout."),
    ] = JOB_SECONDS,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Do not use results of earlier runs.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write an HTML report to this file.")
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a JUnit XML report to this file.")
    ] = None,
    fix: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT.onnx",
            help="Write the model that would be served, with a log of its changes.",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON, as docs/reference/commands.md describes.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print nothing, only set the exit code.")
    ] = False,
) -> None:
    """Check what a cluster would do with a model before you deploy it."""
    console = Console(stderr=True, quiet=quiet)
    if message := installing.why_no_stages():
        _print_message(console, message, failed=True)
        raise typer.Exit(UNKNOWN)
    outputs = Outputs(html, junit, fix)
    typed = ModelOptions.model_construct(
        targets=tuple(target.split(",")) if target else None,
        precision=precision,
        shapes=tuple(shapes) if shapes else None,
        samples=samples,
        calibration=calibration,
        before=tuple(before) if before else None,
        after=tuple(after) if after else None,
        extensions=tuple(extension) if extension else None,
        request=request_file,
        target_opset=target_opset,
        budget=budget,
        runtime_version=runtime_version,
    )
    try:
        with stopped_by_signals() as stop, running_stages() as stages:
            models = _models_with_options(model or [], config_file, typed)
            if image and runtime_version:
                raise _UsageError("give --image or --runtime-version, not both")
            outputs.check(list(models))
            cache = (
                None
                if no_cache
                else ResultCache(default_folder(), lambda message: _print_message(console, message))
            )
            installed = installation()
            held = installed_facts(cache, installed, stages, stop)
            serving = _image(image) if image else None
            requests = [_request(each, models, held, serving) for each in models]
            settings = RunSettings(held, installed, cache, outputs, jobs, stages, stop, timeout)
            with shown(console, len(requests)) as watcher:
                results, messages = check_all(requests, settings, watcher)
            messages += outputs.save_reports(results)
    except _UNKNOWN as error:
        _print_message(console, str(error), failed=True)
        raise typer.Exit(UNKNOWN) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _print_message(console, f"{where}{error.strerror or error}", failed=True)
        raise typer.Exit(UNKNOWN) from None
    except Stopped:
        _print_message(console, "interrupted; temporary files are removed", failed=True)
        raise typer.Exit(UNKNOWN) from None
    if json:
        output.write(_json(results, single=len(model or ()) == 1))
    elif not quiet:
        output.write(_table(results))
    for one in messages:
        _print_message(console, one.text, failed=one.failed)
    failed = any(one.failed for one in messages)
    raise typer.Exit(max([UNKNOWN if failed else 0, *map(_code, results)]))


_UNKNOWN: Final = (
    targets.TargetError,
    options.OptionError,
    InstallationError,
    ConfigError,
    _UsageError,
)


def _models_with_options(
    models: Sequence[str], file: Path | None, typed: ModelOptions
) -> dict[str, ModelOptions]:
    """Return every model with its options."""
    found = file or config.find(Path())
    known = Configuration.read(found) if found else None
    if models:
        return {
            each: typed.over(known.options_of(each)) if known else typed
            for each in dict.fromkeys(models)
        }
    if known is None:
        raise _UsageError(
            f"give a MODEL, or create {config.NAME}: this folder and its parents have none"
        )
    return {each: typed.over(configured) for each, configured in known.models().items()}


def _image(text: str) -> tuple[str, ImageFacts]:
    from enginewright_cli import cluster, images  # noqa: PLC0415 - heavy

    try:
        return images.chosen(text, cluster.query(images.known))
    except cluster.ClusterError as error:
        raise _UsageError(
            f"--image {text}: {error}; without a cluster, use --runtime-version"
        ) from None
    except images.ImageError as error:
        raise _UsageError(str(error)) from None


def _request(
    source: str,
    models: dict[str, ModelOptions],
    held: ImageFacts,
    image: tuple[str, ImageFacts] | None,
) -> PreflightRequest:
    try:
        return request(source, models[source], held, image)
    except (targets.TargetError, options.OptionError) as error:
        if len(models) == 1 or str(error).startswith(source):
            raise
        raise _UsageError(f"{source}: {error}") from None


def _json(results: Sequence[Result], *, single: bool) -> str:
    if single:
        return results[0].to_json()
    verdict = worst(tuple(each.verdict for each in results))
    return Results(verdict=verdict, models=tuple(results)).to_json()


def _table(results: Sequence[Result]) -> str:
    def print_all(console: Console) -> None:
        for number, each in enumerate(results):
            if number:
                console.print()
            show(each, console)
        if len(results) > 1:
            counts = {name: sum(each.verdict == name for each in results) for name in VERDICTS}
            summary = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
            console.print(f"\n{counted(len(results), 'model')}: {summary}", highlight=False)

    return output.rendered(print_all)


def _print_message(console: Console, message: str, *, failed: bool = False) -> None:
    console.print(
        f"enginewright preflight: {visible(message)}",
        style="red" if failed else None,
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _is_of_machine(reason: Reason) -> bool:
    """Return whether this machine failed, which says nothing about the model."""
    return reason.lacks_resources or reason.facets.fault in (Fault.STORE, Fault.PRODUCT)


def _code(result: Result) -> int:
    if result.model is None:
        return UNKNOWN
    if any(_is_of_machine(Reason(each.reason)) for each in result.targets.values() if each.reason):
        return UNKNOWN
    return 1 if result.verdict == "fail" else 0
