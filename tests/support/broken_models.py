"""Models with one thing wrong each."""

import itertools
from collections.abc import Sequence

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def value(name: str, *shape: int | str | None, kind: int = FLOAT) -> ValueInfoProto:
    """Return an input or output."""
    return helper.make_tensor_value_info(name, kind, list(shape))


def build(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    weights: Sequence[TensorProto] = (),
    *,
    opset: int = 17,
    ir_version: int = 9,
    domains: Sequence[tuple[str, int]] = (),
) -> ModelProto:
    """Return a model."""
    return helper.make_model(
        helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(weights)),
        opset_imports=[
            helper.make_opsetid("", opset),
            *(helper.make_opsetid(*each) for each in domains),
        ],
        ir_version=ir_version,
    )


def relu(*, opset: int = 17, ir_version: int = 9) -> ModelProto:
    """Return a good model of one node, x [1, 4] to y."""
    return build(
        [helper.make_node("Relu", ["x"], ["y"], name="relu")],
        [value("x", 1, 4)],
        [value("y", 1, 4)],
        opset=opset,
        ir_version=ir_version,
    )


def one_node(op_type: str, domain: str = "", **attributes: str) -> ModelProto:
    """Return x [1, 4] to y through one operator."""
    return build(
        [helper.make_node(op_type, ["x"], ["y"], name="node-1", domain=domain, **attributes)],
        [value("x", 1, 4)],
        [value("y", 1, 4)],
        domains=[(domain, 1)] if domain else [],
    )


def lower_case() -> ModelProto:
    """Return a StringNormalizer to lower case, with a locale that does not exist."""
    text = [helper.make_tensor_value_info(name, TensorProto.STRING, ["n"]) for name in ("x", "y")]
    node = helper.make_node(
        "StringNormalizer", ["x"], ["y"], name="lower", case_change_action="LOWER", locale="xx_XX"
    )
    return build([node], text[:1], text[1:])


def newer_operators(count: int) -> ModelProto:
    """Return nodes of opset 27 behind nodes that any opset has."""
    nodes = [
        helper.make_node("Relu", ["x"], ["x0"], name="old"),
        *(
            helper.make_node("LinearAttention", [f"x{i}"], [f"x{i + 1}"], name=f"new-{i}")
            for i in range(count)
        ),
    ]
    nodes[-1].output[0] = "y"
    return build(nodes, [value("x", 1, 4)], [value("y", 1, 4)], opset=27)


def no_kernel() -> ModelProto:
    """Return an operator that the CPU provider has, for a type that it has it not for."""
    kind = TensorProto.UINT16
    return build(
        [helper.make_node("BitShift", ["x", "x"], ["y"], name="shift", direction="LEFT")],
        [value("x", 4, kind=kind)],
        [value("y", 4, kind=kind)],
    )


def wrong_types() -> ModelProto:
    """Return a sum of float and int64."""
    return build(
        [helper.make_node("Add", ["x", "i"], ["y"], name="sum")],
        [value("x", 1, 4), value("i", 1, 4, kind=TensorProto.INT64)],
        [value("y", 1, 4)],
    )


def cyclic() -> ModelProto:
    """Return two nodes that depend on each other."""
    return build(
        [
            helper.make_node("Add", ["x", "b"], ["a"], name="first"),
            helper.make_node("Relu", ["a"], ["b"], name="second"),
        ],
        [value("x", 1, 4)],
        [value("b", 1, 4)],
    )


def unsorted() -> ModelProto:
    """Return two nodes in the wrong order, which ONNX Runtime accepts and onnx.checker rejects."""
    return build(
        [
            helper.make_node("Relu", ["a"], ["y"], name="second"),
            helper.make_node("Relu", ["x"], ["a"], name="first"),
        ],
        [value("x", 1, 4)],
        [value("y", 1, 4)],
    )


