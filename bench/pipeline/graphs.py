"""Graphs with realistic topology and size, which determine the stages' costs, and random weights."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Weights = NDArray[np.float32]
_OPSET: Final = 17
_IR_VERSION: Final = 9
_RESNET_BLOCKS: Final = ((3, 64, 256), (4, 128, 512), (6, 256, 1024), (3, 512, 2048))
_CHUNK: Final = 64 << 20  # bytes of external data written at a time


class Graph:
    """A graph under construction; every method returns the name of its result."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self._nodes: list[NodeProto] = []
        self._weights: list[TensorProto] = []

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """Add random weights, by default scaled to keep the variance of activations (He et al.)."""
        fan_in = int(np.prod(shape[1:])) or 1
        spread = scale if scale is not None else float(np.sqrt(2.0 / fan_in))
        return self.constant(self._random.standard_normal(shape, np.float32) * np.float32(spread))

    def constant(self, value: NDArray[np.generic]) -> str:
        """Add an initializer."""
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(value, name))
        return name

    def node(self, operator: str, *inputs: str, **attributes: object) -> str:
        """Add a node with one output."""
        name = f"{operator.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def model(
        self, inputs: list[onnx.ValueInfoProto], result: str, shape: list[int | str]
    ) -> ModelProto:
        """Return the model, with one output named `y`."""
        self._nodes.append(helper.make_node("Identity", [result], ["y"], name="y"))
        output = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
        graph = helper.make_graph(self._nodes, "bench", inputs, [output], self._weights)
        opset = helper.make_opsetid("", _OPSET)
        return helper.make_model(graph, opset_imports=[opset], ir_version=_IR_VERSION)


def small() -> ModelProto:
    """Return a classifier of three layers, about 5 MB."""
    graph = Graph()
    x = "x"
    for rows, columns in ((512, 1024), (1024, 512), (512, 100)):
        x = graph.node("Relu", graph.node("MatMul", x, graph.weight(rows, columns)))
    x_info = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 512])
    return graph.model([x_info], x, ["batch", 100])


def resnet50() -> ModelProto:
    """Return ResNet-50 (He et al., 2015), 102 MB: 53 convolutions, folded batch norms."""
    graph = Graph()

    def conv(x: str, into: int, out: int, size: int, stride: int = 1) -> str:
        pad = size // 2
        return graph.node(
            "Conv",
            x,
            graph.weight(out, into, size, size),
            graph.weight(out, scale=0.01),
            strides=[stride, stride],
            pads=[pad] * 4,
        )

    x = graph.node("Relu", conv("x", 3, 64, 7, 2))
    x = graph.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for stage, (blocks, middle, out) in enumerate(_RESNET_BLOCKS):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            side = conv(x, channels, out, 1, stride) if not block else x
            x = graph.node("Relu", conv(x, channels, middle, 1))
            x = graph.node("Relu", conv(x, middle, middle, 3, stride))
            x = graph.node("Relu", graph.node("Add", conv(x, middle, out, 1), side))
            channels = out
    x = graph.node("Flatten", graph.node("GlobalAveragePool", x))
    x = graph.node("Add", graph.node("MatMul", x, graph.weight(2048, 1000)), graph.weight(1000))
    x_info = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 224, 224])
    return graph.model([x_info], x, ["batch", 1000])


def transformer(layers: int = 6, hidden: int = 384, heads: int = 12) -> ModelProto:
    """Return an encoder (Vaswani et al., 2017) over embedded tokens: MiniLM's sizes, 43 MB."""
    graph = Graph()
    width = hidden // heads

    def dense(x: str, rows: int, columns: int) -> str:
        return graph.node(
            "Add", graph.node("MatMul", x, graph.weight(rows, columns)), graph.weight(columns)
        )

    def norm(x: str) -> str:
        scale = graph.constant(np.ones(hidden, np.float32))
        bias = graph.constant(np.zeros(hidden, np.float32))
        return graph.node("LayerNormalization", x, scale, bias, axis=-1)

    split = graph.constant(np.array([0, 0, heads, width], np.int64))
    join = graph.constant(np.array([0, 0, hidden], np.int64))
    root = graph.constant(np.array(width**-0.5, np.float32))
    half, one = (graph.constant(np.array(value, np.float32)) for value in (0.5, 1.0))
    sqrt2 = graph.constant(np.array(np.sqrt(2.0), np.float32))
    x = "x"
    for _ in range(layers):
        query, key, value = (
            graph.node(
                "Transpose", graph.node("Reshape", dense(x, hidden, hidden), split), perm=order
            )
            for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        scores = graph.node("Softmax", graph.node("Mul", graph.node("MatMul", query, key), root))
        mixed = graph.node("Transpose", graph.node("MatMul", scores, value), perm=[0, 2, 1, 3])
        mixed = dense(graph.node("Reshape", mixed, join), hidden, hidden)
        x = norm(graph.node("Add", x, mixed))
        inner = dense(x, hidden, 4 * hidden)
        gate = graph.node("Add", graph.node("Erf", graph.node("Div", inner, sqrt2)), one)
        inner = graph.node("Mul", graph.node("Mul", inner, gate), half)
        x = norm(graph.node("Add", x, dense(inner, 4 * hidden, hidden)))
    x_info = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64, hidden])
    return graph.model([x_info], x, ["batch", 64, hidden])


def write_large(folder: Path, layers: int = 10, width: int = 8192) -> Path:
    """Write a stack of layers whose weights, 2.7 GB by default, are in one external file."""
    graph = Graph()
    random = np.random.default_rng(0)
    weights, x, offset = [], "x", 0
    size = width * width * 4
    with (folder / "weights.bin").open("wb") as writer:
        for index in range(layers):
            tensor = TensorProto(name=f"l{index}", data_type=TensorProto.FLOAT, dims=[width, width])
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", "weights.bin"), ("offset", offset), ("length", size)):
                tensor.external_data.add(key=key, value=str(value))
            weights.append(tensor)
            scale = np.float32(np.sqrt(2.0 / width))
            for _ in range(0, size, _CHUNK):
                chunk = random.standard_normal(min(_CHUNK, size) // 4, np.float32) * scale
                writer.write(chunk.data)
            offset += size
            x = graph.node("Relu", graph.node("MatMul", x, tensor.name))
    x_info = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", width])
    model = graph.model([x_info], x, ["batch", width])
    model.graph.initializer.extend(weights)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


LARGE: Final = "large"
_BUILDERS: Final[dict[str, Callable[[], ModelProto]]] = {
    "small": small,
    "ResNet-50": resnet50,
    "transformer": transformer,
}
NAMES: Final = (*_BUILDERS, LARGE)


def write(name: str, folder: Path) -> Path:
    """Write model.onnx into the folder, in a separate process; return its path.

    Linux counts the resident memory of a parent also for its children (fs/exec.c), so a process that
    measures them has to stay small.
    """
    subprocess.run([sys.executable, __file__, name, str(folder)], check=True)
    return folder / "model.onnx"


def main() -> None:
    """Write the requested graph."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    if name == LARGE:
        write_large(folder)
    else:
        (folder / "model.onnx").write_bytes(_BUILDERS[name]().SerializeToString())


if __name__ == "__main__":
    main()
