"""The command lines of `explain`, `placement`, `diff`, `logs`, `bundle` and `watch`.

Exit code 0: done, and for `explain` that the model is ready or goes on by itself; 1: for `explain` that it
is stalled or impaired; 2: not known.
"""

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.live import Live

from enginewright_cli import output
from enginewright_cli.diagnose import view
from enginewright_cli.diagnose.result import ModelRow
from enginewright_cli.formatting import count_noun, size, visible
from enginewright_cli.options import Context, Format, Name, Namespace
from enginewright_cli.reporting import INTERRUPTED, REFUSED, CommandError, report_errors

if TYPE_CHECKING:
    from enginewright.kube.client import KubeClient

    from enginewright_cli.diagnose.reading import ModelObjects

_BUNDLED_LINES: Final = 2000


def explain(
    name: Name,
    *,
    output_format: Format = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Say why a model is not Ready, from its condition to the cause, and what to do about it."""
    with report_errors("explain"):
        from enginewright_cli.diagnose import explain as walk  # noqa: PLC0415 - heavy
        from enginewright_cli.diagnose import reading  # noqa: PLC0415 - heavy

        explanation = walk.explain(reading.read(name, namespace, context))
    output.write_message(explanation, output_format, partial(view.show_explanation, explanation))
    raise typer.Exit(REFUSED if explanation.state in ("stalled", "impaired") else 0)


def placement(
    name: Name,
    *,
    output_format: Format = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Show where a model's nodes run: in each pod, and inside and outside its engines."""
    with report_errors("placement"):
        from enginewright_cli.diagnose import compare, reading  # noqa: PLC0415 - heavy

        placed = compare.place(reading.read(name, namespace, context))
    output.write_message(placed, output_format, partial(view.show_placement, placed))


def diff(
    name: Name,
    *,
    revision: Annotated[
        str | None,
        typer.Option(metavar="REVISION", help="Compare the active one with this stored revision."),
    ] = None,
    output_format: Format = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Compare the active revision with the one that is brought up, or that was rejected last."""
    with report_errors("diff"):
        from enginewright_cli.diagnose import compare, reading  # noqa: PLC0415 - heavy

        seen, analysis = reading.read_compared(name, namespace, context)
        if revision and revision not in (view.revision for view in seen.revisions):
            revisions = ", ".join(view.revision for view in seen.revisions) or "none"
            raise CommandError(f"revision {revision} is unknown; known revisions: {revisions}")
        difference = compare.diff(seen, analysis, revision)
    output.write_message(difference, output_format, partial(view.show_diff, difference))


def logs(
    name: Name,
    *,
    stage: Annotated[
        str | None,
        typer.Option(
            metavar="STAGE",
            help="A stage of a Job, such as convert or build, or fetch-artifact, server or sidecar."
            " Default: what failed, else what runs.",
        ),
    ] = None,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="The log of the container's previous run.")
    ] = False,
    tail: Annotated[int, typer.Option(min=1, help="Print at most so many lines.")] = 1000,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Print the log of a stage, wherever its pod is."""
    with report_errors("logs"):
        from enginewright_cli.diagnose import logs as sources  # noqa: PLC0415 - heavy
        from enginewright_cli.diagnose import reading  # noqa: PLC0415 - heavy

        async def look(client: "KubeClient", seen: "ModelObjects") -> tuple[str, str]:
            source = sources.choose(seen, stage)
            text = await sources.read(client, source, tail=tail, previous=previous)
            return source.title, text

        title, text = reading.query(name, namespace, context, look)
    output.print_message(Console(stderr=True), visible(title))
    output.write(text.removesuffix("\n"))


def bundle(
    name: Name,
    *,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", metavar="FILE", help="Archive to write. Default: by the name."
        ),
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Write an archive for support: objects, verdicts, logs and versions, without secrets."""
    with report_errors("bundle"):
        from enginewright_cli.diagnose import bundle as archive  # noqa: PLC0415 - heavy
        from enginewright_cli.diagnose import reading  # noqa: PLC0415 - heavy

        seen, texts = reading.query(
            name, namespace, context, partial(archive.read_logs, tail=_BUNDLED_LINES)
        )
        now = datetime.now(UTC)
        packed = archive.pack(seen, texts, _versions(), now)
        path = file or Path(f"enginewright-{name}-{now:%Y%m%d-%H%M%S}.tar.gz")
        try:
            path.write_bytes(packed)
        except OSError as error:
            cause = f"cannot write {path}: {error.strerror}"
            raise CommandError(f"{cause}; name another file with --file") from None
    objects = sum(map(len, seen.objects.values()))
    held = f"{count_noun(objects, 'object')}, {count_noun(len(texts), 'log')}"
    output.write(visible(f"{path}: {size(len(packed))}, {held}; look at it before you send it"))
    for note in seen.unread:
        output.write(visible(f"note: {note}"))


def _versions() -> dict[str, str]:
    names = ("enginewright", "kubernetes", "onnx", "onnxruntime")
    held = {}
    for name in names:
        try:
            held[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {"python": platform.python_version(), "system": platform.platform(), **held}


def watch(
    *,
    everywhere: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="The models of all namespaces.")
    ] = False,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Watch all models: what each does, and why it is not Ready. In a pipe, print them once."""
    with report_errors("watch"):
        from enginewright_cli.diagnose import watching  # noqa: PLC0415 - heavy

        console = Console()
        look = partial(watching.watch, namespace, context, is_everywhere=everywhere)
        if not console.is_terminal:
            look(_print_models, once=True)
            return
        try:
            with Live(console=console, auto_refresh=False, screen=False) as live:
                look(lambda rows: live.update(view.models(rows), refresh=True), once=False)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def _print_models(rows: Sequence[ModelRow]) -> None:
    if not rows:
        output.write(count_noun(0, "model"))
        return
    output.write(output.render(lambda console: console.print(view.models(rows))))
