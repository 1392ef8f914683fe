"""The command lines of `store ls`, `report`, `verify`, `gc`, `release`, `export` and `import`.

Exit code 0: done, and all that was verified is intact. 1: something is damaged. 2: the store cannot be
read or written.
"""

import json as jsons
import webbrowser
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from enginewright_cli import output
from enginewright_cli.formatting import count_noun, size, visible
from enginewright_cli.options import Context, Image, Namespace
from enginewright_cli.reporting import CommandError, report_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from enginewright_cli.store.claim import ClaimedStore
    from enginewright_cli.store.contents import Contents, Verified

_DAMAGED: Final = 1
_PVC: Final = "pvc://"
_READABLE: Final = "A folder or an address as of `verify`, or pvc://CLAIM, which a pod reads that is removed again."

_Address = Annotated[
    str,
    typer.Argument(
        metavar="PATH|URI",
        help="The folder where a store's volume is mounted, or the address of one namespace's part of"
        " a bucket, such as s3://BUCKET/PATH/NAMESPACE; credentials are taken from the environment.",
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per artefact.")]


def ls(
    address: Annotated[
        str | None,
        typer.Argument(
            metavar="PATH|URI",
            help=f"{_READABLE} Default: the claim enginewright-store of the context's namespace.",
        ),
    ] = None,
    *,
    json: _Json = False,
    image: Image = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """List the artefacts of a store."""
    if address is None or address.startswith(_PVC):
        with report_errors("store ls"):
            entries = _open_claim(address, namespace, context, image).list_artifacts()
            artifacts = [(entry.kind, entry.key, entry.used) for entry in entries]
    else:
        with _open("ls", address) as contents:
            listed = contents.list_artifacts()
            artifacts = [(kind.folder, artifact.key, artifact.used) for kind, artifact in listed]
    if json:
        for kind, key, used in artifacts:
            output.write(jsons.dumps({"kind": kind, "key": key, "used": used.isoformat()}))
        return
    if not artifacts:
        output.write(count_noun(0, "artefact"))
        return
    table = Table("kind", "key", "last used", box=None, pad_edge=False)
    for kind, key, used in artifacts:
        table.add_row(kind, visible(key), f"{used:%Y-%m-%d %H:%M}Z")
    output.write(output.render(lambda console: console.print(table)))


def report(
    address: Annotated[str, typer.Argument(metavar="PATH|URI", help=_READABLE)],
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="Key of the artefact, or its beginning.")
    ],
    *,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Page to write. Default: by the key, in this folder."),
    ] = None,
    show: Annotated[
        bool, typer.Option("--open", help="Show the page in this machine's browser.")
    ] = False,
    image: Image = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Write a page about an engine or a prepared model: placement map, parity, latency and memory."""
    with report_errors("store report", "runtime"):
        from enginewright_cli.preflight import outfile  # noqa: PLC0415 - heavy
        from enginewright_cli.preflight.html.page import artifact_page  # noqa: PLC0415 - heavy

        if address.startswith(_PVC):
            manifest = _open_claim(address, namespace, context, image).describe(key)
        else:
            from enginewright_cli.store.contents import Contents  # noqa: PLC0415 - heavy

            manifest = Contents(address).describe(key)
        path = html or Path(f"enginewright-{manifest.key[:12]}.html")
        try:
            outfile.write(path, artifact_page(manifest))
        except OSError as error:
            cause = f"cannot write {path}: {error.strerror}"
            raise CommandError(f"{cause}; name another file with --html") from None
        output.write(visible(str(path)))
        if show and not webbrowser.open(path.resolve().as_uri()):
            raise CommandError(f"no browser was found; open {path} in one")


def verify(
    address: _Address,
    keys: Annotated[
        list[str] | None, typer.Argument(help="Keys, or their beginnings. Default: all artefacts.")
    ] = None,
    *,
    json: _Json = False,
) -> None:
    """Read artefacts completely, and compare every file with its digest."""
    results = []
    with _open("verify", address) as contents:
        from enginewright_cli.store.contents import find_unmatched  # noqa: PLC0415 - heavy

        for verified in contents.verify(keys or []):
            results.append(verified)
            _show(verified, json=json)
        if unknown := find_unmatched(keys or [], results):
            raise CommandError(f"the store has no artefact whose key begins with {unknown[0]}")
    damaged = sum(result.problem is not None for result in results)
    if not json:
        output.write(f"{count_noun(len(results), 'artefact')}, {damaged} damaged")
    raise typer.Exit(_DAMAGED if damaged else 0)


def gc(
    address: _Address,
    *,
    keep_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The keys of artefacts that are needed, one a line; they are never removed, nor what was used"
            " after the file was written.",
        ),
    ] = None,
    keep_none: Annotated[
        bool, typer.Option("--keep-none", help="Instead: no artefact is needed.")
    ] = False,
    unused_for: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Remove what is not needed and unused for so long: 30d."),
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Remove what is not needed, the longest unused first, until the artefacts are no larger:"
            " 50Gi.",
        ),
    ] = None,
    delete: Annotated[
        bool,
        typer.Option(
            "--delete",
            help="Remove what is listed. Artefacts on a volume are watched for a minute before they go.",
        ),
    ] = False,
) -> None:
    """List, or remove, what interrupted publications have left, old reports, and unneeded artefacts."""
    with _open("gc", address) as contents:
        from enginewright_cli.store.garbage import GarbageOptions  # noqa: PLC0415 - heavy

        task = GarbageOptions(keep_file, keep_none, unused_for, max_size).task(delete=delete)
        collection = contents.collect(task)
    artifacts = count_noun(len(collection.removed), "artefact")
    for one in collection.removed:
        last = f"last used {one.used:%Y-%m-%d %H:%M}Z"
        output.write(f"{one.artifact.folder}: {size(sum(one.files.values()))}, {last}")
    files = (*collection.leftovers, *collection.reports, *collection.caches)
    for file in files:
        output.write(f"{visible(file.name)}: {size(file.size)}")
    did = "removed" if delete else "left over; remove with --delete"
    chosen = ""
    if task.max_age_seconds is not None or task.max_bytes is not None:
        chosen = f"{artifacts}, {size(collection.result(dry_run=not delete).removed_bytes)}; "
    total = size(sum(file.size for file in files))
    stays = (
        f"; {count_noun(collection.stays, 'file')} {'stays' if collection.stays == 1 else 'stay'}: in use, or"
        " write-protected"
    )
    output.write(
        f"{chosen}{count_noun(len(files), 'file')}, {total} {did}{stays if collection.stays else ''}"
    )
    if collection.problem is not None:
        message = f"other leftovers are not known: {collection.problem.message}"
        output.print_error("store gc", visible(message))
        raise typer.Exit(_DAMAGED)


def release(
    address: _Address,
    cluster: Annotated[
        str,
        typer.Argument(
            metavar="UID",
            help="UID that StoreShared names: of the cluster's namespace kube-system.",
        ),
    ],
) -> None:
    """Forget a cluster that is gone, so that the others may remove from a bucket what they do not need."""
    with _open("release", address) as contents:
        contents.release(cluster)
        output.write(f"{visible(cluster)}: released")


def export(
    address: _Address,
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="Key of the artefact, or its beginning.")
    ],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to create.")],
) -> None:
    """Copy an artefact out of a store, verified, to take it to another one."""
    with _open("export", address) as contents:
        output.write(f"{visible(contents.export(key, folder))}: exported, all digests match")


def import_(
    address: _Address,
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder that `store export` made.")
    ],
) -> None:
    """Store an exported artefact, verified; import engines only from a source that you trust: they are code."""
    with _open("import", address) as contents:
        name, had_it = contents.publish(folder)
        did = "the store has it already" if had_it else "imported, all digests match"
        output.write(f"{visible(name)}: {did}")


def _show(item: "Verified", *, json: bool) -> None:
    if json:
        line = {"kind": item.kind, "key": item.key, "problem": item.problem}
        output.write(jsons.dumps(line))
    else:
        state = "intact" if item.problem is None else visible(item.problem)
        output.write(f"{item.kind} {visible(item.key)}: {state}")


def _open_claim(
    address: str | None, namespace: str | None, context: str | None, image: str | None
) -> "ClaimedStore":
    from enginewright_cli.plan.cluster_state import CHART_STORE  # noqa: PLC0415 - heavy
    from enginewright_cli.store.claim import ClaimedStore  # noqa: PLC0415 - heavy

    console = Console(stderr=True)
    claim = address.removeprefix(_PVC).rstrip("/") if address else CHART_STORE["claim"]
    return ClaimedStore(
        claim,
        namespace,
        context,
        image,
        lambda text: output.print_message(console, visible(text)),
    )


@contextmanager
def _open(command: str, address: str) -> "Iterator[Contents]":
    with report_errors(f"store {command}", "runtime"):
        from enginewright_cli.store.contents import Contents  # noqa: PLC0415 - heavy

        yield Contents(address)
