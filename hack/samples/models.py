"""Model files for demo and cluster tests: real ones, and ones that are invalid on purpose."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from hack.samples.revisions import SLOW, linear
from hack.samples.text_steps import write_text_steps


def write_models(real: Path, folder: Path) -> None:
    """Write all model files into `folder`."""
    magika = next(real.rglob("standard_v3_3/model.onnx"))
    shutil.copy(magika, folder / "magika.onnx")
    shutil.copy(next(real.rglob("ch_ppocr_mobile_v2.0_cls_infer.onnx")), folder / "classify.onnx")
    (folder / "truncated.onnx").write_bytes(magika.read_bytes()[:100_000])
    (folder / "empty.onnx").write_bytes(b"")
    (folder / "text.onnx").write_text("this is no model\n" * 20)
    onnx.save(linear(seed=1), folder / "linear-1.onnx")
    onnx.save(linear(seed=1, work=SLOW), folder / "linear-slow.onnx")
    onnx.save(_newer_opset(), folder / "newer-opset.onnx")
    onnx.save(_custom_operator(), folder / "custom-operator.onnx")
    onnx.save(partly_supported(), folder / "partly-supported.onnx")
    onnx.save(_attention(), folder / "attention.onnx")
    onnx.save(image_net(), folder / "image.onnx")
    write_text_steps(folder)
    images = np.random.default_rng(11).random((64, 3, 32, 32), np.float32)
    np.savez(folder / "calibration.npz", x=images)
    shutil.copy(next(real.rglob("ch_PP-OCRv4_det_infer.onnx")), folder / "detect.onnx")
    samples: dict[str, Any] = {"page/x": _page()}
    np.savez(folder / "detect-samples.npz", **samples)


def _newer_opset() -> onnx.ModelProto:
    """Return a model from a newer exporter: CumProd was added in opset 26."""
    nodes = [
        helper.make_node("Relu", ["x"], ["positive"], name="encoder/activation"),
        helper.make_node("CumProd", ["positive", "axis"], ["decay"], name="encoder/decay"),
        helper.make_node("CumProd", ["decay", "axis"], ["y"], name="decoder/decay"),
    ]
    axis = helper.make_tensor("axis", TensorProto.INT64, [], [1])
    return _model(nodes, [axis], opset=26)


def _custom_operator() -> onnx.ModelProto:
    node = helper.make_node("Frobnicate", ["x"], ["y"], name="frobnicate_1", domain="com.example")
    return _model([node], domain="com.example")


def partly_supported() -> onnx.ModelProto:
    """Return a small image model that ends with Det, which neither OpenVINO nor TensorRT supports."""
    random = np.random.default_rng(7)
    nodes, weights, last = [], [], "x"
    for layer, channels in enumerate(((3, 16), (16, 16), (16, 16)), 1):
        kernel = random.standard_normal((channels[1], channels[0], 3, 3)).astype(np.float32) / 9
        weights.append(numpy_helper.from_array(kernel, f"kernel_{layer}"))
        nodes += _conv_relu(last, layer, stride=1)
        last = f"relu_{layer}"
    weights.append(numpy_helper.from_array(np.array([-1, 4, 4], np.int64), "matrix"))
    nodes += [
        helper.make_node("GlobalAveragePool", [last], ["pooled"], name="pool"),
        helper.make_node("Reshape", ["pooled", "matrix"], ["square"], name="to_matrix"),
        helper.make_node("Det", ["square"], ["volume"], name="volume"),
        helper.make_node("Sigmoid", ["volume"], ["y"], name="squash"),
    ]
    return _model(nodes, weights, x=(3, 32, 32), y=(), ir_version=9)


def _attention() -> onnx.ModelProto:
    """Return an encoder block from a newer exporter: Attention is one operator since opset 23.

    ONNX Runtime's CPU provider implements it, OpenVINO's does not: its nodes would silently fall back.
    """
    random = np.random.default_rng(23)
    width, heads = 64, 4

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        value = random.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(shape[0]))
        return numpy_helper.from_array(value, name)

    weights = [weight(f"{name}_weight", width, width) for name in ("query", "key", "value", "out")]
    weights += [weight("head_weight", width, 8)]
    weights += [numpy_helper.from_array(np.ones(width, np.float32), "scale")]
    nodes = [
        helper.make_node("MatMul", ["x", f"{name}_weight"], [name], name=f"encoder/{name}")
        for name in ("query", "key", "value")
    ]
    nodes += [
        helper.make_node(
            "Attention",
            ["query", "key", "value"],
            ["mixed"],
            name="encoder/attention",
            q_num_heads=heads,
            kv_num_heads=heads,
        ),
        helper.make_node("MatMul", ["mixed", "out_weight"], ["projected"], name="encoder/project"),
        helper.make_node("Add", ["x", "projected"], ["summed"], name="encoder/residual"),
        helper.make_node("RMSNormalization", ["summed", "scale"], ["normal"], name="encoder/norm"),
        helper.make_node("MatMul", ["normal", "head_weight"], ["y"], name="head"),
    ]
    return _model(nodes, weights, x=(16, width), y=(16, 8), opset=23, ir_version=11)


def image_net() -> onnx.ModelProto:
    """Return a small convolutional image model, which is quantized with small errors."""
    random = np.random.default_rng(5)
    nodes, weights, last, into = [], [], "x", 3
    for layer, out in enumerate((32, 64, 64), 1):
        kernel = random.standard_normal((out, into, 3, 3)).astype(np.float32)
        kernel /= np.float32(np.sqrt(into * 9))
        weights.append(numpy_helper.from_array(kernel, f"kernel_{layer}"))
        nodes += _conv_relu(last, layer, stride=2)
        last, into = f"relu_{layer}", out
    head = random.standard_normal((64, 10)).astype(np.float32) / np.float32(8)
    weights.append(numpy_helper.from_array(head, "head"))
    nodes += [
        helper.make_node("GlobalAveragePool", [last], ["pooled"], name="pool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], name="flatten"),
        helper.make_node("MatMul", ["flat", "head"], ["y"], name="classify"),
    ]
    return _model(nodes, weights, x=(3, 32, 32), y=(10,), ir_version=9)


def _conv_relu(last: str, layer: int, stride: int) -> list[onnx.NodeProto]:
    """Return a convolution of `last` by `kernel_LAYER` and its Relu, whose output is `relu_LAYER`."""
    conv, relu = f"conv_{layer}", f"relu_{layer}"
    kernel = f"kernel_{layer}"
    strides = [stride] * 2
    return [
        helper.make_node("Conv", [last, kernel], [conv], pads=[1] * 4, strides=strides, name=conv),
        helper.make_node("Relu", [conv], [relu], name=relu),
    ]


_LETTERS = {  # five columns of seven rows, the lowest bit at the top
    "E": (127, 73, 73, 73, 65),
    "N": (127, 2, 4, 8, 127),
    "G": (62, 65, 73, 73, 58),
    "I": (0, 65, 127, 65, 0),
}


def _page() -> NDArray[np.float32]:
    """Return a page with text, [1, 3, 320, 320], as preprocessed for the text detector.

    In noise it would detect nothing, so there would be nothing to compare.
    """
    size, scale = 320, 4
    page = np.full((size, size), 1.0, np.float32)
    for line, word in enumerate(("ENGINE", "GENIE", "NINE")):
        for number, letter in enumerate(word):
            for column, bits in enumerate(_LETTERS[letter]):
                for row in range(7):
                    if bits >> row & 1:
                        top = 50 + 80 * line + row * scale
                        left = 40 + (6 * number + column) * scale
                        page[top : top + scale, left : left + scale] = 0.0
    mean = np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]
    spread = np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]
    return ((page[None] - mean) / spread)[None]


def _model(
    nodes: list[onnx.NodeProto],
    weights: Sequence[onnx.TensorProto] = (),
    *,
    x: tuple[int, ...] = (4,),
    y: tuple[int, ...] = (4,),
    opset: int = 17,
    ir_version: int = 10,
    domain: str = "",
) -> onnx.ModelProto:
    """Return a model of x [batch, *x] to y [batch, *y]; `domain` is that of custom operators."""
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape])]
        for name, shape in (("x", x), ("y", y))
    )
    graph = helper.make_graph(nodes, "sample", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", opset)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


if __name__ == "__main__":
    write_models(Path(sys.argv[1]), Path(sys.argv[2]))
