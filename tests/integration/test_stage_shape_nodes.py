"""The rule of shape arithmetic: what computes sizes may run anywhere, what touches data may not."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from enginewright_runtime.graph.scoped.shape_nodes import shape_nodes
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tests.support import broken_models as broken
from tests.support.effort import examples

INT = TensorProto.INT64


def n(
    op_type: str, inputs: str, outputs: str, name: str | None = None, **attributes: Any
) -> NodeProto:
    """Return a node called after its first output; inputs and outputs are separated by spaces."""
    made = outputs.split()
    given_name = made[0] if name is None else name
    return helper.make_node(op_type, inputs.split(), made, name=given_name, **attributes)


def ints(name: str, *values: int) -> TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def model(
    nodes: Sequence[NodeProto],
    weights: Sequence[TensorProto] = (),
    outputs: Sequence[str] = ("y",),
    opset: int = 17,
) -> onnx.ModelProto:
    """Return a model of x (floats [n, 3, h, w]) and i (integers [4])."""
    built = broken.build(
        nodes,
        [broken.value("x", "n", 3, "h", "w"), broken.value("i", 4, kind=INT)],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        weights,
        opset=opset,
    )
    inferred = onnx.shape_inference.infer_shapes(built)
    ort.InferenceSession(inferred.SerializeToString())  # a model that can be run
    return built


UNKNOWN_RANK = [  # a Reshape to computed sizes: shape inference knows no rank of `turned`
    n("Shape", "x", "whole"),
    n("Slice", "whole zeros ends", "sizes"),
    n("Concat", "sizes minus", "target", axis=0),
    n("Gather", "target order", "turned_target"),
    n("Reshape", "x turned_target", "turned"),
]
UNKNOWN_WEIGHTS = [ints("zeros", 0), ints("ends", 2), ints("minus", -1), ints("order", 0, 1, 2)]
FROM_UNKNOWN_RANK = [
    n("Shape", "turned", "later"),
    n("Cast", "later", "narrow", to=TensorProto.INT32),
    n("Slice", "narrow zeros ends", "two"),
    n("Cast", "two", "wide", to=INT),
    n("Add", "wide minus", "less"),
    n("Max", "less wide", "most"),
]


def test_sizes_of_a_tensor_of_unknown_rank_are_shape_arithmetic() -> None:
    """Text recognizers from PaddlePaddle end so; on a GPU ONNX Runtime leaves these nodes on the CPU."""
    nodes = [*UNKNOWN_RANK, *FROM_UNKNOWN_RANK, n("ReduceSum", "most", "y")]
    labels = shape_nodes(model(nodes, UNKNOWN_WEIGHTS))
    expected = {node.name for node in FROM_UNKNOWN_RANK} | {"y"}
    assert expected <= {label.partition(" (")[0] for label in labels}


@pytest.mark.parametrize(
    "grows",
    [
        n("ConstantOfShape", "two64", "y"),
        n("Expand", "two64 two64", "y"),
        n("Tile", "two64 first", "y"),
    ],
    ids=lambda node: node.op_type,
)
def test_large_values_from_sizes_of_unknown_rank_count(grows: NodeProto) -> None:
    nodes = [
        *UNKNOWN_RANK,
        *FROM_UNKNOWN_RANK[:3],
        n("Cast", "two", "two64", to=INT),
        n("Slice", "two64 zeros one", "first"),
        grows,
    ]
    labels = shape_nodes(model(nodes, [*UNKNOWN_WEIGHTS, ints("one", 1)]))
    assert "two64 (Cast)" in labels
    assert f"y ({grows.op_type})" not in labels


FLATTENED = [
    n("Shape", "x", "shape"),
    n("Gather", "shape zero", "batch"),
    n("Unsqueeze", "batch axis", "row"),
    n("Concat", "row minus", "target", axis=0),
    n("Reshape", "x target", "y"),
]
FLAT_WEIGHTS = [numpy_helper.from_array(np.array(0, np.int64), "zero"), ints("axis", 0),
                ints("minus", -1)]  # fmt: skip


def test_sizes_that_a_reshape_takes() -> None:
    assert shape_nodes(model(FLATTENED, FLAT_WEIGHTS)) == (
        "shape (Shape)", "batch (Gather)", "row (Unsqueeze)", "target (Concat)",
    )  # fmt: skip


def test_the_model_is_left_as_it_was() -> None:
    built = model(FLATTENED, FLAT_WEIGHTS)
    before = built.SerializeToString()
    shape_nodes(built)
    assert built.SerializeToString() == before


def test_order_does_not_matter() -> None:
    """ONNX Runtime loads graphs whose nodes are not sorted, and says so."""
    built = model(FLATTENED, FLAT_WEIGHTS)
    mixed = onnx.ModelProto.FromString(built.SerializeToString())
    del mixed.graph.node[:]
    mixed.graph.node.extend(reversed(FLATTENED))
    assert set(shape_nodes(mixed)) == set(shape_nodes(built))


def test_a_cycle_ends() -> None:
    assert shape_nodes(broken.cyclic()) == ()


def test_scales_of_a_resize_go_over_floats() -> None:
    """As exporters write an interpolation: ONNX Runtime's CUDA provider leaves all of it to the CPU."""
    nodes = [
        n("Shape", "x", "shape"),
        n("Slice", "shape two four", "hw"),
        n("Cast", "hw", "float", to=TensorProto.FLOAT),
        n("Mul", "float factor", "scaled"),
        n("Floor", "scaled", "floor"),
        n("Cast", "floor", "size", to=INT),
        n("Slice", "shape start two", "nc"),
        n("Concat", "nc size", "sizes", axis=0),
        n("Resize", "x   sizes", "y"),
    ]
    nodes[-1].input[:] = ["x", "", "", "sizes"]
    weights = [ints("two", 2), ints("four", 4), ints("start", 0),
               numpy_helper.from_array(np.array([1.5, 1.5], np.float32), "factor")]  # fmt: skip
    labels = shape_nodes(model(nodes, weights))
    assert labels == tuple(f"{node.output[0]} ({node.op_type})" for node in nodes[:-1])


