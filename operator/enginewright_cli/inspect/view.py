"""An inspection as text for people: verdict, facts, partitions, layers and files."""

from collections.abc import Iterable, Iterator
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from enginewright_cli.inspect.result import (
    EngineFit,
    EngineInspection,
    InspectedFile,
    InspectedLayers,
)
from enginewright_cli.preflight.formatting import visible

_SHOWN: Final = 5  # nodes of a partition, types of layers
_SHORT: Final = 12  # characters of a digest
_UNITS: Final = ("B", "KiB", "MiB", "GiB")
_STATES: Final = {"whole": "green", "not compared": "dim"}


def show(found: EngineInspection, fit: EngineFit | None, console: Console) -> None:
    """Print the inspection; without colours where the console is not a terminal."""
    console.print(one_line(found.source, "bold"), soft_wrap=True)
    for line in _verdict(found, fit):
        console.print(line, soft_wrap=True)
    console.print(_facts(found))
    if found.partitions:
        console.print(_partitions(found))
    for each in found.layers:
        console.print(_layers(each), soft_wrap=True)
    if found.files:
        console.print(_files(found.files))


def _verdict(found: EngineInspection, fit: EngineFit | None) -> Iterator[Text]:
    if fit is not None:
        verdict = "loads" if fit.loads else "will not load"
        style = "green" if fit.loads else "bold red"
        yield one_line(f"{verdict} on {fit.target}", style)
        yield from _lines(fit.obstacles, "  because ", "red")
        yield from _lines(fit.not_compared, "  not compared: ", "dim")
    elif found.problems:
        yield Text("will not load", style="bold red")
        yield from _lines(found.problems, "  because ", "red")
    yield from _lines(found.notes, "note: ", "dim")


def _lines(texts: Iterable[str], before: str, style: str) -> Iterator[Text]:
    for text in texts:
        yield one_line(f"{before}{text}", style)


def _facts(found: EngineInspection) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(found):
        if value:
            table.add_row(name, one_line(value))
    return table


def _rows(found: EngineInspection) -> Iterator[tuple[str, str]]:
    yield "state", found.state
    yield "backend", " ".join(filter(None, (found.backend, found.backend_version)))
    yield "ONNX Runtime", found.ort_version or ""
    yield "CUDA", found.cuda_major or ""
    yield "class", found.accelerator_class or ""
    yield "compute capability", ", ".join(found.compute_capabilities)
    yield "opset", "" if found.opset is None else str(found.opset)
    yield "precision", found.precision or ""
    yield "compute nodes", _nodes(found)
    yield "outside the engine", _named(found.elsewhere)
    yield "engine", _size(found)
    yield "build", _build(found)
    yield "latency", _latency(found)
    if found.parity_max_abs_error is not None:
        yield "parity", f"largest absolute error {found.parity_max_abs_error:.3g}"
    yield "model digest", (found.model_digest or "")
    yield "prepared model", (found.prepared_key or "")
    yield "key", (found.key or "")


def _nodes(found: EngineInspection) -> str:
    if found.nodes_total is None:
        return ""
    text = f"{found.nodes_accelerated} of {found.nodes_total} in the engine"
    share = found.compute_share_elsewhere
    return text if not share else f"{text}, {share * 100:.3g}% of the time outside"


def _named(names: tuple[str, ...]) -> str:
    rest = len(names) - _SHOWN
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {rest} more" if rest > 0 else shown


def _size(found: EngineInspection) -> str:
    size = "" if found.size_bytes is None else binary_size(found.size_bytes)
    return f"{size}, sha256 {found.sha256[:_SHORT]}" if found.sha256 else size


def _build(found: EngineInspection) -> str:
    parts = []
    if found.build_seconds is not None:
        parts.append(f"{found.build_seconds:.1f} s")
    if found.workspace_bytes is not None:
        parts.append(f"workspace {binary_size(found.workspace_bytes)}")
    if found.optimization_level is not None:
        parts.append(f"optimization level {found.optimization_level}")
    if found.peak_memory_bytes:
        parts.append(f"peak memory {binary_size(found.peak_memory_bytes)}")
    return ", ".join(parts)


def _latency(found: EngineInspection) -> str:
    latency = found.latency
    if latency is None:
        return ""
    p99 = f"p99 {latency.p99 * 1000:.2f} ms"
    if not latency.samples:
        return p99
    return (
        f"p50 {latency.p50 * 1000:.2f} ms, p90 {latency.p90 * 1000:.2f} ms, {p99}"
        f" over {latency.samples} runs"
    )


def _partitions(found: EngineInspection) -> Table:
    table = _table("PARTITION", "NODES", "EXAMPLES")
    for partition in found.partitions:
        table.add_row(
            one_line(partition.context_node),
            str(len(partition.nodes)),
            one_line(_named(partition.nodes)),
        )
    return table


def _layers(each: InspectedLayers) -> Text:
    types = list(each.types.items())
    shown = ", ".join(f"{name} {count}" for name, count in types[:_SHOWN])
    rest = len(types) - _SHOWN
    more = f" and {rest} more types" if rest > 0 else ""
    kernels = f"; {len(each.kernels)} kernels" if each.kernels else ""
    return one_line(f"{each.engine}: {each.total} layers, {shown}{more}{kernels}")


def _files(files: tuple[InspectedFile, ...]) -> Table:
    table = _table("FILE", "SIZE", "SHA256", "STATE", "BUILT BY", "RUNS ON")
    for file in files:
        table.add_row(
            one_line(file.path),
            "" if file.size_bytes is None else binary_size(file.size_bytes),
            one_line((file.sha256 or "")[:_SHORT]),
            Text(file.state, style=_STATES.get(file.state, "bold red")),
            one_line(file.version or ""),
            one_line(", ".join(file.compute_capabilities)),
        )
    return table


def one_line(text: str, style: str = "") -> Text:
    """Return text on one line without control characters: names come from models and engines."""
    return Text(visible(text).replace("\n", "\\n"), style=style)


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def binary_size(size: float) -> str:
    """Return a number of bytes in binary units, such as "4.0 KiB"."""
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"
