"""The command line of `preflight`, and its exit codes.

0: deployable, perhaps with warnings. 1: certainly not deployable. 2: it could not be found out: the source was not reached, this
machine failed or lacks something, an interrupt. 64: wrong usage, found before anything has started.
"""

import functools
from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, Final

import typer
from enginewright_contract.images import ImageFacts
from enginewright_contract.masking import mask
from rich.console import Console

from enginewright_cli import installing, output
from enginewright_cli.formatting import count_noun, visible
from enginewright_cli.preflight import config, options, targets
from enginewright_cli.preflight.arguments import PreflightArguments
from enginewright_cli.preflight.cache import ResultCache, default_folder, installation
from enginewright_cli.preflight.config import ConfigError, Configuration, ModelOptions
from enginewright_cli.preflight.many import RunSettings, check_all, error_text
from enginewright_cli.preflight.outputs import FileMessage, Outputs
from enginewright_cli.preflight.progress import show_progress
from enginewright_cli.preflight.request import PreflightRequest, check_source, request
from enginewright_cli.preflight.result import VERDICTS, Result, Results, Verdict, worst
from enginewright_cli.preflight.stages import running_stages
from enginewright_cli.preflight.stopping import Stopped, stop_on_signals
from enginewright_cli.preflight.table import show
from enginewright_cli.preflight.tools import probe_installation
from enginewright_cli.reporting import REFUSED, WRONG_USAGE, CommandError

UNKNOWN: Final = 2
_CODES: Final[dict[Verdict, int]] = {"pass": 0, "warn": 0, "unknown": UNKNOWN, "fail": REFUSED}
_USAGE: Final = (targets.TargetError, options.OptionError, ConfigError)


def preflight(**given: Any) -> None:  # noqa: ANN401 - typer passes what the signature below says
    """Check what a cluster would do with a model before you deploy it."""
    arguments = PreflightArguments(**given)
    console = Console(stderr=True, quiet=arguments.quiet)
    if message := installing.why_no_stages():
        _print_message(console, message, failed=True)
        raise typer.Exit(UNKNOWN)
    try:
        results, messages = _results(arguments, console)
    except _USAGE as error:
        _print_message(console, str(error), failed=True)
        raise typer.Exit(WRONG_USAGE) from None
    except (CommandError, OSError, Stopped) as error:
        _print_message(console, _cause(error), failed=True)
        raise typer.Exit(UNKNOWN) from None
    if arguments.json:
        output.write(_json(results, single=len(arguments.model or ()) == 1))
    elif not arguments.quiet:
        output.write(_table(results))
    for one in messages:
        _print_message(console, one.text, failed=one.failed)
    unwritten = any(one.failed for one in messages)
    code = _CODES[worst(tuple(result.verdict for result in results))]
    raise typer.Exit(code or (UNKNOWN if unwritten else 0))


preflight.__signature__ = signature(PreflightArguments)  # type: ignore[attr-defined]  # typer reads it


def _results(
    arguments: PreflightArguments, console: Console
) -> tuple[list[Result], list[FileMessage]]:
    outputs = Outputs(arguments.html, arguments.junit, arguments.fix, arguments.manifest)
    with stop_on_signals() as stop, running_stages() as stages:
        models = _models_with_options(
            arguments.model or [], arguments.config_file, arguments.options
        )
        if arguments.image and arguments.runtime_version:
            raise options.OptionError("give --image or --runtime-version, not both")
        for model in models:
            check_source(model)
        outputs.check(list(models))
        cache = None
        if not arguments.no_cache:
            cache = ResultCache(default_folder(), partial(_print_message, console))
        installed = installation()
        with show_progress(console, len(models)) as watcher:
            probe = functools.cache(partial(probe_installation, cache, installed, stages, stop))
            serving = _image(arguments.image) if arguments.image else None
            requests = [_request(model, models, probe, serving) for model in models]
            settings = RunSettings(
                probe(), installed, cache, outputs, arguments.jobs, stages, stop, arguments.timeout
            )
            results, messages = check_all(requests, settings, watcher)
        return results, messages + outputs.save_reports(results)


def _cause(error: Exception) -> str:
    if isinstance(error, Stopped):
        return "interrupted; temporary files are removed"
    return error_text(error) if isinstance(error, OSError) else str(error)


def _models_with_options(
    models: Sequence[str], file: Path | None, typed: ModelOptions
) -> dict[str, ModelOptions]:
    path = file or config.find(Path())
    configuration = Configuration.read(path) if path else None
    if models:
        return {
            model: typed.over(configuration.options_of(model)) if configuration else typed
            for model in dict.fromkeys(models)
        }
    if configuration is None:
        raise options.OptionError(
            f"give a MODEL, or create {config.NAME}: this folder and its parents have none"
        )
    return {key: typed.over(configured) for key, configured in configuration.models().items()}


def _image(text: str) -> tuple[str, ImageFacts]:
    try:
        from enginewright_cli import cluster, images  # noqa: PLC0415 - heavy
    except ImportError as error:
        raise CommandError(
            f"--image needs {error.name}, which is not installed; {installing.remedy('cli')}"
        ) from None
    try:
        return images.choose_image(text, cluster.query(images.list_images))
    except cluster.ClusterError as error:
        raise CommandError(
            f"--image {text}: {error}; without a cluster, use --runtime-version"
        ) from None


def _request(
    source: str,
    models: dict[str, ModelOptions],
    probe: Callable[[], ImageFacts],
    image: tuple[str, ImageFacts] | None,
) -> PreflightRequest:
    try:
        return request(source, models[source], probe, image)
    except (targets.TargetError, options.OptionError, CommandError) as error:
        if len(models) == 1 or str(error).startswith(source):
            raise
        raise type(error)(f"{mask(source)}: {error}") from None


def _json(results: Sequence[Result], *, single: bool) -> str:
    if single:
        return results[0].to_json()
    verdict = worst(tuple(result.verdict for result in results))
    return Results(verdict=verdict, models=tuple(results)).to_json()


def _table(results: Sequence[Result]) -> str:
    def print_all(console: Console) -> None:
        for number, result in enumerate(results):
            if number:
                console.print()
            show(result, console)
        if len(results) > 1:
            counts = {name: sum(result.verdict == name for result in results) for name in VERDICTS}
            summary = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
            console.print(f"\n{count_noun(len(results), 'model')}: {summary}", highlight=False)

    return output.render(print_all)


def _print_message(console: Console, message: str, *, failed: bool = False) -> None:
    output.print_message(console, f"enginewright preflight: {visible(message)}", failed=failed)
