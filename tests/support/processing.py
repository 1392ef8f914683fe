"""Small models with real steps around them: an image decoder, the choice of a label."""

import io
import struct
import zlib
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from tests.support.serving import IR_VERSION, OPSET, tensor

DOMAIN = "com.microsoft.extensions"  # of onnxruntime-extensions
LABELS = ("red", "green", "blue")


def chain_model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: dict[str, NDArray[Any]] | None = None,
) -> onnx.ModelProto:
    """Return a model that may use operators of onnxruntime-extensions."""
    initializers = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, initializers)
    domains = {node.domain for node in nodes} - {""}
    opsets = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(each, 1) for each in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def decoder() -> onnx.ModelProto:
    """Return image [bytes] -> pixels [1, 3, 8, 8]: decoded, resized, divided by 255."""
    return chain_model(
        [
            helper.make_node("DecodeImage", ["image"], ["decoded"], domain=DOMAIN),
            helper.make_node("Gather", ["decoded", "rgb"], ["colors"], axis=2),
            helper.make_node("Resize", ["colors", "", "", "sizes"], ["resized"], mode="nearest"),
            helper.make_node("Cast", ["resized"], ["floats"], to=TensorProto.FLOAT),
            helper.make_node("Div", ["floats", "scale"], ["scaled"]),
            helper.make_node("Transpose", ["scaled"], ["channels"], perm=[2, 0, 1]),
            helper.make_node("Unsqueeze", ["channels", "axis"], ["pixels"]),
        ],
        [tensor("image", TensorProto.UINT8, "bytes")],
        [tensor("pixels", TensorProto.FLOAT, 1, 3, 8, 8)],
        {
            "rgb": np.array([2, 1, 0], np.int64),  # the operator decodes to BGR
            "sizes": np.array([8, 8, 3], np.int64),
            "scale": np.array(255, np.float32),
            "axis": np.array([0], np.int64),
        },
    )


def classifier() -> onnx.ModelProto:
    """Return pixels [n, 3, 8, 8] -> scores [n, 3], the mean of each channel, and brightness [n, 1]."""
    return chain_model(
        [
            helper.make_node("ReduceMean", ["pixels"], ["scores"], axes=[2, 3], keepdims=0),
            helper.make_node("ReduceMean", ["scores"], ["brightness"], axes=[1]),
        ],
        [tensor("pixels", TensorProto.FLOAT, "n", 3, 8, 8)],
        [
            tensor("scores", TensorProto.FLOAT, "n", 3),
            tensor("brightness", TensorProto.FLOAT, "n", 1),
        ],
    )


def labeller() -> onnx.ModelProto:
    """Return scores [n, 3] -> label [n], the name of the largest."""
    return chain_model(
        [
            helper.make_node("ArgMax", ["scores"], ["best"], axis=1, keepdims=0),
            helper.make_node("Gather", ["labels", "best"], ["label"]),
        ],
        [tensor("scores", TensorProto.FLOAT, "n", 3)],
        [tensor("label", TensorProto.STRING, "n")],
        {"labels": np.array(LABELS, object)},
    )


def picture(color: tuple[int, int, int], kind: str = "JPEG", size: int = 32) -> bytes:
    """Return an image of one colour."""
    file = io.BytesIO()
    Image.new("RGB", (size, size), color).save(file, kind)
    return file.getvalue()


def huge_png(width: int, height: int) -> bytes:
    """Return a small PNG that says it is huge."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(1 << 20))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def two_sizes(kind: str, first: tuple[int, int], second: tuple[int, int]) -> bytes:
    """Return an image with two headers, whose sizes differ."""
    if kind == "PNG":
        given = huge_png(*second)
        head, rest = given[:8], given[8:]
        header = huge_png(*first)[8:33]
        return head + header + rest
    whole = picture((1, 2, 3), size=first[0])
    at = whole.index(b"\xff\xc0")
    frame = bytearray(whole[at : whole.index(b"\xff\xc4")])
    end = at + len(frame)
    frame[5:9] = struct.pack(">HH", second[1], second[0])
    return whole[:end] + bytes(frame) + whole[end:]
