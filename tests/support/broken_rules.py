"""One model, or more, for every rule that needs no session; and good models that look like them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from enginewright_runtime.rules.types import DECLARE_OUTPUTS
from onnx import (
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    helper,
    numpy_helper,
)

from tests.support import broken_models as broken
from tests.support import hostile
from tests.support.broken_models import FLOAT, build, value

N = helper.make_node
X, Y = value("x", 1, 4), value("y", 1, 4)
BOOL, INT64, HALF, DOUBLE = (
    TensorProto.BOOL,
    TensorProto.INT64,
    TensorProto.FLOAT16,
    TensorProto.DOUBLE,
)


@dataclass(frozen=True)
class Broken:
    """A model with one thing wrong."""

    rule: str
    model: Callable[[], ModelProto]
    reported: str  # part of the message
    severity: str = "error"
    backend: str = "cpu"
    precision: str | None = None
    nodes: int = 0
    remedy: str | None = None  # in place of the rule's
    files: Callable[[Path], None] | None = None  # writes files next to the model
    refused: bool = True  # ONNX Runtime refuses it too, where it is an error
    also: frozenset[str] = field(default_factory=frozenset)  # rules that it breaks as well


def array(name: str, *numbers: float, kind: type[np.generic] = np.float32) -> TensorProto:
    """Return an initializer of one dimension."""
    return numpy_helper.from_array(np.array(numbers, kind), name)


def scalar(name: str, number: float, kind: type[np.generic]) -> TensorProto:
    """Return an initializer without dimensions."""
    return numpy_helper.from_array(np.array(number, kind), name)


def round_to_bits(zero_point: int, kind: type[np.generic]) -> ModelProto:
    """Return x rounded to eight bits and back."""
    return build(
        [
            N("QuantizeLinear", ["x", "scale", "zero"], ["q"], name="quantize"),
            N("DequantizeLinear", ["q", "scale", "zero"], ["y"], name="dequantize"),
        ],
        [X],
        [Y],
        [scalar("scale", 0.1, np.float32), scalar("zero", zero_point, kind)],
    )


def chain(*ops: str, names: Sequence[str] = ()) -> list[NodeProto]:
    """Return nodes from x to y, one after the other."""
    values = ["x", *(f"v{index}" for index in range(1, len(ops))), "y"]
    return [
        N(op, [values[index]], [values[index + 1]], name=names[index] if names else "")
        for index, op in enumerate(ops)
    ]


def simple(*ops: str, names: Sequence[str] = (), weights: Sequence[TensorProto] = ()) -> ModelProto:
    return build(chain(*ops, names=names), [X], [Y], weights)


def with_weight(op: str, weight: TensorProto) -> ModelProto:
    """Return y = op(x, weight), in the type of the weight."""
    node = N(op, ["x", weight.name], ["y"], name="node-1")
    kind = weight.data_type
    return build(
        [node], [value("x", 1, 4, kind=kind)], [value("y", None, None, kind=kind)], [weight]
    )


def change_model(model: ModelProto, change: Callable[[ModelProto], object]) -> ModelProto:
    """Return the model after a change in place."""
    change(model)
    return model


def branches(then: list[NodeProto], then_out: str, *, condition: str = "c") -> NodeProto:
    """Return an If whose other branch is Relu(x)."""
    first = helper.make_graph(then, "then", [], [value(then_out, 1, 4)])
    other = helper.make_graph([N("Relu", ["x"], ["e"])], "else", [], [value("e", 1, 4)])
    return N("If", [condition], ["y"], name="if-1", then_branch=first, else_branch=other)


def conditional(
    then: list[NodeProto], then_out: str, before: Sequence[NodeProto] = ()
) -> ModelProto:
    """Return a model that ends with an If on its input c."""
    condition = value("c", kind=BOOL)
    return build([*before, branches(then, then_out)], [X, condition], [Y])


def cast_of(number: float, kind: type[np.generic], to: int) -> ModelProto:
    """Return y = x * Cast(constant)."""
    nodes = [N("Cast", ["k"], ["cast"], name="cast-1", to=to), N("Relu", ["x"], ["y"])]
    made = numpy_helper.from_array(np.array([number], kind), "k")
    return build(nodes, [X], [Y, value("cast", 1, kind=to)], [made])


def batch_norm(variance: float, *, training: bool = False) -> ModelProto:
    """Return a BatchNormalization; one that trains has three outputs."""
    weights = [array(name, *[1.0] * 4) for name in ("scale", "bias", "mean")]
    weights.append(array("variance", variance, 1, 1, 1))
    outputs = ["y", "m", "v"] if training else ["y"]
    node = N("BatchNormalization", ["x", "scale", "bias", "mean", "variance"], outputs,
             name="norm-1", training_mode=int(training))  # fmt: skip
    return build([node], [X], [Y], weights)


def dropout(*, training: bool, opset: int = 17) -> ModelProto:
    """Return a Dropout with its mode as an initializer."""
    weights = [scalar("ratio", 0.5, np.float32), scalar("mode", training, np.bool_)]
    node = N("Dropout", ["x", "ratio", "mode"], ["y"], name="drop-1")
    return build([node], [X], [Y], weights, opset=opset)


def zipmap() -> ModelProto:
    """Return a classifier like those that scikit-learn's exporter creates by default."""
    node = N("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2, 3])
    kind = helper.make_map_type_proto(INT64, helper.make_tensor_type_proto(FLOAT, []))
    output = helper.make_value_info("y", helper.make_sequence_type_proto(kind))
    return build([node], [X], [output], domains=[("ai.onnx.ml", 3)])


def build_typed(kind: int, op: str = "Identity") -> ModelProto:
    """Return a model whose input and output are of one type."""
    return build([N(op, ["x"], ["y"], name="node-1")], [value("x", 1, 4, kind=kind)],
                 [value("y", 1, 4, kind=kind)])  # fmt: skip


def sparse() -> ModelProto:
    weight = SparseTensorProto(dims=[4])
    weight.values.CopyFrom(array("w", 5.0))
    weight.indices.CopyFrom(array("w_indices", 2, kind=np.int64))
    model = build([N("Add", ["x", "w"], ["y"], name="sum")], [X], [Y])
    model.graph.sparse_initializer.append(weight)
    return model


def loop(inner: str = "s") -> ModelProto:
    """Return a Loop whose body calls its state `inner`."""
    body = helper.make_graph(
        [N("Identity", ["go"], ["on"]), N("Relu", [inner], ["next"])],
        "body",
        [value("turn", kind=INT64), value("go", kind=BOOL), value(inner, 1, 4)],
        [value("on", kind=BOOL), value("next", 1, 4)],
    )
    nodes = [N("Relu", ["x"], ["k"]), N("Loop", ["n", "", "k"], ["y"], name="loop-1", body=body)]
    return build(nodes, [X], [Y], [scalar("n", 2, np.int64)])


def ranks_differ() -> ModelProto:
    """Return an If whose branches have two dimensions or one."""
    node = branches([N("Reshape", ["x", "flat"], ["t"])], "t")
    node.attribute[0].g.output[0].type.tensor_type.shape.dim.pop()
    model = build([node], [X, value("c", kind=BOOL)], [value("y", None)])
    model.graph.initializer.append(array("flat", 4, kind=np.int64))
    return model


def wide_name(letter: str, count: int) -> ModelProto:
    """Return a model whose input has a long name."""
    name = letter * count
    return build([N("Relu", [name], ["y"])], [value(name, 1, 4)], [Y])


def two_inputs(first: str, second: str) -> ModelProto:
    """Return the sum of two inputs."""
    return build([N("Add", [first, second], ["y"])], [value(first, 1, 4), value(second, 1, 4)], [Y])


def not_text() -> ModelProto:
    """Return a model whose node has a name of Latin-1, as a C++ exporter may write it."""
    content = simple("Relu", names=["n?n"]).SerializeToString()
    model = ModelProto()
    model.ParseFromString(content.replace(b"n?n", b"n\xe4n"))
    return model


def _link(folder: Path, target: str) -> None:
    (folder / "w.bin").symlink_to(target)


def _weights(folder: Path) -> None:
    (folder / "w.bin").write_bytes(broken.weights())


def _weights_in(folder: Path) -> None:
    folder.mkdir()
    _weights(folder)


def _link_inside(folder: Path) -> None:
    (folder / "blob").write_bytes(broken.weights())
    _link(folder, "blob")


def _link_outside(folder: Path) -> None:
    outside = folder.parent / "blobs"
    outside.mkdir()
    (outside / "w").write_bytes(broken.weights())
    _link(folder, "../blobs/w")


BROKEN = (
    Broken("recursive-function", lambda: hostile.functions({"F0": ["F0"]}), "F0 > F0"),
    Broken("recursive-function", lambda: hostile.functions({"F0": ["F1"], "F1": ["F0"]}),
           "F0 > F1 > F0"),
    Broken("cycle", broken.cyclic, "these nodes form a cycle: ", nodes=2),
    Broken("cycle", lambda: conditional(
        [N("Add", ["x", "b"], ["a"]), N("Relu", ["a"], ["b"])], "b"), "(Add)", nodes=2),
    Broken("undefined-value", lambda: build([N("Add", ["x", "gone"], ["y"], name="sum")], [X], [Y]),
           "read by sum (Add) and defined nowhere: 'gone'", nodes=1),
    Broken("undefined-value", lambda: build(chain("Relu"), [X], [Y, value("z", 1)]), "'z'"),
    Broken("undefined-value", lambda: conditional(
        [N("Relu", ["x"], ["q"])], "k", [N("Relu", ["x"], ["k"])]), "'k'"),
    Broken("no-inputs", broken.no_inputs, "has no inputs", refused=False),
    Broken("empty-name", lambda: build([N("Relu", [""], ["y"], name="n")], [X], [Y]),
           "omit required inputs or outputs: n (Relu)", nodes=1),
    Broken("empty-name", lambda: build([N("Relu", ["x"], [""], name="n"), *chain("Relu")], [X], [Y]),
           "n (Relu)", nodes=1),
    Broken("empty-name", lambda: build(chain("Relu"), [X, value("", 1)], [Y]),
           "an input of the model has no name", refused=False),
    Broken("empty-name", lambda: build(chain("Relu"), [X], [Y, value("", 1)]), "an output"),
    Broken("duplicate-value", lambda: build(
        [N("Relu", ["x"], ["a"]), N("Abs", ["x"], ["a"]), N("Relu", ["a"], ["y"])], [X], [Y]),
           "defined more than once: 'a'"),
    Broken("duplicate-value", lambda: build([N("Relu", ["x"], ["x"]), *chain("Relu")], [X], [Y]),
           "'x'", also=frozenset({"cycle"})),
    Broken("duplicate-value", lambda: build(
        [N("Relu", ["x"], ["w"]), N("Relu", ["w"], ["y"])], [X], [Y], [array("w", 1)]), "'w'"),
    Broken("duplicate-value", lambda: build(chain("Relu"), [X, X], [Y]), "'x'"),
    Broken("duplicate-value", lambda: conditional(
        [N("Relu", ["x"], ["k"])], "k", [N("Relu", ["x"], ["k"])]), "'k'"),
    Broken("duplicate-node-name", lambda: simple("Relu", "Abs", names=["n", "n"]),
           "same name: n (Relu), n (Abs)", nodes=2),
    Broken("control-character", hostile.escapes_in_input, r"'\x1b[31mFoo", refused=False),
    Broken("control-character", lambda: simple("Relu", names=["a\nb"]), r"'a\nb'", refused=False),
    Broken("not-text", not_text, r"names are not UTF-8: b'n\xe4n'", refused=False),
    Broken("tensor-shape", lambda: hostile.huge_tensor(-1), "w [-1]"),
    Broken("tensor-shape", lambda: hostile.huge_tensor(2**62, 2**62), "w [4611686018427387904, "),
    Broken("tensor-shape", lambda: hostile.huge_tensor(2**32, 2**32), "w [4294967296, "),
    Broken("tensor-shape", lambda: change_model(
        hostile.huge_tensor(1), lambda model: setattr(model.graph.initializer[0], "data_type", 99)),
           "w (type 99)"),
    Broken("tensor-data", lambda: hostile.huge_tensor(4), "w (4 bytes of 16)"),
    Broken("tensor-data", lambda: with_weight("Add", TensorProto(
        name="w", data_type=FLOAT, dims=[4], float_data=[1, 2])), "w (2 values of 4)"),
    Broken("input-too-large", lambda: hostile.huge_input(2**40, 2**40), "at its smallest",
           refused=False),
    Broken("input-not-servable", lambda: build_typed(TensorProto.FLOAT8E4M3FN), "'x' (float8_e4m3fn)",
           refused=False, also=frozenset({"no-servable-output"})),
    Broken("input-not-servable", hostile.build_untyped_input, "'x' (unknown)"),
    Broken("input-not-servable", lambda: build(
        [N("OptionalGetElement", ["x"], ["y"])], [helper.make_value_info(
            "x", helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [1, 4])))],
        [Y], opset=18), "'x' (optional)", refused=False),
    Broken("no-servable-output", broken.sequence_output, "'y' (sequence)", refused=False),
    Broken("no-servable-output", zipmap, "'y' (sequence)", refused=False),
    Broken("no-servable-output", lambda: build([N("Relu", ["x"], ["y"])], [X], []),
           "its graph declares no outputs", refused=False, remedy=DECLARE_OUTPUTS),
    Broken("no-servable-output", broken.halves_and_strings,
           "'half' (bfloat16 beside the strings of input 's')", refused=False),
    Broken("external-data-outside", lambda: broken.external("../w.bin"), "w ('../w.bin')"),
    Broken("external-data-outside", lambda: broken.external("/dev/zero"), "w ('/dev/zero')"),
    Broken("external-data-outside", lambda: broken.external("/proc/self/mem"), "/proc/self/mem"),
    Broken("external-data-outside", lambda: broken.external("w.bin"), "w ('w.bin')",
           files=_link_outside),
    Broken("external-data-missing", lambda: broken.external("w.bin"),
           "external data file 'w.bin', with 1 tensor, is not in"),
    Broken("external-data-irregular", lambda: broken.external("w.bin"), "not a regular file: 'w.bin'",
           files=lambda folder: (folder / "w.bin").mkdir()),
    Broken("external-data-stretch", lambda: broken.external("w.bin", length=128),
           "length 128, but its shape needs 64 bytes", files=_weights),
    Broken("external-data-stretch", lambda: broken.external("w.bin", offset=-8),
           "offset '-8' is not a number of bytes", files=_weights),
    Broken("external-data-stretch", lambda: broken.external("w.bin", offset=2**64 - 64),
           "offset '18446744073709551552'", files=_weights),
    Broken("external-data-short", lambda: broken.external("w.bin", offset=4),
           "w (w.bin has 64 bytes of 68)", files=_weights),
    Broken("external-data-short", lambda: broken.external("w.bin", offset=2**63 - 64),
           "has 64 bytes of 9223372036854775808", files=_weights),
    Broken("external-data-linked", lambda: broken.external("w.bin"), "symbolic link",
           severity="warning", files=_link_inside),
    Broken("no-opset-import", lambda: change_model(
        simple("Relu"), lambda model: model.ClearField("opset_import")), "imports no operator set"),
    Broken("opset-not-imported", lambda: build(
        [N("Normalizer", ["x"], ["y"], name="n", domain="ai.onnx.ml", norm="L2")], [X], [Y]),
           "'ai.onnx.ml'", severity="warning", nodes=1),
    Broken("opset-imported-twice", lambda: build(chain("Relu"), [X], [Y], domains=[("ai.onnx", 13)]),
           "versions 13 and 17 of ai.onnx", severity="warning"),
    Broken("training-operator", lambda: broken.one_node("Adam", "ai.onnx.preview.training"),
           "exported for training: node-1 (Adam)", nodes=1),
    Broken("custom-domain", lambda: broken.one_node("FooBar", "my.ops"),
           "domain 'my.ops' are not in the runtime image: node-1 (FooBar)", nodes=1),
    Broken("unknown-operator", lambda: broken.one_node("FooBar"),
           "has no operator for node-1 (FooBar)", nodes=1),
    Broken("unknown-operator", lambda: broken.one_node("FooBar", "com.microsoft"),
           "node-1 (FooBar)", nodes=1),
    Broken("unknown-operator", lambda: broken.one_node("FooBar"), "supports them is found on its device",
           severity="warning", backend="tensorrt", nodes=1),
    Broken("unknown-operator", lambda: broken.one_node("Gelu"),
           "node-1 (Gelu): the model imports opset 17, which is older than these operators", nodes=1,
           remedy="export with opset 20 or newer"),
    Broken("unknown-operator", lambda: broken.one_node("TreeEnsemble", "ai.onnx.ml"),
           "the model imports opset 1, which is older than these operators", nodes=1,
           remedy="export with opset 5 of ai.onnx.ml or newer"),
    Broken("deprecated-operator", lambda: build(
        [N("Scatter", ["x", "i", "x"], ["y"], name="s")], [X], [Y],
        [numpy_helper.from_array(np.zeros((1, 4), np.int64), "i")], opset=11),
           "opset 11 no longer has these operators: s (Scatter)", nodes=1),
    Broken("experimental-operator", lambda: broken.one_node("Foo", "com.microsoft.experimental"),
           "node-1 (Foo)", severity="warning", nodes=1, also=frozenset({"custom-domain"})),
    Broken("random-operator", lambda: broken.one_node("RandomNormalLike"), "draws random numbers",
           severity="warning", nodes=1),
    Broken("training-mode", lambda: dropout(training=True), "drop-1 (Dropout)", severity="warning",
           nodes=1),
    Broken("training-mode", lambda: batch_norm(1.0, training=True), "norm-1 (BatchNormalization)",
           severity="warning", nodes=1),
    Broken("nan-in-weights", lambda: with_weight("MatMul", numpy_helper.from_array(
        np.array([[1, np.nan]] * 4, np.float32), "w")), "w (4 of 8 values)", severity="warning"),
    Broken("nan-in-weights", lambda: with_weight("Add", array("w", 1, np.nan, 1, 1)),
           "w (1 of 4 values)", severity="warning"),
    Broken("nan-in-weights", lambda: with_weight("MatMul", helper.make_tensor(
        "w", TensorProto.BFLOAT16, [4, 1], [1, float("nan"), 1, 1])), "w (1 of 4 values)",
           severity="warning"),
    Broken("infinity-in-weights", lambda: with_weight("MatMul", numpy_helper.from_array(
        np.array([[1, np.inf]] * 4, np.float16), "w")), "w (4 of 8 values)", severity="warning",
           nodes=1),
    Broken("infinity-in-weights", lambda: batch_norm(np.inf), "variance (1 of 4 values)",
           severity="warning", nodes=1),
    Broken("half-overflow", lambda: cast_of(1e5, np.float32, HALF), "100000 before cast-1 (Cast)",
           severity="warning", nodes=1),
    Broken("half-overflow", lambda: with_weight("Mul", array("w", np.inf, 1, 1, 1, kind=np.float16)),
           "infinity in node-1 (Mul)", severity="warning", nodes=1),
    Broken("half-range", lambda: batch_norm(97903600.0), "variance (up to 9.79036e+07)",
           severity="warning", precision="FP16", nodes=1),
    Broken("integer-overflow", lambda: cast_of(2**40, np.int64, TensorProto.INT32),
           "1099511627776 to int32 in cast-1 (Cast)", severity="warning", nodes=1),
    Broken("integer-narrowed", lambda: build(
        [N("Add", ["x", "w"], ["y"])], [value("x", 1, 4, kind=INT64)], [value("y", 1, 4, kind=INT64)],
        [array("w", 2**40, kind=np.int64)]), "w (1099511627776)", severity="warning",
           backend="openvino"),
    Broken("float64", lambda: build_typed(DOUBLE, "Relu"), "casts float64 down", severity="warning",
           backend="tensorrt"),
    Broken("type-not-served", lambda: build_typed(DOUBLE, "Relu"), "of these types: x (float64), y (float64)",
           backend="tensorrt-rtx", refused=False, also=frozenset({"float64"})),
    Broken("outside-the-engine", lambda: broken.one_node("Compress"), "node-1 (Compress)",
           backend="tensorrt", refused=False, nodes=1),
    Broken("float64", lambda: cast_of(1.0, np.float32, DOUBLE), "cast-1 (Cast)", severity="warning",
           backend="cuda", nodes=1),
    Broken("strings", lambda: build_typed(TensorProto.STRING), "does not support strings", severity="warning",
           backend="tensorrt"),
    Broken("strings", lambda: build(
        [N("Cast", ["x"], ["y"], name="c", to=TensorProto.STRING)], [X],
        [value("y", 1, 4, kind=TensorProto.STRING)]), "c (Cast)", severity="warning",
           backend="openvino", nodes=1),
    Broken("control-flow", ranks_differ, "it refuses if-1 (If), whose branches have outputs of rank 1 and 2",
           severity="warning", backend="tensorrt", nodes=1),
    Broken("control-flow", loop, "loop-1 (Loop), whose body reads the condition although the node has none", severity="warning", backend="tensorrt-rtx", nodes=1),
    Broken("asymmetric-quantization", lambda: round_to_bits(3, np.uint8), "2 quantization nodes with",
           severity="warning", backend="tensorrt-rtx", nodes=2),
    Broken("asymmetric-quantization", lambda: round_to_bits(0, np.uint8), "quantize (QuantizeLinear)",
           severity="warning", backend="tensorrt", nodes=2),
    Broken("asymmetric-quantization", lambda: round_to_bits(-7, np.int8), "dequantize (DequantizeLinear)",
           severity="warning", backend="tensorrt-rtx", nodes=2),
    Broken("integer-operator", lambda: build(
        [N("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"], name="dynamic"),
         N("DequantizeLinear", ["q", "scale", "zero"], ["y"])], [X], [Y]), "dynamic (Dynamic",
           severity="warning", backend="tensorrt-rtx", nodes=1),
    Broken("sparse-tensor", sparse, "'w'", severity="warning", backend="tensorrt"),
    Broken("output-left-out", lambda: build(
        [*chain("Relu"), N("SequenceConstruct", ["x"], ["s"])], [X], [Y, helper.make_value_info(
            "s", helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, [1, 4])))]),
           "'s' (sequence)", severity="warning"),
    Broken("output-left-out", lambda: broken.halves_and_strings("float"),
           "'half' (bfloat16 beside the strings of input 's')", severity="warning"),
    Broken("duplicate-initializer", lambda: build(
        [N("Add", ["x", "w"], ["y"])], [X], [Y], [array("w", 1), array("w", 2)]), "'w'",
           severity="warning"),
    Broken("duplicate-output", lambda: build(chain("Relu"), [X], [Y, Y]), "'y'", severity="warning"),
    Broken("input-is-initializer", lambda: build(
        [N("Add", ["x", "w"], ["y"])], [X, value("w", 1)], [Y], [array("w", 1)]),
           "1 of 1 initializers are inputs too ('w')", severity="warning"),
    Broken("names-differ-in-case", lambda: two_inputs("Mask", "mask"), "'Mask', 'mask'",
           severity="warning"),
    Broken("unwieldy-name", lambda: wide_name("i", 300), "has 300", severity="warning"),
    Broken("too-many-nodes", lambda: hostile.exploding_functions(25), "more than 500000 nodes",
           refused=False),
)  # fmt: skip


