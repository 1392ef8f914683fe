"""The parts of a model: no engine begins with a tensor whose sizes depend on values."""

from types import SimpleNamespace

import pytest
from enginewright_runtime.graph.scoped.parts import TensorType
from enginewright_runtime.tensorrt.partition import _Answer, _Partitioner
from enginewright_runtime.tensorrt.results import SupportedParts
from onnx import ModelProto, TensorProto

from tests.support.broken_models import parse_text
from tests.support.engines import weights

FLOAT = TensorProto.FLOAT


def ask(part: ModelProto) -> _Answer:
    """Answer as a parser does that has everything but Unique, NonZero and If."""
    nodes = [
        index
        for index, node in enumerate(part.graph.node)
        if node.op_type not in {"Unique", "NonZero", "If"}
    ]
    supported = len(nodes) == len(part.graph.node)
    parser = SimpleNamespace(
        num_errors=0,
        num_subgraphs=0 if supported else 1,
        get_subgraph_nodes=lambda _: nodes,
    )
    return _Answer(parser, None, supported=supported)


def find_parts(model: ModelProto, **dimensions: tuple[int | str | None, ...]) -> SupportedParts:
    """Return the parts; all tensors are of float and have one open dimension, unless `dimensions` says else."""
    names = {name for node in model.graph.node for name in (*node.input, *node.output)}
    types = {name: TensorType(FLOAT, dimensions.get(name, (None, 8))) for name in names}
    return _Partitioner(ask, model, types).run()


SELECTING = """(float[256] x, float["n", 8] a) => (float["k", 8] y, float["n", 8] b) <int64[1] one = {1}> {
    [m1] h = MatMul(a, w) [r1] r = Relu(h) [m2] b = MatMul(r, w)
    [unique] u = Unique(x) [column] c = Unsqueeze(u, one) [fc] d = MatMul(c, w1)
    [relu] e = Relu(d) [last] y = MatMul(e, w) }"""


def test_what_comes_of_selected_values_is_in_no_part() -> None:
    model = parse_text(SELECTING, weights("w", 8, 8), weights("w1", 1, 8))
    answer = find_parts(model)
    assert answer.parts == ((0, 1, 2),)
    assert answer.left_out == (4, 5, 6, 7)


def test_what_joins_selected_values_splits_a_part() -> None:
    """The nodes after it do not end up in one part with those before it, or values would go back and forth."""
    model = parse_text(
        """(float["n", 8] x) => (float["n", 8] y) {
        [before] b = Relu(x) [select] p = NonZero(b) [turn] t = Transpose(p)
        [join] j = GatherND(b, t) [sum] s = ReduceSum<keepdims = 0>(j) [after] y = Add(b, s) }"""
    )
    answer = find_parts(model, s=())
    assert answer.parts == ((0,), (5,))
    assert answer.left_out == (2, 3, 4)


def test_a_selected_tensor_of_a_fixed_size_may_enter_a_part() -> None:
    model = parse_text(SELECTING, weights("w", 8, 8), weights("w1", 1, 8))
    answer = find_parts(model, u=(256,))
    assert (0, 1, 2, 4, 5, 6, 7) in answer.parts
    assert answer.left_out == ()


@pytest.mark.parametrize("size", ["n", "?", "k", None])
def test_what_either_branch_makes_of_an_inputs_size_may_enter_a_part(size: str | None) -> None:
    body = '() => (float["n", 8] o) { [inside] o = Neg(b) }'
    model = parse_text(
        f"""(float["n", 8] x, float["?"] z, float flag) => (float["n", 8] y) {{
        [before] b = Relu(x) [zero] c = Sub(flag, flag) [large] t = Greater(flag, c)
        [if] i = If (t) <then_branch = body {body}, else_branch = body {body}>
        [after] y = Exp(i) }}"""
    )
    answer = find_parts(model, i=(size, 8), c=(), t=(), flag=())
    is_bounded = size == "n"
    assert answer.parts == (((0, 1, 2, 4),) if is_bounded else ((0, 1, 2),))
    assert answer.left_out == (() if is_bounded else (4,))
