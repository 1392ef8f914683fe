"""The command line of `serve`. Exit code 0: ended by an interrupt; 1: the model cannot be served; 2: not tried; 64: wrong usage."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from enginewright_cli import installing, output
from enginewright_cli.formatting import visible
from enginewright_cli.reporting import CommandError, Refused, WrongUsage, report_errors

if TYPE_CHECKING:
    from enginewright_cli.serve.local_server import LocalServer, Ports

_MOST: Final = 65_533  # its two neighbours are used too


def serve(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="An .onnx file, or an address as in spec.source.uri."),
    ],
    *,
    target: Annotated[
        str | None,
        typer.Option(
            help="Backend that serves: cpu, openvino or cuda. Default: the first that is installed."
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            min=1, max=_MOST, help="Port of HTTP; the sidecar's is the next, gRPC's the one after."
        ),
    ] = 8080,
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="INPUT=MIN:OPT:MAX", help="Shapes of a dynamic input, as in preflight; repeat."
        ),
    ] = None,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="Print all that server and sidecar log, not only warnings."),
    ] = False,
) -> None:
    """Serve a model on this machine as a pod would: prepared, proved, watched by a sidecar. Ctrl-C ends it."""
    console = Console(stderr=True)
    with report_errors("serve", "preflight"):
        if message := installing.why_no_stages():
            raise CommandError(message)
        from enginewright_cli.preflight.config import ConfigError  # noqa: PLC0415 - heavy
        from enginewright_cli.preflight.options import OptionError  # noqa: PLC0415 - heavy
        from enginewright_cli.preflight.stopping import Stopped  # noqa: PLC0415 - heavy
        from enginewright_cli.preflight.targets import TargetError  # noqa: PLC0415 - heavy

        try:
            _serve(model, target, port, tuple(shapes or ()), console, verbose=verbose)
        except (TargetError, OptionError, ConfigError) as error:
            raise WrongUsage(str(error)) from None
        except Stopped:
            output.print_message(console, "enginewright serve: ended; temporary files are removed")


def _serve(
    model: str,
    target: str | None,
    port: int,
    shapes: tuple[str, ...],
    console: Console,
    *,
    verbose: bool,
) -> None:
    from enginewright_contract.images import COMPILED_BACKENDS  # noqa: PLC0415 - heavy
    from enginewright_contract.report import render  # noqa: PLC0415 - heavy
    from enginewright_contract.task import (  # noqa: PLC0415 - heavy
        PREPARE_STAGES,
        SOURCE_PATH,
        PrepareTask,
        ServeTask,
    )

    from enginewright_cli.preflight import request as requests  # noqa: PLC0415 - heavy
    from enginewright_cli.preflight import targets  # noqa: PLC0415 - heavy
    from enginewright_cli.preflight.cache import (  # noqa: PLC0415 - heavy
        ResultCache,
        default_folder,
        installation,
    )
    from enginewright_cli.preflight.config import ModelOptions  # noqa: PLC0415 - heavy
    from enginewright_cli.preflight.progress import show_progress  # noqa: PLC0415 - heavy
    from enginewright_cli.preflight.remedies import advise  # noqa: PLC0415 - heavy
    from enginewright_cli.preflight.stages import running_stages  # noqa: PLC0415 - heavy
    from enginewright_cli.preflight.stopping import stop_on_signals  # noqa: PLC0415 - heavy
    from enginewright_cli.preflight.tools import probe_installation  # noqa: PLC0415 - heavy
    from enginewright_cli.preflight.workspace import workspace  # noqa: PLC0415 - heavy
    from enginewright_cli.serve.local_server import LocalServer, Ports  # noqa: PLC0415 - heavy

    def tell(text: str) -> None:
        output.print_message(console, f"enginewright serve: {visible(text)}")

    if target and targets.parse(target).backend in COMPILED_BACKENDS:
        raise WrongUsage(
            f"--target {target}: its engine is built and served by a cluster, and checked by"
            " `enginewright preflight`; serve with cpu, openvino or cuda"
        )
    requests.check_source(model)
    Ports(port).check()
    with stop_on_signals() as stop, running_stages() as stages:
        cache = ResultCache(default_folder(), tell)
        probe = partial(probe_installation, cache, installation(), stages, stop)
        given = ModelOptions.model_construct(
            targets=(target,) if target else None, shapes=shapes or None
        )
        asked = requests.request(model, given, probe, None)
        chosen = asked.targets[0]
        with workspace(stages, stop) as place, _folder() as root:
            uri = model
            if "://" not in model:
                path = Path(model).resolve()
                place.mount(SOURCE_PATH, path.parent)
                uri = requests.local_uri(path)
            recipe = asked.recipe.model_copy(update={"backend": chosen.backend})
            task = PrepareTask(job="prepare", source_uri=uri, recipe=recipe)
            tell(f"preparing {asked.shown} for backend {chosen.backend}")
            with place.pod("prepare") as pod, show_progress(console, 1, "serve") as watcher:
                watcher.on_started(asked.shown)
                show = partial(watcher.stage, asked.shown, chosen.backend)
                last = pod.run(PREPARE_STAGES, task, show)[-1]
            if last.published is None:
                failure = last.failure
                cause = render(failure.cause, advise(failure)) if failure else last.message
                raise Refused(asked.name_local_files(f"stage {last.stage}: {cause}"))
            served = ServeTask(
                model=_name(model),
                revision="local",
                prepared_key=last.published.key,
                backend=chosen.backend,
                promise=asked.promise,
            )
            artifact = place.artifact("prepared", served.prepared_key)
            server = LocalServer(root, artifact, served, Ports(port), verbose=verbose)
            tell(f"loading and proving it, on port {port}")
            server.run(stages, stop, lambda: output.write(_text(served.model, Ports(port), server)))


@contextmanager
def _folder() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="enginewright-serve-"))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _name(model: str) -> str:
    """Return a name for a model's path or address, as an InferenceModel may have it."""
    name = re.sub(r"[^a-z0-9]+", "-", Path(model).stem.lower()).strip("-")
    return name[:63].strip("-") or "model"


def _text(model: str, ports: "Ports", server: "LocalServer") -> str:
    http, sidecar = f"http://localhost:{ports.http}", f"http://localhost:{ports.sidecar}"
    return "\n".join(
        (
            f"model {model} is ready, on all addresses of this machine; Ctrl-C ends it",
            f"  HTTP       {http}/v2/models/{model}/infer",
            f"  gRPC       localhost:{ports.grpc}",
            f"  execution  {http}/v2/models/{model}/execution",
            f"  verdict    {sidecar}/verdict",
            f"  metrics    {http}/metrics and {sidecar}/metrics",
            server.curl(),
        )
    )
