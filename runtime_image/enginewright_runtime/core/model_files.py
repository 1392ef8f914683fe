"""What a model's file shows without being parsed: parsing takes a large library, and of a hostile file much memory."""

import mmap
from pathlib import Path
from typing import Final

LARGEST_PROTOBUF: Final = 2**31 - 1  # bytes of one message, and so of a .onnx file
EXTERNAL: Final = b"location"  # a key of every tensor with external data
TENSORRT: Final = "trt"  # the domain of operators that TensorRT's parser defines
OF_TENSORRT: Final = bytes([len(TENSORRT)]) + TENSORRT.encode()  # its name in a model


def may_have(model: Path, content: bytes) -> bool:
    """Return whether the bytes are in a model's file, which may be of gigabytes: without them it has not what they mean."""
    if not model.is_file() or not model.stat().st_size:
        return False
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        return mapped.find(content) >= 0
