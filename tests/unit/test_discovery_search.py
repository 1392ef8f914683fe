"""What a failed run's words are taken for, and how a search goes on after a crash."""

import time

import numpy as np
import pytest
from enginewright_contract.manifest import TensorSpec
from enginewright_runtime.prepare.sizes.discovery import graph
from enginewright_runtime.prepare.sizes.discovery.graph import Clues
from enginewright_runtime.prepare.sizes.discovery.hints import changes, find_failed_node
from enginewright_runtime.prepare.sizes.discovery.problem import Problem, is_switched, pose
from enginewright_runtime.prepare.sizes.discovery.ranges import Caps, explore
from enginewright_runtime.prepare.sizes.discovery.search import ExhaustedError, Outcome, search
from onnx import TensorProto, helper, numpy_helper

from tests.support.broken_models import parse_text


def problem(**inputs: tuple[int | str | None, ...]) -> Problem:
    specs = [TensorSpec(name=name, dtype="float32", shape=shape) for name, shape in inputs.items()]
    return pose(specs, (), frozenset(), Clues())


# ONNX Runtime 1.31's own words
WORDS = [
    (("Got invalid dimensions for input: x for the following indices index: 1 Got: 64 Expected: 3"
     " Please fix either the inputs/outputs or the model."), {"t": 3}),
    (("Non-zero status code returned while running LSTM node. Name:'l' Status Message: Input"
     " initial_h must have shape {1,1,8}. Actual:{1,64,8}"), {"t": 1}),
    (("Non-zero status code returned while running Squeeze node. Name:'s9' Status Message:"
     " squeeze.h:53 input_shape[i] == 1 was false. Dimension of input 0 must be 1 instead of 64."),
     {"t": 1}),
    (("Non-zero status code returned while running Concat node. Name:'c4' Status Message:"
     " concatbase.h:133 PrepareForComputeImpl Non concat axis dimensions must match: Axis 1 has"
     " mismatched dimensions of 64 and 77"), {"t": 77}),
    ("Pad reflect: pre-pad (96) exceeds maximum allowed (63) for axis 2. Input shape:{1,1,64}",
     {"t": 96}),
]  # fmt: skip


@pytest.mark.parametrize(("wording", "sizes"), WORDS)
def test_messages_say_which_size_is_wanted(wording: str, sizes: dict[str, int]) -> None:
    about = problem(x=("n", "t"))
    assert sizes in changes(wording, about.start, about)[:4]


def test_the_innermost_node_is_the_one_that_failed() -> None:
    wording = (
        "while running If node. Name:'outer' Status Message: while running Conv node. Name:'in'"
    )
    assert find_failed_node(wording) == "in"


def test_model_of_every_size_is_tried_once() -> None:
    about = problem(x=("n", "t"), y=("n", "t"))
    assert search(about, lambda *_: Outcome(ran=True)).point == {"n": 1, "t": 64}


def test_end_of_all_runs_keeps_their_results() -> None:
    about = problem(x=("n", "t"))
    left = iter(range(3))

    def attempt(*_: object) -> Outcome:
        if next(left, None) is None:
            raise ExhaustedError
        return Outcome(ran=True)

    caps = Caps(batch=8, pixels=640, length=128)
    corners = explore(about, about.start, attempt, caps).corners
    assert all(corner == about.start for corner in corners.values())
    nothing = search(about, lambda *_: (_ for _ in ()).throw(ExhaustedError))
    assert nothing.point is None


def test_clues_of_many_inputs_cost_no_more_than_their_nodes() -> None:
    """A decoder's past is hundreds of inputs, and its graph thousands of nodes: not their product."""
    count = 400
    values = [helper.make_tensor_value_info(f"x{number}", 1, ["n", 4]) for number in range(count)]
    nodes = [
        helper.make_node("MatMul", [f"x{index % count}", f"w{index % count}"], [f"y{index}"])
        for index in range(5 * count)
    ]
    weights = [
        numpy_helper.from_array(np.zeros((4, 2 + index), np.float32), f"w{index}")
        for index in range(count)
    ]
    model = helper.make_model(helper.make_graph(nodes, "g", values, [], weights))
    names = [value.name for value in values]
    began = time.process_time()
    one = graph.read(model, names[:1])
    of_one = time.process_time() - began
    began = time.process_time()
    every = graph.read(model, names)
    assert time.process_time() - began < 20 * of_one, "it took as long as reading for each again"
    assert every.sizes == {
        f"x{index}": tuple(dict.fromkeys((4, 2 + index))) for index in range(count)
    }
    assert one.sizes == {"x0": (4, 2)}


def test_a_mask_that_is_compared_is_no_switch() -> None:
    """Models of text compare a whole tensor with the padding's number."""
    mask = helper.make_tensor_value_info("mask", TensorProto.INT64, ["n", "t"])
    kept = helper.make_tensor_value_info("kept", TensorProto.BOOL, ["n", "t"])
    padding = numpy_helper.from_array(np.array(0, np.int64), "padding")
    nodes = [helper.make_node("Equal", ["mask", "padding"], ["kept"])]
    model = helper.make_model(helper.make_graph(nodes, "g", [mask], [kept], [padding]))
    specs = [TensorSpec(name="mask", dtype="int64", shape=("n", "t"))]
    assert graph.read(model, ["mask"]).compared == {"mask": (0.0,)}
    assert not is_switched(model, specs)


@pytest.mark.parametrize(
    ("nodes", "dtype", "is_size"),
    [
        ("y = Reshape(x, n)", "int64", True),
        ("m = Identity(n) y = Expand(x, m)", "int64", True),
        ("m = Concat<axis = 0>(n, n) y = Tile(x, m)", "int64", True),
        ("y = Gather(x, n)", "int64", False),
        ("y = Reshape(n, s)", "int64", False),
        ("m = Cast<to = 7>(n) y = Reshape(x, m)", "float", False),
    ],
)
def test_an_input_whose_values_are_sizes_is_told(nodes: str, dtype: str, is_size: bool) -> None:
    model = parse_text(f"(float[a, 4] x, {dtype}[2] n, int64[1] s) => (float[?] y) {{ {nodes} }}")
    specs = [TensorSpec(name="n", dtype=dtype, shape=(2,))]
    assert is_switched(model, specs) == is_size
