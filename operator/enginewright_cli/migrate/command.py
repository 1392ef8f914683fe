"""The command line of `migrate`. Exit code 0: all are migrated; 1: one is not; 2: the file cannot be read."""

from typing import Annotated

import typer
from rich.console import Console

from enginewright_cli import output
from enginewright_cli.formatting import visible
from enginewright_cli.reporting import REFUSED, Refused, report_errors


def migrate(
    manifest: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="YAML or JSON with InferenceServices of KServe; - for stdin."
        ),
    ],
) -> None:
    """Print the InferenceModels that take the place of KServe's InferenceServices, with what is left to decide."""
    with report_errors("migrate"):
        import yaml  # noqa: PLC0415 - takes a while

        from enginewright_cli.migrate import kserve  # noqa: PLC0415 - heavy
        from enginewright_cli.plan.manifest import read_objects  # noqa: PLC0415 - heavy
        from enginewright_cli.plan.validation import problems  # noqa: PLC0415 - heavy

        objects = read_objects(manifest)
        services = [item for item in objects if item["kind"] == kserve.KIND]
        if not services:
            kinds = ", ".join(dict.fromkeys(str(item["kind"]) for item in objects)) or "nothing"
            raise Refused(f"{manifest} contains no {kserve.KIND}, but {kinds}")
        console, refused, written = Console(stderr=True), 0, []
        for service in services:
            try:
                migrated = kserve.migrate(service)
            except kserve.NotMigratableError as error:
                refused += 1
                metadata = service.get("metadata")
                name = metadata.get("name") if isinstance(metadata, dict) else "without a name"
                output.print_message(console, visible(f"{name}: {error}"), failed=True)
                continue
            faults = [f"it is not valid yet: {fault}" for fault in problems(migrated.manifest)]
            comments = [f"# {visible(note)}\n" for note in (*faults, *migrated.notes)]
            document = yaml.safe_dump(migrated.manifest, sort_keys=False, allow_unicode=True)
            written.append("".join(comments) + document)
        if written:
            output.write("---\n".join(written).removesuffix("\n"))
    raise typer.Exit(REFUSED if refused else 0)
