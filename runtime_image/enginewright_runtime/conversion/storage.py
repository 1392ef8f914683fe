"""Writes a changed model beside hard links to its external data: weights are never copied."""

import os
import shutil
from pathlib import Path

from enginewright.contract.reasons import Reason
from google.protobuf.message import EncodeError
from onnx import ModelProto

from enginewright_runtime import graphs
from enginewright_runtime.digests import MODEL_NAME
from enginewright_runtime.failure import StageFailure


def save(model: ModelProto, source: Path, folder: Path) -> Path:
    """Write a model into a new folder, with the external data that it refers to; return its path.

    Args:
        model: parsed without external data.
        source: the folder that its external data is in.
        folder: must not exist.

    Raises:
        StageFailure: ModelTooLarge, when what is not external data passes the limit of a protobuf.
    """
    folder.mkdir()
    try:
        content = model.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise StageFailure(
            Reason.MODEL_TOO_LARGE, "the converted model is larger than one protobuf file can be"
        ) from error
    path = folder / MODEL_NAME
    path.write_bytes(content)
    for location in locations(model):
        target = folder / location
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source / location, target)
        except OSError:  # a file system without links
            shutil.copyfile(source / location, target)
    return path


def locations(model: ModelProto) -> list[str]:
    """Return the external files that a model refers to, each once."""
    entries = [graphs.external_entries(tensor) for tensor in graphs.walk_tensors(model)]
    return sorted({entry.get("location", "") for entry in entries if entry})


def sizes_in_memory(model: ModelProto) -> tuple[int, int]:
    """Return the bytes of a model's protobuf and of its external data, as far as the entries say."""
    entries = [graphs.external_entries(tensor) for tensor in graphs.walk_tensors(model)]
    return model.ByteSize(), sum(int(entry.get("length", "0")) for entry in entries if entry)
