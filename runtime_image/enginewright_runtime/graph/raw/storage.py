"""Stores changed models beside their external data, so that it is not loaded or copied in between.

Links would avoid the one copy at the end, but onnx (1.23) refuses external data that is a symbolic
link or has several hard links, as a possible attack, and ONNX Runtime refuses symbolic links.
"""

import shutil
from pathlib import Path
from typing import Final

from enginewright_contract.manifest import MODEL_NAME
from enginewright_contract.reasons import Reason
from google.protobuf.message import EncodeError
from onnx import ModelProto

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.graph.raw import graphs, small_tensors

# A protobuf is limited to 2 GiB, and is in memory several times while it is written and loaded.
LARGEST_INSIDE: Final = 1 << 30  # bytes of weights in the .onnx file


def save(model: ModelProto, path: Path) -> None:
    """Write a model parsed without external data beside that data; raises StageFailure: ModelTooLarge."""
    try:
        content = model.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise StageFailure(
            Reason.MODEL_TOO_LARGE, "the converted model is larger than one protobuf file can be"
        ) from error
    path.write_bytes(content)


def loadable(source: Path, out: Path, max_ir_version: int) -> Path:
    """Return the source, or a copy `out` beside it that ONNX Runtime loads: of IR version and small tensors."""
    model = graphs.parse(source)
    inlined = small_tensors.needs_inlining(model)
    if model.ir_version <= max_ir_version and not inlined:
        return source
    model.ir_version = min(model.ir_version, max_ir_version)
    if inlined:
        small_tensors.inline(model, source.parent)
    save(model, out)
    return out


def move_to_folder(path: Path, source: Path, folder: Path) -> None:
    """Move a changed model to `folder`, which is replaced, with its external data, which stays in `source` too."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for location in locations(graphs.parse(path)):
        target = folder / location
        target.parent.mkdir(parents=True, exist_ok=True)
        transfer = shutil.copyfile if path.parent == source else shutil.move
        transfer(path.parent / location, target)
    path.rename(folder / MODEL_NAME)


def locations(model: ModelProto) -> list[str]:
    """Return the external files that a model refers to, each once."""
    entries = [graphs.external_entries(tensor) for tensor in graphs.walk_tensors(model)]
    return sorted({entry.get("location", "") for entry in entries if entry})


def size_bytes(model: ModelProto) -> int:
    """Return the bytes of a model's protobuf and of its external data with a declared length."""
    entries = [graphs.external_entries(tensor) for tensor in graphs.walk_tensors(model)]
    external = sum(int(entry.get("length", "0")) for entry in entries if entry)
    return int(model.ByteSize()) + external
