"""Reads an engine from files: an artefact, its manifest, an engine, or the ONNX model that wraps it."""

import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from enginewright_contract.base import first_problem
from enginewright_contract.images import COMPILED_BACKENDS, PROVIDERS
from enginewright_contract.layers import LARGEST_LAYERS, LAYERS_NAME, ArtifactLayers
from enginewright_contract.manifest import (
    LARGEST_MANIFEST,
    MANIFEST_NAME,
    MANIFEST_VERSION,
    ArtifactFile,
    Manifest,
)
from enginewright_contract.unjudged import Unjudged
from pydantic import ValidationError

from enginewright_cli import installing
from enginewright_cli.inspect.result import (
    EngineInspection,
    InspectedFile,
    InspectedLayers,
)
from enginewright_cli.reporting import CommandError, WrongUsage, unreadable

if TYPE_CHECKING:
    from onnx import NodeProto

_ENGINES: Final = frozenset({".engine", ".plan"})
_BACKENDS: Final = {PROVIDERS[backend]: backend for backend in COMPILED_BACKENDS}
SUFFIXES: Final = _ENGINES | {".json", ".onnx"}

Progress = Callable[[str], None]


def inspect(path: Path, progress: Progress) -> EngineInspection:
    """Inspect the file or folder at `path`; `progress` is called with what is being read. Raises CommandError."""
    try:
        if path.is_dir():
            return _artifact(path, path / MANIFEST_NAME, progress)
        path.stat()
        if not path.is_file():
            raise WrongUsage(f"{path} is neither a file nor a folder")
        if path.suffix == ".json":
            return _artifact(path.parent, path, progress)
        if path.suffix == ".onnx":
            return _context_model(path)
        return _engine(path)
    except OSError as error:
        raise unreadable(path, error) from error


def _artifact(folder: Path, path: Path, progress: Progress) -> EngineInspection:
    manifest = _manifest(path)
    engine = manifest.engine
    if engine is None:
        raise CommandError(
            f"{path} describes a prepared model for backend {manifest.recipe.backend}, not an engine;"
            " engines are in engines/KEY/ of the store"
        )
    # a manifest may have been copied without its files
    alone = not any((folder / file.path).exists() for file in manifest.files)
    files = (
        []
        if alone
        else [_file(folder, artifact_file, progress) for artifact_file in manifest.files]
    )
    problems = [_problem(file) for file in files if file.state not in {"whole", "not compared"}]
    header = next(
        (inspected_file for inspected_file in files if inspected_file.path == engine.file), None
    )
    if header and header.version and not _is_version(header.version, engine.recipe.backend_version):
        problems.append(
            f"{engine.file} was built by version {header.version}, but the manifest says"
            f" {engine.recipe.backend_version}"
        )
    inside = {name for part in engine.partitions for name in part.nodes}
    elsewhere = [cost.label for cost in manifest.node_costs if cost.count]
    return EngineInspection(
        source=str(path if alone else folder),
        kind="manifest" if alone else "artifact",
        key=manifest.key,
        prepared_key=engine.prepared_key,
        model_digest=manifest.model_digest,
        backend=engine.recipe.backend,
        backend_version=(header.version if header else None) or engine.recipe.backend_version,
        ort_version=engine.recipe.ort_version,
        cuda_major=engine.recipe.cuda_major,
        accelerator_class=engine.recipe.accelerator_class,
        compute_capabilities=(header.compute_capabilities if header else ())
        or engine.compute_capabilities,
        opset=manifest.opset,
        precision=manifest.precision,
        nodes_total=engine.nodes_total,
        nodes_accelerated=engine.nodes_accelerated,
        compute_share_elsewhere=engine.compute_share_elsewhere,
        elsewhere=tuple(
            name
            for name in elsewhere
            if name not in inside
            and name not in manifest.shape_nodes
            and engine.nodes_accelerated < engine.nodes_total
        ),
        size_bytes=engine.size_bytes,
        sha256=engine.sha256,
        workspace_bytes=engine.workspace_bytes,
        optimization_level=engine.recipe.optimization_level,
        build_seconds=engine.build_seconds,
        peak_memory_bytes=engine.peak_memory_bytes,
        latency=engine.latency,
        parity_max_abs_error=engine.parity_max_abs_error,
        unjudged=Unjudged.of_artefact(manifest).cause,
        partitions=engine.partitions,
        files=tuple(files),
        layers=() if alone else _layers(folder / LAYERS_NAME),
        problems=tuple(problems),
        notes=("manifest only: its files are not in the same folder",) if alone else (),
    )


