"""Models with one thing wrong each."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import (
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
    parser,
)

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
    return helper.make_model(
        helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(weights)),
        opset_imports=[
            helper.make_opsetid("", opset),
            *(helper.make_opsetid(*domain) for domain in domains),
        ],
        ir_version=ir_version,
    )


def parse_text(
    text: str,
    *weights: TensorProto,
    opset: int = 17,
    ir_version: int = 9,
    domains: Sequence[tuple[str, int]] = (),
) -> ModelProto:
    """Return a model of `(inputs) => (outputs) { nodes }`, in ONNX's text form."""
    imports = ", ".join(f'"{domain}": {version}' for domain, version in (("", opset), *domains))
    header = f"<ir_version: {ir_version}, opset_import: [{imports}]>"
    model = parser.parse_model(f"{header} graph {text}")
    model.graph.initializer.extend(weights)
    return model


def extend(model: ModelProto, text: str, *weights: TensorProto) -> None:
    """Append nodes, inputs, outputs and weights, written as `parsed` takes them, to a model."""
    made = parse_text(text, *weights).graph
    for field in ("node", "input", "output", "initializer"):
        getattr(model.graph, field).extend(getattr(made, field))


def initializer(name: str, numbers: Any, kind: Any = np.float32) -> TensorProto:
    return numpy_helper.from_array(np.array(numbers, kind), name)


def relu(*, opset: int = 17, ir_version: int = 9) -> ModelProto:
    """Return a good model of one node, x [1, 4] to y."""
    text = "(float[1, 4] x) => (float[1, 4] y) { [relu] y = Relu(x) }"
    return parse_text(text, opset=opset, ir_version=ir_version)


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
    return parse_text(
        """(string[n] x) => (string[n] y) {
        [lower] y = StringNormalizer <case_change_action = "LOWER", locale = "xx_XX"> (x) }"""
    )


def newer_operators(count: int) -> ModelProto:
    """Return nodes of opset 27 behind nodes that any opset has."""
    names = [*(f"x{index}" for index in range(count)), "y"]
    model = parse_text("(float[1, 4] x) => (float[1, 4] y) { [old] x0 = Relu(x) }", opset=27)
    model.graph.node.extend(
        helper.make_node("LinearAttention", [before], [after], name=f"new-{index}")
        for index, (before, after) in enumerate(itertools.pairwise(names))
    )
    return model


def no_kernel() -> ModelProto:
    """Return an operator that the CPU provider has, for a type that it has it not for."""
    return parse_text(
        """(uint16[4] x) => (uint16[4] y) { [shift] y = BitShift <direction = "LEFT"> (x, x) }"""
    )


def wrong_types() -> ModelProto:
    """Return a sum of float and int64."""
    return parse_text("(float[1, 4] x, int64[1, 4] i) => (float[1, 4] y) { [sum] y = Add(x, i) }")


def cyclic() -> ModelProto:
    """Return two nodes that depend on each other."""
    return parse_text(
        "(float[1, 4] x) => (float[1, 4] b) { [first] a = Add(x, b) [second] b = Relu(a) }"
    )


def build_unsorted() -> ModelProto:
    """Return two nodes in the wrong order, which ONNX Runtime accepts and onnx.checker rejects."""
    return parse_text(
        "(float[1, 4] x) => (float[1, 4] y) { [second] y = Relu(a) [first] a = Relu(x) }"
    )


def sequence_output() -> ModelProto:
    """Return a model whose only output is no tensor."""
    return parse_text(
        "(float[1, 4] x) => (seq(float[1, 4]) y) { [sequence] y = SequenceConstruct(x) }"
    )


def external(location: str, *, length: int = 64, offset: int = 0) -> ModelProto:
    """Return x [1, 4] to y = x @ w [4, 4], with w outside."""
    weight = TensorProto(name="w", data_type=FLOAT, dims=[4, 4])
    weight.data_location = TensorProto.EXTERNAL
    for key, entry in (("location", location), ("offset", str(offset)), ("length", str(length))):
        weight.external_data.add(key=key, value=entry)
    return parse_text("(float[1, 4] x) => (float[1, 4] y) { [product] y = MatMul(x, w) }", weight)


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


def fix_batch() -> ModelProto:
    """Return a model with a dynamic batch that is reshaped to a fixed one."""
    text = "(float[batch, 4] x) => (float[1, 4] y) { [reshape] y = Reshape(x, shape) }"
    return parse_text(text, initializer("shape", [1, 4], np.int64))


def embedding(rows: int) -> ModelProto:
    """Return a table of `rows` rows looked up with int64 indices [batch, 3]."""
    text = "(int64[batch, 3] i) => (float[batch, 3, 2] y) { [lookup] y = Gather(table, i) }"
    return parse_text(text, initializer("table", np.arange(rows * 2).reshape(rows, 2)))