def sequence_output() -> ModelProto:
    """Return a model whose only output is no tensor."""
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, [1, 4]))
    return build(
        [helper.make_node("SequenceConstruct", ["x"], ["y"], name="sequence")],
        [value("x", 1, 4)],
        [helper.make_value_info("y", kind)],
    )


def external(location: str, *, length: int = 64, offset: int = 0) -> ModelProto:
    """Return x [1, 4] to y = x @ w [4, 4], with w outside."""
    weight = TensorProto(name="w", data_type=FLOAT, dims=[4, 4])
    weight.data_location = TensorProto.EXTERNAL
    for key, entry in (("location", location), ("offset", str(offset)), ("length", str(length))):
        weight.external_data.add(key=key, value=entry)
    return build(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        [value("x", 1, 4)],
        [value("y", 1, 4)],
        [weight],
    )


def weights() -> bytes:
    """Return the external data that `external` requires."""
    return np.eye(4, dtype=np.float32).tobytes()


def open_dimensions(*shape: int | str | None, name: str = "x") -> ModelProto:
    """Return the identity over a float input of `shape`."""
    return build(
        [helper.make_node("Relu", [name], ["y"], name="relu")],
        [value(name, *shape)],
        [value("y", *shape)],
    )


def fixed_batch() -> ModelProto:
    """Return a model with a dynamic batch that is reshaped to a fixed one."""
    shape = numpy_helper.from_array(np.array([1, 4], np.int64), "shape")
    return build(
        [helper.make_node("Reshape", ["x", "shape"], ["y"], name="reshape")],
        [value("x", "batch", 4)],
        [value("y", 1, 4)],
        [shape],
    )


def embedding(rows: int) -> ModelProto:
    """Return a table of `rows` rows looked up with int64 indices [batch, 3]."""
    table = numpy_helper.from_array(np.arange(rows * 2, dtype=np.float32).reshape(rows, 2), "table")
    return build(
        [helper.make_node("Gather", ["table", "i"], ["y"], name="lookup")],
        [value("i", "batch", 3, kind=TensorProto.INT64)],
        [value("y", "batch", 3, 2)],
        [table],
    )


def not_finite() -> ModelProto:
    """Return the logarithm of a negative number."""
    return build(
        [
            helper.make_node("Abs", ["x"], ["a"]),
            helper.make_node("Neg", ["a"], ["b"]),
            helper.make_node("Sub", ["b", "one"], ["c"]),
            helper.make_node("Log", ["c"], ["y"]),
        ],
        [value("x", 1, 4)],
        [value("y", 1, 4)],
        [numpy_helper.from_array(np.ones(1, np.float32), "one")],
    )


def random_output() -> ModelProto:
    """Return random noise and the identity."""
    return build(
        [
            helper.make_node("RandomNormalLike", ["x"], ["noise"]),
            helper.make_node("Relu", ["x"], ["y"]),
        ],
        [value("x", 1, 400)],
        [value("noise", 1, 400), value("y", 1, 400)],
    )


def costly(layers: int) -> ModelProto:
    """Return that many matrix products, each of which takes tens of milliseconds on a CPU."""
    states = ["x", *(f"state{number}" for number in range(layers))]
    nodes = [
        node
        for before, after in itertools.pairwise(states)
        for node in (
            helper.make_node("MatMul", [before, "m"], [f"{after}_product"]),
            helper.make_node("Tanh", [f"{after}_product"], [after]),
        )
    ]
    return build(
        nodes,
        [value("x", 1024, 1024)],
        [value(states[-1], 1024, 1024)],
        [numpy_helper.from_array(np.eye(1024, dtype=np.float32), "m")],
    )


def endless() -> ModelProto:
    """Return a loop that takes many minutes."""
    return looping(10**9)