def _manifest(path: Path) -> Manifest:
    if not path.is_file():
        raise CommandError(
            f"{path.parent} has no {MANIFEST_NAME}, so it is not an artefact;"
            " give the folder engines/KEY of a store, or an engine file"
        )
    with path.open("rb") as reader:
        text = reader.read(LARGEST_MANIFEST)
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        raise CommandError(f"{path} is not a valid manifest: {first_problem(error)}") from error
    if manifest.version > MANIFEST_VERSION:
        raise CommandError(
            f"{path} was written by a newer version of Enginewright: update this installation"
        )
    return manifest


def _file(folder: Path, listed: ArtifactFile, progress: Progress) -> InspectedFile:
    expected = {"path": listed.path, "sha256": listed.sha256}
    path = folder / listed.path
    if Path(listed.path).is_absolute() or ".." in Path(listed.path).parts or path.is_symlink():
        return InspectedFile(**expected, state="changed")
    if not path.is_file():
        return InspectedFile(**expected, state="missing")
    progress(f"reading {listed.path}")
    size = path.stat().st_size
    state: Literal["whole", "changed", "cut off"] = "whole"
    if size < listed.size_bytes:
        state = "cut off"
    elif size > listed.size_bytes or _digest(path) != listed.sha256:
        state = "changed"
    read = _header(path) if path.suffix in _ENGINES else None
    return InspectedFile(
        **expected,
        size_bytes=size,
        state=state,
        version=read.version if read else None,
        compute_capabilities=read.compute_capabilities if read else (),
    )


def _digest(path: Path) -> str:
    with path.open("rb") as reader:
        return hashlib.file_digest(reader, "sha256").hexdigest()


def _problem(file: InspectedFile) -> str:
    match file.state:
        case "missing":
            return f"{file.path} is missing"
        case "cut off":
            return f"{file.path} is cut off: it has {file.size_bytes} bytes"
        case _:
            return f"{file.path} is not the file that the manifest lists"


def _engine(path: Path) -> EngineInspection:
    header = _header(path)
    if header is None:
        raise CommandError(
            f"{path} does not have the header of an engine of TensorRT or TensorRT-RTX: give the"
            " artefact's folder, whose manifest describes the engine"
        )
    file = _engine_file(path.name, path.stat().st_size, header)
    return EngineInspection(
        source=str(path),
        kind="engine",
        backend=header.backend,
        backend_version=header.version,
        compute_capabilities=header.compute_capabilities,
        size_bytes=file.size_bytes,
        files=(file,),
        problems=_cut_off(file, header),
        notes=("no manifest: digest and ONNX Runtime's version are not known",),
    )


def _engine_file(name: str, size: int, header: Any) -> InspectedFile:  # noqa: ANN401 - a type of the runtime package, imported lazily
    return InspectedFile(
        path=name,
        size_bytes=size,
        state="not compared" if size == header.size_bytes else "cut off",
        version=header.version,
        compute_capabilities=header.compute_capabilities,
    )


def _cut_off(file: InspectedFile, header: Any) -> tuple[str, ...]:  # noqa: ANN401 - as above
    if file.state != "cut off":
        return ()
    return (f"{file.path} has {file.size_bytes} bytes, but its header says {header.size_bytes}",)


def _is_version(one: str, other: str) -> bool:
    from enginewright_runtime.tensorrt.header import is_version  # noqa: PLC0415 - lazily

    return is_version(one, other)