@pytest.mark.parametrize(
    ("nodes", "data"),
    [
        # integers of the caller's are data, however few
        ([n("Add", "i one", "y")], {"y (Add)"}),
        # so is what mixes them with a shape
        ([n("Shape", "x", "s"), n("Mul", "s i", "y")], {"y (Mul)"}),
        ([n("Shape", "x", "s"), n("Gather", "s i", "y")], {"y (Gather)"}),
        # the tensor that takes a size
        ([n("Shape", "x", "s"), n("ConstantOfShape", "s", "y")], {"y (ConstantOfShape)"}),
        ([n("Shape", "x", "s"), n("Cast", "s", "f", to=1), n("ReduceMax", "f", "m", keepdims=0),
          n("Div", "x m", "y")], {"y (Div)"}),
        # a size that depends on values
        ([n("NonZero", "x", "z"), n("Shape", "z", "s"), n("Slice", "s one one2", "y")],
         {"z (NonZero)"}),
        # random values of a size that is known
        ([n("Shape", "x", "s"), n("Cast", "s", "f", to=1), n("RandomUniformLike", "f", "y")],
         {"y (RandomUniformLike)"}),
        # nothing but constants: folded, so there is no node left to be placed
        ([n("Add", "one one", "a"), n("Add", "i a", "y")], {"a (Add)", "y (Add)"}),
    ],
)  # fmt: skip
def test_nodes_that_touch_data_count(nodes: list[NodeProto], data: set[str]) -> None:
    built = model(nodes, [ints("one", 1), ints("one2", 2)])
    labels = {f"{node.name} ({node.op_type})" for node in nodes}
    assert set(shape_nodes(built)) == labels - data


@pytest.mark.parametrize(("elements", "counts"), [(64, False), (65, True)])
def test_many_elements_are_work(elements: int, counts: bool) -> None:
    nodes = [n("Shape", "x", "s"), n("Gather", "s many", "y")]
    labels = shape_nodes(model(nodes, [ints("many", *[0] * elements)]))
    assert ("y (Gather)" in labels) is not counts


@pytest.mark.parametrize(("shape", "counts"), [((2, 2), False), ((2, 2, 1), True)])
def test_pads_are_turned_over_as_a_matrix(shape: tuple[int, ...], counts: bool) -> None:
    nodes = [n("Shape", "x", "s"), n("Reshape", "s to", "y")]
    assert ("y (Reshape)" in shape_nodes(model(nodes, [ints("to", *shape)]))) is not counts


def test_a_label_of_several_nodes_needs_all_of_them() -> None:
    shape = n("Shape", "x", "s", "")
    both = [shape, n("Mul", "s s", "t", ""), n("Mul", "i i", "y", "")]
    assert shape_nodes(model(both, outputs=["t", "y"])) == ("unnamed (Shape)",)
    assert shape_nodes(model([shape, n("Mul", "s s", "y", "")])) == (
        "unnamed (Shape)", "unnamed (Mul)",
    )  # fmt: skip


def test_functions_may_bring_unnamed_nodes_that_compute_data() -> None:
    """ONNX Runtime has no kernel for Mish and puts three nodes in its place, one of them a Mul."""
    nodes = [
        n("Shape", "x", "s", ""),
        n("Mul", "s s", "t", ""),
        n("Add", "s s", "named", "add"),
        n("Mish", "x", "y", ""),
    ]
    built = model(nodes, outputs=["t", "named", "y"], opset=18)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = ort.InferenceSession(built.SerializeToString(), options)
    unnamed = [
        node.op_type
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
        if not node.name
    ]
    assert unnamed.count("Mul") == 2
    assert shape_nodes(built) == ("unnamed (Shape)", "add (Add)")


