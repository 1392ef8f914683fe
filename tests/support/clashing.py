"""Small models whose inputs can clash, one for each operator family: a request that runs, one that does not.

Every model has only dynamic sizes, so that nothing but the run itself can find the clash.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Feeds = dict[str, NDArray[Any]]
_KINDS = {
    "f": (np.float32, TensorProto.FLOAT),
    "i": (np.int64, TensorProto.INT64),
    "b": (np.bool_, TensorProto.BOOL),
    "s": (np.object_, TensorProto.STRING),
    "n": (np.int32, TensorProto.INT32),
    "u": (np.uint8, TensorProto.UINT8),
}


@dataclass(frozen=True)
class Clash:
    """A model, inputs that it accepts and inputs that it does not."""

    name: str
    model: onnx.ModelProto
    good: Feeds
    bad: Feeds


def _array(kind: str, text: str) -> NDArray[Any]:
    """Return ones of a shape such as 2x3 or 4x, or values written in JSON."""
    dtype = _KINDS[kind][0]
    if "x" in text and not text.startswith("["):
        shape = [int(size) for size in text.split("x") if size]
        return np.full(shape, "a" if kind == "s" else 1, dtype)
    return np.array(json.loads(text), dtype)


def _model(
    nodes: list[onnx.NodeProto],
    kinds: Mapping[str, str],
    good: Feeds,
    weights: Mapping[str, NDArray[Any]],
    out: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    inputs = [
        helper.make_tensor_value_info(
            name, _KINDS[kind][1], [f"{name}{axis}" for axis in range(good[name].ndim)]
        )
        for name, kind in kinds.items()
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        inputs,
        [helper.make_tensor_value_info("y", out, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)],
        ir_version=9,
    )


def _clash(
    name: str, inputs: str, good: str, bad: str, *, outputs: str = "y", out: str = "f", **more: Any
) -> Clash:
    """Return a clash of the operator that `name` begins with, between arrays that run and others that do not.

    Inputs are NAME:KIND of the request's, NAME of a weight, or - for an omitted one; `out` is the kind of the first
    output; `more` are weights (an array, or the shape of ones) and attributes.
    """
    weights = {
        key: np.ones(item, np.float32) if isinstance(item, tuple) else item
        for key, item in more.items()
        if isinstance(item, (tuple, np.ndarray))
    }
    attributes = {key: item for key, item in more.items() if key not in weights}
    named = [part.partition(":") for part in inputs.split()]
    kinds = {key: kind for key, _, kind in named if kind}
    order = ["" if key == "-" else key for key, _, _ in named]
    operator = name.split(maxsplit=1)[0]
    node = helper.make_node(operator, order, outputs.split(), name=operator.lower(), **attributes)
    runs, clashes = (
        {key: _array(kinds[key], text) for key, text in zip(kinds, texts.split(), strict=True)}
        for texts in (good, bad)
    )
    return Clash(name, _model([node], kinds, runs, weights, _KINDS[out][1]), runs, clashes)


def _body(
    *nodes: onnx.NodeProto, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]
) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), "body", inputs, outputs)


def _in_bodies() -> list[Clash]:
    """Return an Add of `a` and `b` inside each operator that has a body."""
    good = {"a": _array("f", "2x3"), "b": _array("f", "2x3")}
    bad = {"a": _array("f", "2x3"), "b": _array("f", "2x4")}
    out = helper.make_tensor_value_info
    number = TensorProto.FLOAT
    add = helper.make_node("Add", ["a", "b"], ["sum"])
    branch = _body(add, inputs=[], outputs=[out("sum", number, None)])
    turn = _body(
        helper.make_node("Add", ["state", "b"], ["next"]),
        helper.make_node("Identity", ["go"], ["on"]),
        inputs=[
            out("turn", TensorProto.INT64, []),
            out("go", TensorProto.BOOL, []),
            out("state", number, None),
        ],
        outputs=[out("on", TensorProto.BOOL, []), out("next", number, None)],
    )
    step = _body(
        helper.make_node("Add", ["row", "other"], ["both"]),
        inputs=[out("row", number, ["n"]), out("other", number, ["m"])],
        outputs=[out("both", number, None)],
    )
    nodes = {
        "If": helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch),
        "Loop": helper.make_node("Loop", ["turns", "yes", "a"], ["y"], body=turn),
        "Scan": helper.make_node("Scan", ["a", "b"], ["y"], body=step, num_scan_inputs=2),
    }
    weights, kinds = {"yes": np.array(True), "turns": np.array(2)}, {"a": "f", "b": "f"}
    return [
        Clash(name, _model([node], kinds, good, weights), good, bad) for name, node in nodes.items()
    ]


_CHANNELS = "1x3x8x8"
_ALL_OR_NONE = np.array([0, 1], np.float32)
_MS: dict[str, Any] = {"domain": "com.microsoft"}
_HEADS: dict[str, Any] = {"num_heads": 2, "domain": "com.microsoft"}
_QKV: dict[str, Any] = {"w": (8, 24), "b": (24,)}
_EMBED: dict[str, Any] = {"w": (10, 8), "p": (6, 8), "g": (8,), "b": (8,), "outputs": "y m"}


def _elementwise() -> list[Clash]:
    made = [
        _clash(op, "a:f b:f", "2x3 1x3", "2x3 2x4")
        for op in ("Add", "Mul", "Sub", "Div", "Pow", "Max", "Mean", "PRelu")
    ]
    return [
        *made,
        _clash("Mod", "a:f b:f", "2x3 1x3", "2x3 2x4", fmod=1),
        _clash("Less", "a:f b:f", "2x3 1x3", "2x3 2x4", out="b"),
        _clash("Equal", "a:i b:i", "2x3 1x3", "2x3 2x4", out="b"),
        _clash("And", "a:b b:b", "2x3 1x3", "2x3 2x4", out="b"),
        _clash("Where", "c:b a:f b:f", "2x3 2x3 1x3", "2x3 2x4 1x3"),
    ]


def _join_clashes() -> list[Clash]:
    return [
        _clash("Concat", "a:f b:f", "2x3 2x5", "2x3 4x5", axis=1),
        _clash("MatMul", "a:f b:f", "2x3 3x4", "2x3 5x4"),
        _clash("MatMul batches", "a:f b:f", "2x2x3 2x3x4", "2x2x3 3x3x4"),
        _clash("MatMul weight", "a:f w", "2x3", "2x5", w=(3, 4)),
        _clash("Gemm", "a:f b:f", "2x3 3x4", "2x3 5x4"),
        _clash("Gemm weight", "a:f w", "2x3", "2x5", w=(3, 4)),
        _clash("Gemm C", "a:f w c:f", "2x3 2x4", "2x3 3x4", w=(3, 4)),
        _clash("Einsum", "a:f b:f", "2x3 3x4", "2x3 5x4", equation="ij,jk->ik"),
        _clash("MatMulInteger", "a:u b:u", "2x3 3x4", "2x3 5x4", out="n"),
        _clash("Conv channels", "x:f w", _CHANNELS, "1x4x8x8", w=(2, 3, 3, 3)),
        _clash("Conv kernel", "x:f w", _CHANNELS, "1x3x2x2", w=(2, 3, 3, 3)),
        _clash("Conv 1D", "x:f w", "1x3x8", "1x4x8", w=(2, 3, 3)),
        _clash("ConvTranspose", "x:f w", _CHANNELS, "1x4x8x8", w=(3, 2, 3, 3)),
        _clash("MaxPool", "x:f", _CHANNELS, "1x3x2x2", kernel_shape=[3, 3]),
        _clash("AveragePool", "x:f", _CHANNELS, "1x3x2x2", kernel_shape=[3, 3]),
        _clash("LpPool", "x:f", _CHANNELS, "1x3x2x2", kernel_shape=[3, 3]),
        _clash("BatchNormalization", "x:f s s s s", "1x3x8", "1x4x8", s=(3,)),
        _clash("InstanceNormalization", "x:f s s", "1x3x8", "1x4x8", s=(3,)),
        _clash("LayerNormalization", "x:f s s", "1x3", "1x4", s=(3,)),
    ]


def _index_clashes() -> list[Clash]:
    return [
        _clash("Gather", "x:f i:i", "4x3 [1]", "4x3 [9]", axis=0),
        _clash("Gather embedding", "w i:i", "[[1,2]]", "[[1,99]]", w=(10, 4)),
        _clash("GatherElements", "x:f i:i", "2x3 [[1,1,1]]", "2x3 [[9,1,1]]", axis=0),
        _clash("GatherND", "x:f i:i", "2x3 [[1,1]]", "2x3 [[1,9]]"),
        _clash("GatherND rank", "x:f i:i", "2x3 [[1,1]]", "2x3 [[1,1,1]]"),
        _clash("ScatterElements", "x:f i:i u:f", "2x3 [[1,1,1]] 1x3", "2x3 [[9,1,1]] 1x3", axis=0),
        _clash("ScatterElements shapes", "x:f i:i u:f", "2x3 [[1,1,1]] 1x3", "2x3 [[1,1,1]] 1x2",
               axis=0),
        _clash("ScatterND", "x:f i:i u:f", "4x [[1],[2]] 2x", "4x [[1],[9]] 2x"),
        _clash("ScatterND shapes", "x:f i:i u:f", "4x [[1],[2]] 2x", "4x [[1],[2]] 3x"),
        _clash("OneHot", "i:i d:i v", "[1,2] [4]", "[1,2] [-1]", v=_ALL_OR_NONE),
        _clash("OneHot depth", "i:i d:i v", "[1,2] [4]", "[1,2] [4,4]", v=_ALL_OR_NONE),
    ]  # fmt: skip


def _size_clashes() -> list[Clash]:
    return [
        _clash("Reshape", "x:f s:i", "2x3 [3,2]", "2x3 [4,2]"),
        _clash("Reshape fixed", "x:f s", "2x3", "2x5", s=np.array([-1, 3, 2])),
        _clash("Expand", "x:f s:i", "1x3 [2,3]", "1x3 [2,4]"),
        _clash("Tile", "x:f s:i", "1x3 [2,2]", "1x3 [2,2,2]"),
        _clash("Tile negative", "x:f s:i", "1x3 [2,2]", "1x3 [2,-2]"),
        _clash("Slice", "x:f a:i b:i", "4x3 [0] [2]", "4x3 [0,0,0] [2,2,2]"),
        _clash("Slice axis", "x:f a:i b:i c:i d:i", "4x3 [0] [2] [0] [1]", "4x3 [0] [2] [7] [1]"),
        _clash("Slice step", "x:f a:i b:i c:i d:i", "4x3 [0] [2] [0] [1]", "4x3 [0] [2] [0] [0]"),
        _clash("Split", "x:f s:i", "4x3 [1,3]", "4x3 [1,4]", outputs="y z", axis=0),
        _clash("Split fixed", "x:f s", "4x3", "5x3", s=np.array([1, 3]), outputs="y z", axis=0),
        _clash("Squeeze", "x:f s", "1x3", "2x3", s=np.array([0])),
        _clash("Squeeze axis", "x:f s:i", "1x3 [0]", "1x3 [5]"),
        _clash("Unsqueeze", "x:f s:i", "1x3 [0]", "1x3 [7]"),
        _clash("Pad", "x:f s:i", "2x3 [1,1,1,1]", "2x3 [1,1,1]"),
        _clash("Pad reflect", "x:f s:i", "2x3 [0,1,0,1]", "2x3 [0,9,0,9]", mode="reflect"),
        _clash("Pad negative", "x:f s:i", "2x3 [1,1,1,1]", "2x3 [-3,-3,-3,-3]"),
        _clash("Resize", "x:f - s:f", "1x1x4x4 [1,1,2,2]", "1x1x4x4 [1,1,2]"),
        _clash("Resize scale", "x:f - s:f", "1x1x4x4 [1,1,2,2]", "1x1x4x4 [1,1,-2,2]"),
        _clash("Range", "a:i b:i c:i", "0 4 1", "0 4 0", out="i"),
        _clash("TopK", "x:f k:i", "2x3 [2]", "2x3 [9]", outputs="y z"),
        _clash("TopK fixed", "x:f k", "2x8", "2x3", k=np.array([5]), outputs="y z"),
        _clash("ConstantOfShape", "s:i", "[2,2]", "[2,-2]"),
        _clash("CumSum", "x:f a:n", "2x3 0", "2x3 7"),
        _clash("ReduceSum", "x:f s:i", "2x3 [0]", "2x3 [5]"),
        _clash("ReduceMax", "x:f", "2x3", "0x3", axes=[0]),
        _clash("ArgMax", "x:f", "2x3", "0x3", axis=0, out="i"),
        _clash("DepthToSpace", "x:f", "1x4x2x2", "1x6x2x2", blocksize=2),
        _clash("SpaceToDepth", "x:f", "1x1x4x4", "1x1x3x3", blocksize=2),
        _clash("ReverseSequence", "x:f s:i", "4x2 [3,4]", "4x2 [3,9]", time_axis=0, batch_axis=1),
        _clash("ReverseSequence batch", "x:f s:i", "4x2 [3,4]", "4x2 [3,4,4]", time_axis=0,
               batch_axis=1),
        _clash("Det", "x:f", "3x3", "3x4"),
    ]  # fmt: skip


def _recurrent() -> list[Clash]:
    made: list[Clash] = []
    for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        more: dict[str, Any] = {"w": (1, gates * 4, 3), "r": (1, gates * 4, 4), "hidden_size": 4}
        lengths = ("x:f w r - n:n", "5x2x3 [5,4]")
        made += [
            _clash(f"{op} input", "x:f w r", "5x2x3", "5x2x4", **more),
            _clash(f"{op} lengths", *lengths, "5x2x3 [9,4]", **more),
            _clash(f"{op} lengths batch", *lengths, "5x2x3 [5,4,4]", **more),
            _clash(f"{op} state", "x:f w r - - h:f", "5x2x3 1x2x4", "5x2x3 1x3x4", **more),
        ]
    return made


def _of_onnx_runtime() -> list[Clash]:
    return [
        _clash("Attention", "x:f w b m:n", "2x4x8 2x4", "2x4x8 2x7", **_QKV, **_HEADS),
        _clash("Attention hidden", "x:f w b", "2x4x8", "2x4x6", **_QKV, **_HEADS),
        _clash("MultiHeadAttention", "q:f k:f v:f", "2x4x8 2x5x8 2x5x8", "2x4x8 2x5x8 2x6x8",
               **_HEADS),
        _clash("MultiHeadAttention batch", "q:f k:f v:f", "2x4x8 2x5x8 2x5x8", "2x4x8 3x5x8 3x5x8",
               **_HEADS),
        _clash("SkipLayerNormalization", "x:f s:f g b", "2x4x8 2x4x8", "2x4x8 3x4x8", g=(8,),
               b=(8,), **_MS),
        _clash("EmbedLayerNormalization", "i:n - w p - g b", "[[1,2]]", "[[1,99]]", **_EMBED, **_MS),
        _clash("EmbedLayerNormalization positions", "i:n - w p - g b", "[[1,2]]",
               "[[1,1,1,1,1,1,1,1,1]]", **_EMBED, **_MS),
        _clash("FusedMatMul", "a:f b:f", "2x3 3x4", "2x3 5x4", **_MS),
        _clash("BiasGelu", "a:f b:f", "2x3 3x", "2x3 4x", **_MS),
    ]  # fmt: skip


def clashes() -> list[Clash]:
    return [
        *_elementwise(),
        *_join_clashes(),
        *_index_clashes(),
        *_size_clashes(),
        *_recurrent(),
        *_of_onnx_runtime(),
        _clash("Cast string", "x:s", '["1.5"]', '["house"]', to=TensorProto.FLOAT),
        _clash("Concat strings", "a:s b:s", "2x3 2x5", "2x3 4x5", axis=1, out="s"),
        *_in_bodies(),
    ]