def not_finite() -> ModelProto:
    """Return the logarithm of a negative number, and a product."""
    text = """(float[1, 4] x) => (float[1, 4] y, float[1, 4] z) {
    a = Abs(x) b = Neg(a) c = Sub(b, one) y = Log(c) [product] z = MatMul(x, w) }"""
    return parse_text(text, initializer("one", [1]), initializer("w", np.eye(4) + 0.5))


def random_output() -> ModelProto:
    """Return random noise and the identity."""
    return parse_text(
        """(float[1, 400] x) => (float[1, 400] noise, float[1, 400] y) {
        noise = RandomNormalLike(x) y = Relu(x) }"""
    )


def costly(layers: int) -> ModelProto:
    """Return that many matrix products, each of which takes tens of milliseconds on a CPU."""
    states = ["x", *(f"state{number}" for number in range(layers))]
    nodes = " ".join(
        f"{after}_product = MatMul({before}, m) {after} = Tanh({after}_product)"
        for before, after in itertools.pairwise(states)
    )
    text = f"(float[1024, 1024] x) => (float[1024, 1024] {states[-1]}) {{ {nodes} }}"
    return parse_text(text, initializer("m", np.eye(1024)))


def endless() -> ModelProto:
    """Return a loop that takes many minutes."""
    return looping(10**9)


def looping(turns: int) -> ModelProto:
    """Return a loop of that many matrix products, each of which takes about a millisecond."""
    text = """(float[256, 256] x) => (float y) {
    state_out = Loop (count, , x) <body = body
        (int64 turn, bool go, float[256, 256] state) => (bool go_on, float[256, 256] next) {
            product = MatMul(state, m) next = Tanh(product) go_on = Identity(go) }>
    y = ReduceSum <keepdims = 0> (state_out) }"""
    return parse_text(text, initializer("m", np.eye(256)), initializer("count", turns, np.int64))


def no_inputs() -> ModelProto:
    """Return a model with constant outputs."""
    return parse_text("() => (float[1] y) { y = Constant <value_floats = [1.0]> () }")


def newer_domain() -> ModelProto:
    """Return a scaler of a version of ai.onnx.ml that is to come."""
    text = """(float[1, 4] x) => (float[1, 4] y) { y = ai.onnx.ml.Normalizer <norm = "L2"> (x) }"""
    return parse_text(text, domains=[("ai.onnx.ml", 99)])


def enormous() -> ModelProto:
    """Return a model that requires 256 TiB for its output."""
    text = "(float[1] x) => (float[?, ?, ?] y) { [expand] y = Expand(x, shape) }"
    return parse_text(text, initializer("shape", [1 << 16, 1 << 30, 1], np.int64))


def lying_shape() -> ModelProto:
    """Return a model that says that it gives [1, 8] and gives [2, 4], behind what hides it."""
    text = """(float[2, 4] x) => (float[1, 8] y) {
    where = NonZero(x) pairs = Transpose(where) flat = GatherND(x, pairs) y = Reshape(flat, shape) }"""
    return parse_text(text, initializer("shape", [2, -1], np.int64))


def lying_name() -> ModelProto:
    """Return a model whose output's first dimension is called `batch` and is always 3."""
    text = "(float[batch, 4] x) => (float[batch, 4] y) { y = Expand(x, shape) }"
    return parse_text(text, initializer("shape", [3, 4], np.int64))


def nan_weight(*, spread: bool) -> ModelProto:
    """Return a product with weights that are NaN; unless `spread`, a second output is without."""
    other, node = ("", "") if spread else (", float[1, 4] z", "[relu] z = Relu(x)")
    text = f"(float[1, 4] x) => (float[1, 4] y{other}) {{ [product] y = MatMul(x, w) {node} }}"
    return parse_text(text, initializer("w", np.full((4, 4), np.nan)))


def halves_and_strings(*others: str) -> ModelProto:
    """Return a model with an input of BF16, one of strings and an output of BF16: the first, doubled.

    Further outputs are `float`, the same as FP32, and `text`, the strings.
    """
    kinds = {"float": FLOAT, "text": TensorProto.STRING}
    model = parse_text(
        """(bfloat16[2] b, string[2] s) => (bfloat16[2] half) {
        [widen] wide = Cast <to = 1> (b) [add] float = Add(wide, wide)
        [narrow] half = Cast <to = 16> (float) [text] text = Identity(s) }"""
    )
    model.graph.output.extend(value(name, 2, kind=kinds[name]) for name in others)
    return model


def save(model: ModelProto, folder: Path) -> Path:
    """Write a model into a folder; return its path."""
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path