def looping(turns: int) -> ModelProto:
    """Return a loop of that many matrix products, each of which takes about a millisecond."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "m"], ["product"]),
            helper.make_node("Tanh", ["product"], ["next"]),
            helper.make_node("Identity", ["go"], ["go_on"]),
        ],
        "body",
        [
            value("turn", kind=TensorProto.INT64),
            value("go", kind=TensorProto.BOOL),
            value("state", 256, 256),
        ],
        [value("go_on", kind=TensorProto.BOOL), value("next", 256, 256)],
    )
    return build(
        [
            helper.make_node("Loop", ["count", "", "x"], ["state_out"], body=body),
            helper.make_node("ReduceSum", ["state_out"], ["y"], keepdims=0),
        ],
        [value("x", 256, 256)],
        [value("y")],
        [
            numpy_helper.from_array(np.eye(256, dtype=np.float32), "m"),
            numpy_helper.from_array(np.array(turns, np.int64), "count"),
        ],
    )


def no_inputs() -> ModelProto:
    """Return a model with constant outputs."""
    return build([helper.make_node("Constant", [], ["y"], value_floats=[1.0])], [], [value("y", 1)])


def newer_domain() -> ModelProto:
    """Return a scaler of a version of ai.onnx.ml that is to come."""
    node = helper.make_node("Normalizer", ["x"], ["y"], domain="ai.onnx.ml", norm="L2")
    return build([node], [value("x", 1, 4)], [value("y", 1, 4)], domains=[("ai.onnx.ml", 99)])


def enormous() -> ModelProto:
    """Return a model that requires 256 TiB for its output."""
    shape = numpy_helper.from_array(np.array([1 << 16, 1 << 30, 1], np.int64), "shape")
    node = helper.make_node("Expand", ["x", "shape"], ["y"], name="expand")
    return build([node], [value("x", 1)], [value("y", None, None, None)], [shape])


def lying_shape() -> ModelProto:
    """Return a model that says that it gives [1, 8] and gives [2, 4], behind what hides it."""
    return build(
        [
            helper.make_node("NonZero", ["x"], ["where"]),
            helper.make_node("Transpose", ["where"], ["pairs"]),
            helper.make_node("GatherND", ["x", "pairs"], ["flat"]),
            helper.make_node("Reshape", ["flat", "shape"], ["y"]),
        ],
        [value("x", 2, 4)],
        [value("y", 1, 8)],
        [numpy_helper.from_array(np.array([2, -1], np.int64), "shape")],
    )


def lying_name() -> ModelProto:
    """Return a model whose output's first dimension is called `batch` and is always 3."""
    return build(
        [helper.make_node("Expand", ["x", "shape"], ["y"])],
        [value("x", "batch", 4)],
        [value("y", "batch", 4)],
        [numpy_helper.from_array(np.array([3, 4], np.int64), "shape")],
    )


def nan_weight(*, spread: bool) -> ModelProto:
    """Return a product with weights that are NaN; unless `spread`, a second output is without."""
    weight = numpy_helper.from_array(np.full((4, 4), np.nan, np.float32), "w")
    product = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    if spread:
        return build([product], [value("x", 1, 4)], [value("y", 1, 4)], [weight])
    relu = helper.make_node("Relu", ["x"], ["z"], name="relu")
    return build(
        [product, relu], [value("x", 1, 4)], [value("y", 1, 4), value("z", 1, 4)], [weight]
    )


def halves_and_strings(*others: str) -> ModelProto:
    """Return a model with an input of BF16, one of strings and an output of BF16: the first, doubled.

    Further outputs are `float`, the same as FP32, and `text`, the strings.
    """
    half, string = TensorProto.BFLOAT16, TensorProto.STRING
    kinds = {"half": half, "float": FLOAT, "text": string}
    nodes = [
        helper.make_node("Cast", ["b"], ["wide"], to=FLOAT, name="widen"),
        helper.make_node("Add", ["wide", "wide"], ["float"], name="add"),
        helper.make_node("Cast", ["float"], ["half"], to=half, name="narrow"),
        helper.make_node("Identity", ["s"], ["text"], name="text"),
    ]
    return build(
        nodes,
        [value("b", 2, kind=half), value("s", 2, kind=string)],
        [value(name, 2, kind=kinds[name]) for name in ("half", *others)],
    )
