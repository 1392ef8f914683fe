"""Outputs whose sizes depend on values are told from those whose sizes follow from the inputs' sizes."""

import pytest
from enginewright_runtime.graph.scoped.value_sizes import (
    find_sized_by_values,
    find_tensors_sized_by_values,
)

from tests.support.broken_models import parse_text

INPUTS = "(float[batch, n] x, int64[batch, n] ids)"


def find(nodes: str, constants: str = "", outputs: str = "float[m] y") -> dict[str, str]:
    return find_sized_by_values(parse_text(f"{INPUTS} => ({outputs}) {constants} {{ {nodes} }}"))


@pytest.mark.parametrize(
    ("nodes", "operator"),
    [
        ("y = NonZero(x)", "NonZero"),
        ("one = Equal(x, x) y = Compress(x, one)", "Compress"),
        ("y, places = Unique(ids) ", "Unique"),
        ("most = ReduceMax<keepdims = 0>(ids) y = Range(zero, most, one)", "Range"),
        ("most = ReduceMax<keepdims = 0>(ids) to = Reshape(most, list) y = Expand(x, to)", "Expand"),
        ("size = ReduceMax<keepdims = 0>(ids) k = Reshape(size, list) y, at = TopK(x, k)", "TopK"),
        ("places = NonZero(x) turned = Transpose(places) y = GatherND(x, turned)", "NonZero"),
        # a size that came from values is a size again
        ("p = NonZero(x) s = Shape<start = 1>(p) y = ConstantOfShape(s)", "ConstantOfShape"),
        (
            """most = ReduceMax<keepdims = 0>(ids)
            y = Loop(most, ) <body = body (int64 turn, bool go) => (bool go_on, float out) {
            go_on = Identity(go) out = Cast<to = 1>(turn) }>""",
            "Loop",
        ),
        (
            """a, y = Loop(count, true_, zero) <body = body (int64 turn, bool go, int64 sum)
            => (bool go_on, int64 next, int64 out) {
            some = ReduceMax<keepdims = 0>(ids) next = Add(sum, some) go_on = Less(sum, count)
            out = Identity(next) }>""",
            "Loop",
        ),
        (
            """some = ReduceMax<keepdims = 0>(ids) large = Greater(some, one)
            y = If(large) <then_branch = a () => (int64[k] o) { o = NonZero(x) },
            else_branch = b () => (int64[k] p) { p = Identity(ids) }>""",
            "NonZero",
        ),
        (
            """some = ReduceMax<keepdims = 0>(ids) large = Greater(some, one)
            y = If(large) <then_branch = a () => (float[k, n] o) { o = Relu(x) },
            else_branch = b () => (float[k, n] p) { p = Concat<axis = 1>(x, x) }>""",
            "If",
        ),
    ],
)  # fmt: skip
def test_sizes_that_depend_on_values_are_named_with_their_node(nodes: str, operator: str) -> None:
    constants = "<int64 zero = {0}, int64 one = {1}, int64 count = {3}, bool true_ = {1}, int64[1] list = {1}>"
    assert find(nodes, constants) == {"y": f"unnamed ({operator})"}


@pytest.mark.parametrize(
    "nodes",
    [
        "y = Relu(x)",
        "size = Shape(x) ones = ConstantOfShape(size) y = NonZero(ones)",  # as of old exports
        "size = Shape(x) y = Expand(one, size)",
        "size = Shape(x) long = Gather(size, place) y = Range(zero, long, one)",
        "y = Reshape(x, list)",
        # what a mask selects is set in place
        "p = NonZero(x) at = Transpose(p) y = ScatterND(x, at, x)",
        "places = NonZero(x) y = Relu(x)",
        """y = Loop(count, true_) <body = body (int64 turn, bool go) => (bool go_on, float out) {
        go_on = Identity(go) out = Cast<to = 1>(turn) }>""",
        """size = Shape(x) long = Gather(size, place) large = Greater(long, one)
        y = If(large) <then_branch = a () => (float[k, n] o) { o = Relu(x) },
        else_branch = b () => (float[k, n] p) { p = Concat<axis = 1>(x, x) }>""",
    ],
)
def test_sizes_that_follow_from_the_sizes_of_inputs_are_not_named(nodes: str) -> None:
    constants = "<int64 zero = {0}, int64 one = {1}, int64 place = {1}, int64 count = {3}, bool true_ = {1}, int64[2] list = {-1, 2}>"
    assert find(nodes, constants) == {}


def test_only_the_outputs_concerned_are_named() -> None:
    outputs = "float[batch, n] y, int64[2, k] places"
    assert find("y = Relu(x) places = NonZero(x)", outputs=outputs) == {
        "places": "unnamed (NonZero)"
    }


def test_a_function_that_selects_is_named() -> None:
    model = parse_text(f"{INPUTS} => (float[m] y) {{ y = own.pick(x) }}")
    model.functions.add(name="pick", domain="own", input=["a"], output=["b"]).node.add(
        op_type="NonZero", input=["a"], output=["b"]
    )
    assert find_sized_by_values(model) == {"y": "unnamed (pick)"}


def test_tensors_inside_are_named_too() -> None:
    nodes = "p = NonZero(x) t = Transpose(p) size = Shape(t) y = Relu(x)"
    model = parse_text(f"{INPUTS} => (float[batch, n] y) {{ {nodes} }}")
    assert find_tensors_sized_by_values(model) == dict.fromkeys(("p", "t"), "unnamed (NonZero)")


@pytest.mark.parametrize(
    ("nodes", "outputs", "operator"),
    [
        ("y = own.keep(x)", "float[m] y", "keep"),
        ("y = own.keep(x)", "float[m, 4] y", "keep"),
        ("y = own.keep(x)", "float[?, n] y", "keep"),
        ("h = own.keep(x) y = Relu(h)", "float[m] y", "keep"),
        ("y = com.microsoft.Unique(x)", "float[m] y", "Unique"),
        ("y = com.microsoft.Unique(x)", "float[n] y", "Unique"),
        # the name says nothing where another node selects
        ("h = own.keep(x) y = NonZero(h)", "int64[2, n] y", "NonZero"),
    ],
)
def test_an_operator_of_another_library_may_select(nodes: str, outputs: str, operator: str) -> None:
    assert find(nodes, outputs=outputs) == {"y": f"unnamed ({operator})"}


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ("y = own.convert(x)", "float[batch, n] y"),
        ("y = own.convert(x)", "float[batch, 7] y"),
        ("y = com.microsoft.FusedMatMul(x, x)", "float[m, k] y"),
        ("y = ai.onnx.ml.Normalizer(x)", "float[m, k] y"),
        # of sizes alone
        ("size = Shape(x) y = own.fill(size)", "float[m] y"),
    ],
)
def test_sizes_that_are_declared_as_those_of_inputs_are_believed(nodes: str, outputs: str) -> None:
    assert find(nodes, outputs=outputs) == {}


def test_a_function_that_calls_an_operator_of_another_library_may_select() -> None:
    model = parse_text(f"{INPUTS} => (float[m] y) {{ y = own.pick(x) }}")
    function = model.functions.add(name="pick", domain="own", input=["a"], output=["b"])
    function.node.add(op_type="Relu", input=["a"], output=["b"])
    assert find_sized_by_values(model) == {}
    function.node[0].domain = "other"
    assert find_sized_by_values(model) == {"y": "unnamed (pick)"}