# name, model, backend, files: models that break no rule at all
GOOD: tuple[tuple[str, Callable[[], ModelProto], str, Callable[[Path], None] | None], ...] = (
    ("relu", broken.relu, "cpu", None),
    ("symmetric quantization", lambda: round_to_bits(0, np.int8), "tensorrt-rtx", None),
    ("INT8 weights that say what they become", lambda: build(
        [N("DequantizeLinear", ["w", "scale"], ["v"], output_dtype=FLOAT), N("Add", ["x", "v"], ["y"])],
        [X], [Y], [array("w", 1, 2, 3, 4, kind=np.int8), scalar("scale", 0.1, np.float32)],
        opset=23, ir_version=11), "tensorrt-rtx", None),
    ("asymmetric quantization elsewhere", lambda: round_to_bits(3, np.uint8), "cpu", None),
    ("unnamed nodes", lambda: simple("Relu", "Abs", "Neg"), "tensorrt", None),
    ("Constants of one name", lambda: build(
        [*(N("Constant", [], [f"k{i}"], name="F0::anon", value_float=1.0) for i in range(3)),
         N("Sum", ["x", "k0", "k1", "k2"], ["y"], name="s")], [X], [Y]), "cpu", None),
    ("names in two branches", lambda: conditional(
        [N("Relu", ["x"], ["t"], name="same")], "t", [N("Abs", ["x"], ["k"], name="same")]),
     "cpu", None),
    ("a body's value named as a later one", lambda: build(
        [branches([N("Relu", ["x"], ["late"])], "late"), N("Relu", ["x"], ["late"])],
        [X, value("c", kind=BOOL)], [Y]), "cpu", None),
    ("a body's input named as an outer value", lambda: loop("k"), "cpu", None),
    ("unsorted nodes", broken.build_unsorted, "cpu", None),
    ("optional inputs left out", lambda: build(
        [N("Clip", ["x", "", "top"], ["y"])], [X], [Y], [scalar("top", 6, np.float32)]),
     "cpu", None),
    ("optional outputs left out", lambda: build(
        [N("LSTM", ["x", "w", "r"], ["", "y"], hidden_size=1)], [value("x", 1, 1, 4)],
        [value("y", 1, 1, 1)], [numpy_helper.from_array(np.ones((1, 4, 4), np.float32), "w"),
                                numpy_helper.from_array(np.ones((1, 4, 1), np.float32), "r")]),
     "cpu", None),
    ("the model's own functions", lambda: hostile.functions(
        {"F0": ["F1", "F1"], "F1": ["Relu", "Abs"]}), "tensorrt", None),
    ("an attention mask of minus infinity", lambda: with_weight(
        "Add", array("mask", 0, -np.inf, -np.inf, 0)), "cpu", None),
    ("a half mask of minus infinity", lambda: with_weight(
        "Add", array("mask", 0, -np.inf, -np.inf, 0, kind=np.float16)), "cpu", None),
    ("a large mask that is cast to half", lambda: cast_of(-3.4e38, np.float32, HALF), "cpu", None),
    ("65504 cast to half", lambda: cast_of(65504.0, np.float32, HALF), "cpu", None),
    ("a fill value of NaN", lambda: with_weight("Add", array("fill", np.nan)), "cpu", None),
    ("a bound of infinity", lambda: build(
        [N("Clip", ["x", "low", "high"], ["y"])], [X], [Y],
        [scalar("low", -np.inf, np.float32), scalar("high", np.inf, np.float32)]), "cpu", None),
    ("a large variance, not for half", lambda: batch_norm(97903600.0), "cpu", None),
    ("Dropout that does not train", lambda: dropout(training=False), "cpu", None),
    ("Dropout of old", lambda: build(
        [N("Dropout", ["x"], ["y"], ratio=0.5)], [X], [Y], opset=9, ir_version=4), "cpu", None),
    ("weights as inputs, as IR version 3 wants", lambda: build(
        [N("Add", ["x", "w"], ["y"])], [X, value("w", 1)], [Y], [array("w", 1)], opset=9,
        ir_version=3), "cpu", None),
    ("a slice to the end", lambda: build(
        [N("Slice", ["x", "from", "to", "axes"], ["y"])], [X], [value("y", 1, 3)],
        [array("from", 1, kind=np.int64), array("to", 2**63 - 1, kind=np.int64),
         array("axes", 1, kind=np.int64)]), "openvino", None),
    ("float64 on the CPU", lambda: build_typed(DOUBLE, "Relu"), "cpu", None),
    ("strings on the CPU", lambda: build_typed(TensorProto.STRING), "cpu", None),
    ("control flow on the CPU", loop, "cpu", None),
    ("control flow on CUDA", loop, "cuda", None),
    ("external data", lambda: broken.external("w.bin"), "cpu", _weights),
    ("external data in a folder", lambda: broken.external("data/w.bin"), "cpu",
     lambda folder: _weights_in(folder / "data")),
    ("a scalar", lambda: with_weight("Add", scalar("w", 1.0, np.float32)), "tensorrt", None),
    ("an empty tensor", lambda: build(
        [N("Concat", ["x", "w"], ["y"], axis=1)], [X], [Y],
        [numpy_helper.from_array(np.zeros((1, 0), np.float32), "w")]), "cpu", None),
    ("halves in int32_data", lambda: with_weight("MatMul", helper.make_tensor(
        "w", HALF, [4, 1], [1.0, 2.0, 3.0, 4.0])), "cpu", None),
    ("four-bit weights", lambda: build(
        [N("DequantizeLinear", ["w", "scale"], ["d"]), N("MatMul", ["x", "d"], ["y"])], [X],
        [value("y", 1, 1)],
        [helper.make_tensor("w", TensorProto.INT4, [4, 1], [1, 2, 3, -4]),
         scalar("scale", 1.0, np.float32)], opset=21, ir_version=10), "cpu", None),
    ("Chinese names", lambda: build([N("Relu", ["输入"], ["y"], name="节点")], [value("输入", 1, 4)], [Y]),
     "cpu", None),
    ("names with slashes", lambda: simple("Relu", names=["/model/layers.0/attn::Relu"]), "cpu", None),
    ("an unused domain", lambda: build(chain("Relu"), [X], [Y], domains=[("my.ops", 1)]), "cpu", None),
    ("ONNX Runtime's own operators", lambda: broken.one_node("Gelu", "com.microsoft"), "cpu", None),
    ("an open batch", lambda: broken.open_dimensions("batch", 4), "tensorrt", None),
    ("a million-letter name", lambda: hostile.long_names(1_000_000), "cpu", None),
    ("deep bodies", lambda: ModelProto.FromString(hostile.nest_bodies(31)), "cpu", None),
)  # fmt: skip