def test_an_initializer_that_the_caller_may_replace_is_data() -> None:
    nodes = [n("Shape", "x", "s"), n("Mul", "s factor", "y")]
    built = model(nodes, [ints("factor", 2)])
    built.graph.input.append(broken.value("factor", 1, kind=INT))
    assert shape_nodes(built) == ("s (Shape)",)
    built.ir_version = 3  # where every initializer is an input
    assert shape_nodes(built) == ("s (Shape)", "y (Mul)")


def test_bodies_see_the_sizes_around_them() -> None:
    then = helper.make_graph(
        [n("Mul", "s two", "a", "inside"), n("Reshape", "x a", "t"), n("Identity", "t", "t2")],
        "then",
        [],
        [broken.value("t2")],
    )
    other = helper.make_graph([n("Relu", "x", "o")], "else", [], [broken.value("o")])
    for branch in (then, other):
        branch.output[0].type.tensor_type.ClearField("shape")
    nodes = [
        n("Shape", "x", "s"),
        n("Size", "x", "size"),
        n("Equal", "size nothing", "empty"),
        n("If", "empty", "y", then_branch=then, else_branch=other),
    ]
    weights = [ints("two", 1), numpy_helper.from_array(np.array(0, np.int64), "nothing")]
    labels = shape_nodes(model(nodes, weights))
    assert labels == ("s (Shape)", "size (Size)", "empty (Equal)", "inside (Mul)")


def test_a_name_that_a_body_uses_again_is_another_value() -> None:
    body = helper.make_graph(
        [n("Add", "s i", "out"), n("Identity", "go", "go_on")],
        "body",
        [broken.value("turn", kind=INT), broken.value("go", kind=TensorProto.BOOL),
         broken.value("s", 4, kind=INT)],
        [broken.value("go_on", kind=TensorProto.BOOL), broken.value("out", 4, kind=INT)],
    )  # fmt: skip
    loop = n("Loop", "turns  i", "y", body=body)
    loop.input[:] = ["turns", "", "i"]
    built = broken.build(
        [n("Shape", "x", "s"), n("Shape", "x", "s2"), loop],
        [broken.value("x", "n", 3, "h", "w"), broken.value("i", 4, kind=INT)],
        [broken.value("y", 4, kind=INT)],
        [numpy_helper.from_array(np.array(3, np.int64), "turns")],
    )
    assert shape_nodes(built) == ("s (Shape)", "s2 (Shape)")


def test_types_that_cannot_be_inferred_are_no_reason_to_fail() -> None:
    built = model(FLATTENED, FLAT_WEIGHTS)
    built.graph.node[1].domain = "my.ops"
    built.opset_import.append(helper.make_opsetid("my.ops", 1))
    assert shape_nodes(built) == ("shape (Shape)",)
    assert shape_nodes(broken.wrong_types()) == ()


EXPECTED = {
    # model: (nodes in the file, labels of shape arithmetic)
    "ch_PP-OCRv4_det_infer.onnx": (672, 0),  # fully dynamic, and no size is ever computed
    "silero_vad_half.onnx": (325, 39),  # in bodies of If
    "standard_v3_3/model.onnx": (95, 11),
    "swift_f0/model.onnx": (358, 1),  # all nodes unnamed: only Shape is certain
}


@pytest.mark.parametrize("name", EXPECTED)
def test_real_models(name: str, models: Path) -> None:
    path = next(path for path in models.rglob("*.onnx") if str(path).endswith(name))
    labels = shape_nodes(onnx.load(path))
    assert len(labels) == EXPECTED[name][1]
    assert not [
        label for label in labels if label.endswith(("(Conv)", "(MatMul)", "(LSTM)", "(If)"))
    ]


OPERATORS = ("Add", "Mul", "Sub", "Max")


@given(
    links=st.lists(
        st.tuples(st.sampled_from(OPERATORS), st.integers(0, 99), st.integers(0, 99)),
        min_size=1,
        max_size=12,
    )
)
@settings(max_examples=examples(60), deadline=None)
def test_shape_arithmetic_gives_the_same_for_any_data(links: list[tuple[str, int, int]]) -> None:
    values = ["s", "i", "c"]
    nodes = [n("Shape", "x", "s")]
    for index, (operator, left, right) in enumerate(links):
        chosen = f"{values[left % len(values)]} {values[right % len(values)]}"
        nodes.append(n(operator, chosen, f"v{index}"))
        values.append(f"v{index}")
    outputs = [node.output[0] for node in nodes]
    built = model(nodes, [ints("c", 1, 2, 3, 4)], outputs)
    exact = set(shape_nodes(built))
    session = ort.InferenceSession(onnx.shape_inference.infer_shapes(built).SerializeToString())
    x = np.ones((2, 3, 4, 5), np.float32)
    runs = [
        dict(zip(outputs, session.run(outputs, {"x": x * k, "i": np.full(4, k)}), strict=True))
        for k in (3, 7)
    ]
    for node in nodes:
        if f"{node.name} ({node.op_type})" in exact:
            first, second = (run[node.output[0]] for run in runs)
            assert np.array_equal(first, second)
    assert "s (Shape)" in exact
