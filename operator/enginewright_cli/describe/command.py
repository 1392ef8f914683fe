"""The command line of `describe`. Exit code 0: described; 1: not a model; 2: it cannot be read."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from enginewright_cli import output
from enginewright_cli.describe.result import Description
from enginewright_cli.formatting import count_noun, shape, size, visible
from enginewright_cli.options import Format
from enginewright_cli.reporting import report_errors

_OPERATORS: Final = 8  # named
_TENSORS: Final = 6


def describe(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An .onnx file.")],
    *,
    output_format: Format = None,
) -> None:
    """Describe a model in ten lines: inputs, outputs, opset, operators, weights. Nothing of it is run."""
    with report_errors("describe", "runtime"):
        from enginewright_cli.describe import reading  # noqa: PLC0415 - heavy

        description = reading.read(model)
    output.write_message(description, output_format, partial(_show, description))


def _show(description: Description, console: Console) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _lines(description):
        table.add_row(name, Text(visible(text)))
    console.print(table)


def _lines(description: Description) -> Iterator[tuple[str, str]]:
    yield (
        "file",
        f"{description.path}, {size(description.size_bytes)}, sha256 {description.sha256[:12]}",
    )
    opsets = ", ".join(
        f"{domain or 'opset'} {number}" for domain, number in description.opsets.items()
    )
    by = f", by {description.producer}" if description.producer else ""
    yield "format", f"{opsets}, IR {description.ir_version}{by}"
    for title, tensors in (("inputs", description.inputs), ("outputs", description.outputs)):
        shown = [f"{one.name}: {one.dtype} {shape(one.shape)}" for one in tensors[:_TENSORS]]
        more = len(tensors) - len(shown)
        yield title, "; ".join(shown) + (f"; and {more} more" if more else "") or "none"
    named = list(description.operators.items())[:_OPERATORS]
    operators = ", ".join(f"{name} {count}" for name, count in named)
    rest = ", …" if len(description.operators) > len(named) else ""
    yield "nodes", f"{count_noun(description.nodes, 'node')}: {operators}{rest}"
    weights = ", ".join(f"{kind} {size(count)}" for kind, count in description.weights.items())
    yield "parameters", f"{description.parameters:,}" + (f": {weights}" if weights else "")
    files = ", ".join(
        f"{file.path} {'missing' if file.size_bytes is None else size(file.size_bytes)}"
        for file in description.external
    )
    yield "external data", files or "none"
    yield "quantization", description.quantization
    yield "of note", "; ".join(description.notable) or "nothing"
