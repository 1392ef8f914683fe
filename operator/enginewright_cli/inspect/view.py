"""An inspection as text for people: verdict, facts, partitions, layers and files."""

from collections.abc import Iterable, Iterator
from typing import Final

from enginewright_contract.report import name_nodes
from rich.console import Console
from rich.table import Table
from rich.text import Text

from enginewright_cli import output
from enginewright_cli.formatting import visible
from enginewright_cli.inspect.result import (
    EngineFit,
    EngineInspection,
    InspectedFile,
    InspectedLayers,
)

_SHOWN: Final = 5  # types of layers
_SHORT: Final = 12  # characters of a digest
_UNITS: Final = ("B", "KiB", "MiB", "GiB")
_STATES: Final = {"whole": "green", "not compared": "dim"}


def show(engine: EngineInspection, fit: EngineFit | None, console: Console) -> None:
    """Print the inspection; without colours where the console is not a terminal."""
    console.print(one_line(engine.source, "bold"), soft_wrap=True)
    for line in _verdict(engine, fit):
        console.print(line, soft_wrap=True)
    console.print(_facts(engine))
    if engine.partitions:
        console.print(_partitions(engine))
    for layer in engine.layers:
        console.print(_layers(layer), soft_wrap=True)
    if engine.files:
        console.print(_files(engine.files))


def _verdict(engine: EngineInspection, fit: EngineFit | None) -> Iterator[Text]:
    if fit is not None:
        verdict = "loads" if fit.loads else "will not load"
        style = "green" if fit.loads else "bold red"
        yield one_line(f"{verdict} on {fit.target}", style)
        yield from _lines(fit.obstacles, "  because ", "red")
        yield from _lines(fit.not_compared, "  not compared: ", "dim")
    elif engine.problems:
        yield Text("will not load", style="bold red")
        yield from _lines(engine.problems, "  because ", "red")
    yield from _lines(engine.notes, "note: ", "dim")


def _lines(texts: Iterable[str], before: str, style: str) -> Iterator[Text]:
    for text in texts:
        yield one_line(f"{before}{text}", style)


def _facts(engine: EngineInspection) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(engine):
        if value:
            table.add_row(name, one_line(value))
    return table


def _rows(engine: EngineInspection) -> Iterator[tuple[str, str]]:
    yield "state", engine.state
    yield "backend", " ".join(filter(None, (engine.backend, engine.backend_version)))
    yield "ONNX Runtime", engine.ort_version or ""
    yield "CUDA", engine.cuda_major or ""
    yield "class", engine.accelerator_class or ""
    yield "compute capability", ", ".join(engine.compute_capabilities)
    yield "opset", "" if engine.opset is None else str(engine.opset)
    yield "precision", engine.precision or ""
    yield "compute nodes", _nodes(engine)
    yield "outside the engine", name_nodes(engine.elsewhere)
    yield "engine", _size(engine)
    yield "build", _build(engine)
    yield "latency", _latency(engine)
    if engine.parity_max_abs_error is not None:
        yield "parity", f"largest absolute error {engine.parity_max_abs_error:.3g}"
    yield "not judged", engine.unjudged
    yield "model digest", (engine.model_digest or "")
    yield "prepared model", (engine.prepared_key or "")
    yield "key", (engine.key or "")


def _nodes(engine: EngineInspection) -> str:
    if engine.nodes_total is None:
        return ""
    text = f"{engine.nodes_accelerated} of {engine.nodes_total} in the engine"
    share = engine.compute_share_elsewhere
    return text if not share else f"{text}, {share * 100:.3g}% of the time outside"


def _size(engine: EngineInspection) -> str:
    size = "" if engine.size_bytes is None else binary_size(engine.size_bytes)
    return f"{size}, sha256 {engine.sha256[:_SHORT]}" if engine.sha256 else size


def _build(engine: EngineInspection) -> str:
    parts = []
    if engine.build_seconds is not None:
        parts.append(f"{engine.build_seconds:.1f} s")
    if engine.workspace_bytes is not None:
        parts.append(f"workspace {binary_size(engine.workspace_bytes)}")
    if engine.optimization_level is not None:
        parts.append(f"optimization level {engine.optimization_level}")
    if engine.peak_memory_bytes:
        parts.append(f"peak memory {binary_size(engine.peak_memory_bytes)}")
    return ", ".join(parts)


def _latency(engine: EngineInspection) -> str:
    latency = engine.latency
    if latency is None:
        return ""
    p99 = f"p99 {latency.p99 * 1000:.2f} ms"
    if not latency.samples:  # as the cluster has it, which records p99 alone
        return p99
    figures = [f"p50 {latency.p50 * 1000:.2f} ms", f"p90 {latency.p90 * 1000:.2f} ms"]
    figures += [p99] if latency.shows_p99 else []
    return f"{', '.join(figures)} over {latency.samples} runs"


def _partitions(engine: EngineInspection) -> Table:
    table = output.table("PARTITION", "NODES", "EXAMPLES")
    for partition in engine.partitions:
        table.add_row(
            one_line(partition.context_node),
            str(len(partition.nodes)),
            one_line(name_nodes(partition.nodes)),
        )
    return table


def _layers(layers: InspectedLayers) -> Text:
    types = list(layers.types.items())
    shown = ", ".join(f"{name} {count}" for name, count in types[:_SHOWN])
    rest = len(types) - _SHOWN
    more = f" and {rest} more types" if rest > 0 else ""
    kernels = f"; {len(layers.kernels)} kernels" if layers.kernels else ""
    return one_line(f"{layers.engine}: {layers.total} layers, {shown}{more}{kernels}")


def _files(files: tuple[InspectedFile, ...]) -> Table:
    table = output.table("FILE", "SIZE", "SHA256", "STATE", "BUILT BY", "RUNS ON")
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


def binary_size(size: float) -> str:
    """Return a number of bytes in binary units, such as "4.0 KiB"."""
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"
