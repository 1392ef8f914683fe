"""Small models whose inputs can clash, one for each operator family: a request that runs, one that does not.

Every model has only dynamic sizes, so that nothing but the run itself can find the clash.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Feeds = dict[str, NDArray[Any]]
_TYPES = {
    "f": np.float32,
    "i": np.int64,
    "b": np.bool_,
    "s": np.object_,
    "n": np.int32,
    "u": np.uint8,
}
_ONNX = {
    "f": TensorProto.FLOAT,
    "i": TensorProto.INT64,
    "b": TensorProto.BOOL,
    "s": TensorProto.STRING,
    "n": TensorProto.INT32,
    "u": TensorProto.UINT8,
}


@dataclass(frozen=True)
class Clash:
    """A model, inputs that it accepts and inputs that it does not."""

    name: str
    model: onnx.ModelProto
    good: Feeds
    bad: Feeds


def _feeds(kinds: Mapping[str, str], given: Mapping[str, Any]) -> Feeds:
    """Return arrays: a tuple is a shape, filled with ones; anything else is the values."""
    feeds: Feeds = {}
    for name, kind in kinds.items():
        value, dtype = given[name], _TYPES[kind]
        if isinstance(value, tuple):
            feeds[name] = np.full(value, "a" if kind == "s" else 1, dtype)
        else:
            feeds[name] = np.array(value, dtype)
    return feeds


def _model(
    nodes: list[onnx.NodeProto],
    kinds: Mapping[str, str],
    good: Feeds,
    weights: Mapping[str, NDArray[Any]],
    out: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    inputs = [
        helper.make_tensor_value_info(
            name, _ONNX[kind], [f"{name}{axis}" for axis in range(good[name].ndim)]
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


def _one(
    operator: str,
    inputs: str,
    good: Mapping[str, Any],
    bad: Mapping[str, Any],
    *,
    name: str = "",
    weights: Mapping[str, NDArray[Any]] | None = None,
    order: str = "",
    outputs: str = "y",
    out: int = TensorProto.FLOAT,
    **attributes: Any,
) -> Clash:
    """Return a clash of one operator.

    `inputs` is like "a:f b:i"; `order` names the node's inputs where weights or gaps are among them.
    """
    kinds = dict(item.split(":") for item in inputs.split())
    named = [("" if each == "-" else each) for each in (order.split() or list(kinds))]
    domain = attributes.pop("domain", None)
    node = helper.make_node(
        operator,
        named,
        ["" if o == "-" else o for o in outputs.split()],
        name=operator.lower(),
        domain=domain,
        **attributes,
    )
    runs, clashes = _feeds(kinds, good), _feeds(kinds, bad)
    return Clash(name or operator, _model([node], kinds, runs, weights or {}, out), runs, clashes)


def _ones(*shape: int) -> NDArray[np.float32]:
    return np.ones(shape, np.float32)


def _body(
    *nodes: onnx.NodeProto, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]
) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), "body", inputs, outputs)


def _in_bodies() -> list[Clash]:
    """Return an Add of `a` and `b` inside each operator that has a body."""
    kinds = {"a": "f", "b": "f"}
    good = _feeds(kinds, {"a": (2, 3), "b": (2, 3)})
    bad = _feeds(kinds, {"a": (2, 3), "b": (2, 4)})
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
    weights = {"yes": np.array(True), "turns": np.array(2)}
    return [
        Clash(name, _model([node], kinds, good, weights), good, bad) for name, node in nodes.items()
    ]


def clashes() -> list[Clash]:
    """Return them all."""
    i64 = TensorProto.INT64
    elementwise = [
        _one(op, "a:f b:f", {"a": (2, 3), "b": (1, 3)}, {"a": (2, 3), "b": (2, 4)})
        for op in ("Add", "Mul", "Sub", "Div", "Pow", "Max", "Mean", "PRelu")
    ]
    elementwise += [
        _one("Mod", "a:f b:f", {"a": (2, 3), "b": (1, 3)}, {"a": (2, 3), "b": (2, 4)}, fmod=1),
        _one(
            "Less",
            "a:f b:f",
            {"a": (2, 3), "b": (1, 3)},
            {"a": (2, 3), "b": (2, 4)},
            out=TensorProto.BOOL,
        ),
        _one(
            "Equal",
            "a:i b:i",
            {"a": (2, 3), "b": (1, 3)},
            {"a": (2, 3), "b": (2, 4)},
            out=TensorProto.BOOL,
        ),
        _one(
            "And",
            "a:b b:b",
            {"a": (2, 3), "b": (1, 3)},
            {"a": (2, 3), "b": (2, 4)},
            out=TensorProto.BOOL,
        ),
        _one(
            "Where",
            "c:b a:f b:f",
            {"c": (2, 3), "a": (2, 3), "b": (1, 3)},
            {"c": (2, 3), "a": (2, 4), "b": (1, 3)},
        ),
    ]
    joined = [
        _one("Concat", "a:f b:f", {"a": (2, 3), "b": (2, 5)}, {"a": (2, 3), "b": (4, 5)}, axis=1),
        _one("MatMul", "a:f b:f", {"a": (2, 3), "b": (3, 4)}, {"a": (2, 3), "b": (5, 4)}),
        _one(
            "MatMul",
            "a:f b:f",
            {"a": (2, 2, 3), "b": (2, 3, 4)},
            {"a": (2, 2, 3), "b": (3, 3, 4)},
            name="MatMul batches",
        ),
        _one(
            "MatMul",
            "a:f",
            {"a": (2, 3)},
            {"a": (2, 5)},
            name="MatMul weight",
            order="a w",
            weights={"w": _ones(3, 4)},
        ),
        _one("Gemm", "a:f b:f", {"a": (2, 3), "b": (3, 4)}, {"a": (2, 3), "b": (5, 4)}),
        _one(
            "Gemm",
            "a:f",
            {"a": (2, 3)},
            {"a": (2, 5)},
            name="Gemm weight",
            order="a w",
            weights={"w": _ones(3, 4)},
        ),
        _one(
            "Gemm",
            "a:f c:f",
            {"a": (2, 3), "c": (2, 4)},
            {"a": (2, 3), "c": (3, 4)},
            name="Gemm C",
            order="a w c",
            weights={"w": _ones(3, 4)},
        ),
        _one(
            "Einsum",
            "a:f b:f",
            {"a": (2, 3), "b": (3, 4)},
            {"a": (2, 3), "b": (5, 4)},
            equation="ij,jk->ik",
        ),
        _one(
            "MatMulInteger",
            "a:u b:u",
            {"a": (2, 3), "b": (3, 4)},
            {"a": (2, 3), "b": (5, 4)},
            out=TensorProto.INT32,
        ),
        _one(
            "Conv",
            "x:f",
            {"x": (1, 3, 8, 8)},
            {"x": (1, 4, 8, 8)},
            name="Conv channels",
            order="x w",
            weights={"w": _ones(2, 3, 3, 3)},
        ),
        _one(
            "Conv",
            "x:f",
            {"x": (1, 3, 8, 8)},
            {"x": (1, 3, 2, 2)},
            name="Conv kernel",
            order="x w",
            weights={"w": _ones(2, 3, 3, 3)},
        ),
        _one(
            "Conv",
            "x:f",
            {"x": (1, 3, 8)},
            {"x": (1, 4, 8)},
            name="Conv 1D",
            order="x w",
            weights={"w": _ones(2, 3, 3)},
        ),
        _one(
            "ConvTranspose",
            "x:f",
            {"x": (1, 3, 8, 8)},
            {"x": (1, 4, 8, 8)},
            order="x w",
            weights={"w": _ones(3, 2, 3, 3)},
        ),
    ]
    pooled = [
        _one(op, "x:f", {"x": (1, 3, 8, 8)}, {"x": (1, 3, 2, 2)}, kernel_shape=[3, 3])
        for op in ("MaxPool", "AveragePool", "LpPool")
    ]
    normal = [
        _one(
            "BatchNormalization",
            "x:f",
            {"x": (1, 3, 8)},
            {"x": (1, 4, 8)},
            order="x s s s s",
            weights={"s": _ones(3)},
        ),
        _one(
            "InstanceNormalization",
            "x:f",
            {"x": (1, 3, 8)},
            {"x": (1, 4, 8)},
            order="x s s",
            weights={"s": _ones(3)},
        ),
        _one(
            "LayerNormalization",
            "x:f",
            {"x": (1, 3)},
            {"x": (1, 4)},
            order="x s s",
            weights={"s": _ones(3)},
        ),
    ]
    indexed = [
        _one("Gather", "x:f i:i", {"x": (4, 3), "i": [1]}, {"x": (4, 3), "i": [9]}, axis=0),
        _one(
            "Gather",
            "i:i",
            {"i": [[1, 2]]},
            {"i": [[1, 99]]},
            name="Gather embedding",
            order="w i",
            weights={"w": _ones(10, 4)},
        ),
        _one(
            "GatherElements",
            "x:f i:i",
            {"x": (2, 3), "i": [[1, 1, 1]]},
            {"x": (2, 3), "i": [[9, 1, 1]]},
            axis=0,
        ),
        _one("GatherND", "x:f i:i", {"x": (2, 3), "i": [[1, 1]]}, {"x": (2, 3), "i": [[1, 9]]}),
        _one(
            "GatherND",
            "x:f i:i",
            {"x": (2, 3), "i": [[1, 1]]},
            {"x": (2, 3), "i": [[1, 1, 1]]},
            name="GatherND rank",
        ),
        _one(
            "ScatterElements",
            "x:f i:i u:f",
            {"x": (2, 3), "i": [[1, 1, 1]], "u": (1, 3)},
            {"x": (2, 3), "i": [[9, 1, 1]], "u": (1, 3)},
            axis=0,
        ),
        _one(
            "ScatterElements",
            "x:f i:i u:f",
            {"x": (2, 3), "i": [[1, 1, 1]], "u": (1, 3)},
            {"x": (2, 3), "i": [[1, 1, 1]], "u": (1, 2)},
            axis=0,
            name="ScatterElements shapes",
        ),
        _one(
            "ScatterND",
            "x:f i:i u:f",
            {"x": (4,), "i": [[1], [2]], "u": (2,)},
            {"x": (4,), "i": [[1], [9]], "u": (2,)},
        ),
        _one(
            "ScatterND",
            "x:f i:i u:f",
            {"x": (4,), "i": [[1], [2]], "u": (2,)},
            {"x": (4,), "i": [[1], [2]], "u": (3,)},
            name="ScatterND shapes",
        ),
        _one(
            "OneHot",
            "i:i d:i",
            {"i": [1, 2], "d": [4]},
            {"i": [1, 2], "d": [-1]},
            order="i d v",
            weights={"v": np.array([0, 1], np.float32)},
        ),
        _one(
            "OneHot",
            "i:i d:i",
            {"i": [1, 2], "d": [4]},
            {"i": [1, 2], "d": [4, 4]},
            order="i d v",
            weights={"v": np.array([0, 1], np.float32)},
            name="OneHot depth",
        ),
    ]
    sized = [
        _one("Reshape", "x:f s:i", {"x": (2, 3), "s": [3, 2]}, {"x": (2, 3), "s": [4, 2]}),
        _one(
            "Reshape",
            "x:f",
            {"x": (2, 3)},
            {"x": (2, 5)},
            order="x s",
            weights={"s": np.array([-1, 3, 2])},
            name="Reshape fixed",
        ),
        _one("Expand", "x:f s:i", {"x": (1, 3), "s": [2, 3]}, {"x": (1, 3), "s": [2, 4]}),
        _one("Tile", "x:f s:i", {"x": (1, 3), "s": [2, 2]}, {"x": (1, 3), "s": [2, 2, 2]}),
        _one(
            "Tile",
            "x:f s:i",
            {"x": (1, 3), "s": [2, 2]},
            {"x": (1, 3), "s": [2, -2]},
            name="Tile negative",
        ),
        _one(
            "Slice",
            "x:f a:i b:i",
            {"x": (4, 3), "a": [0], "b": [2]},
            {"x": (4, 3), "a": [0, 0, 0], "b": [2, 2, 2]},
        ),
        _one(
            "Slice",
            "x:f a:i b:i c:i d:i",
            {"x": (4, 3), "a": [0], "b": [2], "c": [0], "d": [1]},
            {"x": (4, 3), "a": [0], "b": [2], "c": [7], "d": [1]},
            name="Slice axis",
        ),
        _one(
            "Slice",
            "x:f a:i b:i c:i d:i",
            {"x": (4, 3), "a": [0], "b": [2], "c": [0], "d": [1]},
            {"x": (4, 3), "a": [0], "b": [2], "c": [0], "d": [0]},
            name="Slice step",
        ),
        _one(
            "Split",
            "x:f s:i",
            {"x": (4, 3), "s": [1, 3]},
            {"x": (4, 3), "s": [1, 4]},
            outputs="y z",
            axis=0,
        ),
        _one(
            "Split",
            "x:f",
            {"x": (4, 3)},
            {"x": (5, 3)},
            order="x s",
            weights={"s": np.array([1, 3])},
            outputs="y z",
            axis=0,
            name="Split fixed",
        ),
        _one(
            "Squeeze",
            "x:f",
            {"x": (1, 3)},
            {"x": (2, 3)},
            order="x s",
            weights={"s": np.array([0])},
        ),
        _one(
            "Squeeze",
            "x:f s:i",
            {"x": (1, 3), "s": [0]},
            {"x": (1, 3), "s": [5]},
            name="Squeeze axis",
        ),
        _one("Unsqueeze", "x:f s:i", {"x": (1, 3), "s": [0]}, {"x": (1, 3), "s": [7]}),
        _one("Pad", "x:f s:i", {"x": (2, 3), "s": [1, 1, 1, 1]}, {"x": (2, 3), "s": [1, 1, 1]}),
        _one(
            "Pad",
            "x:f s:i",
            {"x": (2, 3), "s": [0, 1, 0, 1]},
            {"x": (2, 3), "s": [0, 9, 0, 9]},
            mode="reflect",
            name="Pad reflect",
        ),
        _one(
            "Pad",
            "x:f s:i",
            {"x": (2, 3), "s": [1, 1, 1, 1]},
            {"x": (2, 3), "s": [-3, -3, -3, -3]},
            name="Pad negative",
        ),
        _one(
            "Resize",
            "x:f s:f",
            {"x": (1, 1, 4, 4), "s": [1, 1, 2, 2]},
            {"x": (1, 1, 4, 4), "s": [1, 1, 2]},
            order="x - s",
        ),
        _one(
            "Resize",
            "x:f s:f",
            {"x": (1, 1, 4, 4), "s": [1, 1, 2, 2]},
            {"x": (1, 1, 4, 4), "s": [1, 1, -2, 2]},
            order="x - s",
            name="Resize scale",
        ),
        _one("Range", "a:i b:i c:i", {"a": 0, "b": 4, "c": 1}, {"a": 0, "b": 4, "c": 0}, out=i64),
        _one("TopK", "x:f k:i", {"x": (2, 3), "k": [2]}, {"x": (2, 3), "k": [9]}, outputs="y z"),
        _one(
            "TopK",
            "x:f",
            {"x": (2, 8)},
            {"x": (2, 3)},
            order="x k",
            weights={"k": np.array([5])},
            outputs="y z",
            name="TopK fixed",
        ),
        _one("ConstantOfShape", "s:i", {"s": [2, 2]}, {"s": [2, -2]}),
        _one("CumSum", "x:f a:n", {"x": (2, 3), "a": 0}, {"x": (2, 3), "a": 7}),
        _one("ReduceSum", "x:f s:i", {"x": (2, 3), "s": [0]}, {"x": (2, 3), "s": [5]}),
        _one("ReduceMax", "x:f", {"x": (2, 3)}, {"x": (0, 3)}, axes=[0]),
        _one("ArgMax", "x:f", {"x": (2, 3)}, {"x": (0, 3)}, axis=0, out=i64),
        _one("DepthToSpace", "x:f", {"x": (1, 4, 2, 2)}, {"x": (1, 6, 2, 2)}, blocksize=2),
        _one("SpaceToDepth", "x:f", {"x": (1, 1, 4, 4)}, {"x": (1, 1, 3, 3)}, blocksize=2),
        _one(
            "ReverseSequence",
            "x:f s:i",
            {"x": (4, 2), "s": [3, 4]},
            {"x": (4, 2), "s": [3, 9]},
            time_axis=0,
            batch_axis=1,
        ),
        _one(
            "ReverseSequence",
            "x:f s:i",
            {"x": (4, 2), "s": [3, 4]},
            {"x": (4, 2), "s": [3, 4, 4]},
            time_axis=0,
            batch_axis=1,
            name="ReverseSequence batch",
        ),
        _one("Det", "x:f", {"x": (3, 3)}, {"x": (3, 4)}),
    ]
    hidden, width = 4, 3
    recurrent = []
    for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        w = {"w": _ones(1, gates * hidden, width), "r": _ones(1, gates * hidden, hidden)}
        recurrent += [
            _one(
                op,
                "x:f",
                {"x": (5, 2, width)},
                {"x": (5, 2, width + 1)},
                order="x w r",
                weights=w,
                hidden_size=hidden,
                name=f"{op} input",
            ),
            _one(
                op,
                "x:f n:n",
                {"x": (5, 2, width), "n": [5, 4]},
                {"x": (5, 2, width), "n": [9, 4]},
                order="x w r - n",
                weights=w,
                hidden_size=hidden,
                name=f"{op} lengths",
            ),
            _one(
                op,
                "x:f n:n",
                {"x": (5, 2, width), "n": [5, 4]},
                {"x": (5, 2, width), "n": [5, 4, 4]},
                order="x w r - n",
                weights=w,
                hidden_size=hidden,
                name=f"{op} lengths batch",
            ),
            _one(
                op,
                "x:f h:f",
                {"x": (5, 2, width), "h": (1, 2, hidden)},
                {"x": (5, 2, width), "h": (1, 3, hidden)},
                order="x w r - - h",
                weights=w,
                hidden_size=hidden,
                name=f"{op} state",
            ),
        ]
    contrib = [
        _one(
            "Attention",
            "x:f m:n",
            {"x": (2, 4, 8), "m": (2, 4)},
            {"x": (2, 4, 8), "m": (2, 7)},
            order="x w b m",
            weights={"w": _ones(8, 24), "b": _ones(24)},
            num_heads=2,
            domain="com.microsoft",
        ),
        _one(
            "Attention",
            "x:f",
            {"x": (2, 4, 8)},
            {"x": (2, 4, 6)},
            order="x w b",
            weights={"w": _ones(8, 24), "b": _ones(24)},
            num_heads=2,
            domain="com.microsoft",
            name="Attention hidden",
        ),
        _one(
            "MultiHeadAttention",
            "q:f k:f v:f",
            {"q": (2, 4, 8), "k": (2, 5, 8), "v": (2, 5, 8)},
            {"q": (2, 4, 8), "k": (2, 5, 8), "v": (2, 6, 8)},
            num_heads=2,
            domain="com.microsoft",
        ),
        _one(
            "MultiHeadAttention",
            "q:f k:f v:f",
            {"q": (2, 4, 8), "k": (2, 5, 8), "v": (2, 5, 8)},
            {"q": (2, 4, 8), "k": (3, 5, 8), "v": (3, 5, 8)},
            num_heads=2,
            domain="com.microsoft",
            name="MultiHeadAttention batch",
        ),
        _one(
            "SkipLayerNormalization",
            "x:f s:f",
            {"x": (2, 4, 8), "s": (2, 4, 8)},
            {"x": (2, 4, 8), "s": (3, 4, 8)},
            order="x s g b",
            weights={"g": _ones(8), "b": _ones(8)},
            domain="com.microsoft",
        ),
        _one(
            "EmbedLayerNormalization",
            "i:n",
            {"i": [[1, 2]]},
            {"i": [[1, 99]]},
            order="i - w p - g b",
            weights={"w": _ones(10, 8), "p": _ones(6, 8), "g": _ones(8), "b": _ones(8)},
            outputs="y m",
            domain="com.microsoft",
        ),
        _one(
            "EmbedLayerNormalization",
            "i:n",
            {"i": [[1, 2]]},
            {"i": [[1] * 9]},
            order="i - w p - g b",
            weights={"w": _ones(10, 8), "p": _ones(6, 8), "g": _ones(8), "b": _ones(8)},
            outputs="y m",
            domain="com.microsoft",
            name="EmbedLayerNormalization positions",
        ),
        _one(
            "FusedMatMul",
            "a:f b:f",
            {"a": (2, 3), "b": (3, 4)},
            {"a": (2, 3), "b": (5, 4)},
            domain="com.microsoft",
        ),
        _one(
            "BiasGelu",
            "a:f b:f",
            {"a": (2, 3), "b": (3,)},
            {"a": (2, 3), "b": (4,)},
            domain="com.microsoft",
        ),
    ]
    text = [
        _one(
            "Cast",
            "x:s",
            {"x": ["1.5"]},
            {"x": ["house"]},
            to=TensorProto.FLOAT,
            name="Cast string",
        ),
        _one(
            "Concat",
            "a:s b:s",
            {"a": (2, 3), "b": (2, 5)},
            {"a": (2, 3), "b": (4, 5)},
            axis=1,
            name="Concat strings",
            out=TensorProto.STRING,
        ),
    ]
    return (
        elementwise
        + joined
        + pooled
        + normal
        + indexed
        + sized
        + recurrent
        + contrib
        + text
        + _in_bodies()
    )
