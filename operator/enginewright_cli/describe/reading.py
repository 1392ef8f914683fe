"""Reads a model's file for `describe`; nothing of it is run, and its external data is not opened."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from enginewright_cli.describe.result import Description, ExternalFile
from enginewright_cli.preflight.graph import describe as describe_graph
from enginewright_cli.preflight.graph import operator
from enginewright_cli.preflight.result import Graph
from enginewright_cli.reporting import Refused, WrongUsage, unreadable

if TYPE_CHECKING:
    from onnx import ModelProto

_CONTROL: Final = ("If", "Loop", "Scan", "SequenceMap")
_RANDOM: Final = (
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Multinomial",
    "Bernoulli",
)
_BY_VALUES: Final = ("NonMaxSuppression", "NonZero", "Unique", "Compress", "TopK")
_MARKS: Final = ("uantize", "QLinear", "Integer", "NBits")  # in names of operators
_PACKED: Final = ("int8", "uint8", "int4", "uint4", "float8", "float4")  # beginnings of types


def read(path: Path) -> Description:
    """Return what is in a model. Raises CommandError."""
    from enginewright_runtime.graph.raw import graphs  # noqa: PLC0415 - loaded lazily

    try:
        content = path.read_bytes() if path.is_file() else b""
        graph = describe_graph(path) if path.is_file() else None
        path.stat()
        if not path.is_file():
            raise WrongUsage(f"{path} is not a file: name the .onnx file in it")
        if graph is None:
            raise Refused(f"{path}: {_why_no_model(path)}")
        model = graphs.parse(path)
    except OSError as error:
        raise unreadable(path, error) from None
    if not model.ir_version or not model.HasField("graph"):
        raise Refused(f"{path}: {_why_no_model(path)}")
    counts = Counter(map(operator, graphs.walk_nodes(model)))
    weights = {kind.dtype: kind.size_bytes for kind in graph.weight_types}
    return Description(
        path=str(path),
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        producer=graph.producer,
        ir_version=model.ir_version,
        opsets=graph.opsets,
        inputs=graphs.inputs_of(model),
        outputs=graphs.outputs_of(model),
        nodes=counts.total(),
        operators={item.operator: item.count for item in graph.operators},
        parameters=sum(kind.elements for kind in graph.weight_types),
        weights=weights,
        external=tuple(_external(model, path.parent)),
        quantization=_quantization(counts, weights),
        notable=tuple(_notable(counts, graph)),
    )


def _why_no_model(path: Path) -> str:
    from enginewright_runtime.prepare.fetch.sniff import sniff  # noqa: PLC0415 - loaded lazily

    unfit = sniff(path)
    if unfit is None:
        return "not an ONNX model, truncated, or larger than protobuf's 2 GiB: export it again"
    return f"not an ONNX model but {unfit.kind}: {unfit.remedy or 'export the model to ONNX'}"


def _external(model: "ModelProto", folder: Path) -> Iterator[ExternalFile]:
    from enginewright_runtime.graph.raw import graphs  # noqa: PLC0415 - loaded lazily

    entries = map(graphs.external_entries, graphs.walk_tensors(model))
    locations = dict.fromkeys(entry.get("location", "") for entry in entries if entry)
    for location in locations:
        file = folder / location
        is_there = graphs.is_inside(location) and file.is_file()
        yield ExternalFile(path=location, size_bytes=file.stat().st_size if is_there else None)


def _quantization(counts: Mapping[str, int], weights: Mapping[str, int]) -> str:
    quantized = {name: count for name, count in counts.items() if any(map(name.count, _MARKS))}
    if not quantized:
        return "none"
    kinds = [kind for kind in weights if kind.startswith(_PACKED)]
    return _list(quantized) + (f"; weights in {', '.join(kinds)}" if kinds else "")


def _notable(counts: Mapping[str, int], graph: Graph) -> Iterator[str]:
    groups = {
        "control flow": _CONTROL,
        "random numbers": _RANDOM,
        "sizes that depend on values": _BY_VALUES,
    }
    for what, names in groups.items():
        if listed := {name: counts[name] for name in names if counts.get(name)}:
            yield f"{what}: {_list(listed)}"
    if foreign := {name: count for name, count in counts.items() if ":" in name}:
        yield f"other domains: {_list(foreign)}"
    if graph.functions:
        yield f"functions of the model: {graph.functions}"


def _list(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