def _header(path: Path) -> Any:  # noqa: ANN401 - as above
    from enginewright_runtime.tensorrt.header import read_header  # noqa: PLC0415 - lazily

    return read_header(path)


def _context_model(path: Path) -> EngineInspection:
    nodes = _context_nodes(path)
    first = _attributes(nodes[0])
    provider = str(first.get("source", ""))
    files: list[InspectedFile] = []
    problems: list[str] = []
    for node in nodes:
        file, wrong = _engine_of(path, _attributes(node))
        files.append(file)
        problems += wrong
    headers = [inspected_file for inspected_file in files if inspected_file.version]
    capability = str(first.get("hardware_architecture", ""))
    declared = (f"{capability[:-1]}.{capability[-1]}",) if capability.isdecimal() else ()
    capabilities = headers[0].compute_capabilities if headers else ()
    return EngineInspection(
        source=str(path),
        kind="context-model",
        backend=_BACKENDS.get(provider),
        backend_version=(headers[0].version if headers else None)
        or str(first.get("ep_sdk_version", ""))
        or None,
        compute_capabilities=capabilities or declared,
        files=tuple(files),
        problems=tuple(problems),
        notes=("no manifest: digests, partitions and ONNX Runtime's version are not known",),
    )


def _context_nodes(path: Path) -> list["NodeProto"]:
    try:
        from enginewright_runtime.graph.raw import graphs  # noqa: PLC0415 - lazily
    except ImportError as error:
        raise CommandError(
            f"reading {path} needs {error.name}, which is not installed; {installing.remedy('runtime')}"
        ) from error
    try:
        model = graphs.parse(path)
    except graphs.UnparsableError as error:
        raise CommandError(f"{path} is not an ONNX model, or is truncated") from error
    nodes = [node for node in model.graph.node if node.op_type == "EPContext"]
    if not nodes:
        raise CommandError(
            f"{path} contains no engine: it has no EPContext node; run enginewright preflight {path}"
            if model.graph.node
            else f"{path} is not an ONNX model, or is truncated"
        )
    return nodes


def _attributes(node: "NodeProto") -> dict[str, bytes | str | int]:
    values: dict[str, bytes | str | int] = {}
    for item in node.attribute:
        if item.name == "ep_cache_context":
            values[item.name] = item.s
        else:
            values[item.name] = item.s.decode(errors="replace") if item.s else item.i
    return values


def _engine_of(
    model: Path, attributes: dict[str, bytes | str | int]
) -> tuple[InspectedFile, tuple[str, ...]]:
    from enginewright_runtime.tensorrt.header import parse_header  # noqa: PLC0415 - lazily

    content = attributes.get("ep_cache_context", b"")
    content = content if isinstance(content, bytes) else b""
    if attributes.get("embed_mode", 1):
        name, size, header = "inside the model", len(content), parse_header(content)
    else:
        name = content.decode(errors="replace")
        path = model.parent / name
        if not name or not path.is_file():
            file = InspectedFile(path=name or "unnamed", state="missing")
            return file, (f"engine file {file.path} is not beside the model",)
        size, header = path.stat().st_size, _header(path)
    if header is None:
        return InspectedFile(path=name, size_bytes=size, state="not compared"), ()
    file = _engine_file(name, size, header)
    return file, _cut_off(file, header)


def _layers(path: Path) -> tuple[InspectedLayers, ...]:
    """Return the layers that the artefact lists; () if it was written without."""
    try:
        with path.open("rb") as reader:
            listed = ArtifactLayers.model_validate_json(reader.read(LARGEST_LAYERS))
    except (OSError, ValidationError):
        return ()
    return tuple(
        InspectedLayers(
            **dict(engine), types=dict(Counter(layer.type for layer in engine.layers).most_common())
        )
        for engine in listed.engines
    )


def is_path(text: str) -> bool:
    """Return whether the argument is a path rather than the name of an InferenceEngine."""
    return (
        "/" in text or text in {".", ".."} or Path(text).suffix in SUFFIXES or Path(text).exists()
    )
