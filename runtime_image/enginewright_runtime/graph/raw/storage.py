"""Where changed models lie: beside their external data, which is neither loaded nor copied meanwhile.

Links would spare the one copy at the end, but onnx (1.23) refuses external data that is a symbolic
link or has several hard links, as a possible attack, and ONNX Runtime refuses symbolic links.
"""

import shutil
from pathlib import Path
from typing import Final

from enginewright.contract.manifest import MODEL_NAME
from enginewright.contract.reasons import Reason
from google.protobuf.message import EncodeError
from onnx import ModelProto

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.graph.raw import graphs

# A protobuf ends at 2 GiB, and lies in memory several times while it is written and loaded.
LARGEST_INSIDE: Final = 1 << 30  # bytes of weights in the .onnx file


def save(model: ModelProto, path: Path) -> None:
    """Write a model, parsed without external data, beside the external data that it refers to.

    Raises:
        StageFailure: ModelTooLarge, when what is not external data passes the limit of a protobuf.
    """
    try:
        content = model.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise StageFailure(
            Reason.MODEL_TOO_LARGE, "the converted model is larger than one protobuf file can be"
        ) from error
    path.write_bytes(content)


def loadable(source: Path, out: Path, max_ir_version: int) -> Path:
    """Return the source, or `out` beside it, a copy under an IR version that ONNX Runtime loads.

    Only the number differs.
    """
    model = graphs.parse(source)
    if model.ir_version <= max_ir_version:
        return source
    model.ir_version = max_ir_version
    save(model, out)
    return out


def settle(path: Path, source: Path, folder: Path) -> None:
    """Give a changed model a folder of its own, with the external data that it refers to.

    Args:
        path: of the model, which is moved.
        source: the folder that must keep its external data: it is copied from there, from file to
            file, and moved from anywhere else.
        folder: that is replaced.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for location in locations(graphs.parse(path)):
        target = folder / location
        target.parent.mkdir(parents=True, exist_ok=True)
        bring = shutil.copyfile if path.parent == source else shutil.move
        bring(path.parent / location, target)
    path.rename(folder / MODEL_NAME)


def locations(model: ModelProto) -> list[str]:
    """Return the external files that a model refers to, each once."""
    entries = [graphs.external_entries(tensor) for tensor in graphs.walk_tensors(model)]
    return sorted({entry.get("location", "") for entry in entries if entry})


def size_bytes(model: ModelProto) -> int:
    """Return the bytes of a model's protobuf and external data, as far as the entries say."""
    entries = [graphs.external_entries(tensor) for tensor in graphs.walk_tensors(model)]
    outside = sum(int(entry.get("length", "0")) for entry in entries if entry)
    return int(model.ByteSize()) + outside
