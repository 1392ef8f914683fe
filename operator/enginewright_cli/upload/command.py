"""The command line of `upload`. Exit code 0: all digests match; 1: not a whole model; 2: not uploaded; 64: wrong usage."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from enginewright_cli import output
from enginewright_cli.formatting import visible
from enginewright_cli.options import Context, Image, Namespace
from enginewright_cli.reporting import report_errors


def upload(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE", help="An .onnx file, with its external data beside it, or a folder."
        ),
    ],
    address: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS",
            help="pvc://CLAIM/PATH, a bucket such as s3://BUCKET/PATH, or oci://REGISTRY/REPOSITORY:TAG."
            " A path that ends with / is a folder. For buckets, credentials are taken from the"
            " environment; for registries, from ~/.docker/config.json.",
        ),
    ],
    *,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that have other content.")
    ] = False,
    image: Image = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long that pod may take to start.")
    ] = 300.0,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Upload a model to a claim, a bucket or a registry, and compare digests there."""
    console = Console(stderr=True)

    def tell(text: str) -> None:
        output.print_message(console, visible(text))

    with report_errors("upload", "preflight"):
        from enginewright_contract.schemes import OCI, PVC, scheme_of  # noqa: PLC0415 - heavy

        from enginewright_cli.upload import files as local  # noqa: PLC0415 - heavy

        destination = local.parse(address)
        files = local.list_files(source, destination)
        name = destination.name if source.is_dir() else files[0].name
        uri = "/".join(filter(None, (destination.folder, name)))
        scheme = scheme_of(address)
        if scheme is PVC:
            from enginewright_cli.upload import claim  # noqa: PLC0415 - heavy

            place = destination.folder.removeprefix(PVC.prefix)
            claim_name, _, folder = place.partition("/")
            claim.upload(
                claim_name,
                folder,
                files,
                image=image,
                overwrite=overwrite,
                seconds=timeout,
                namespace=namespace,
                context=context,
                progress=tell,
            )
        else:
            from enginewright_cli.upload import remote  # noqa: PLC0415 - heavy

            with local.failures():
                if scheme is OCI:
                    pushed = remote.to_registry(address, files, tell)
                    uri = f"{address.rpartition(':')[0]}@{pushed}"
                else:
                    remote.to_bucket(destination.folder, files, overwrite=overwrite, progress=tell)
    models = [file.sha256 for file in files if file.name.endswith(".onnx")]
    digest = f"\n    sha256: {models[0]}" if len(models) == 1 else ""
    output.write(f"spec:\n  source:\n    uri: {visible(uri)}{digest}")
