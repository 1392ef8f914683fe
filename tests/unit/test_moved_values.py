"""Which results of an operator are the model's, wherever they are moved to."""

import pytest
from enginewright_runtime.proof.rounding.moved_values import find_moved

from tests.support.broken_models import parse_text


def find(body: str) -> set[str]:
    source = parse_text(f"(float[1, 4, 6] x, bool c) => (float[a] out) {{ {body} }}")
    return {*find_moved(source.graph, {"Softmax"})}


@pytest.mark.parametrize(
    ("body", "moved"),
    [
        ("out = Softmax(x)", {"out"}),
        ("s = Softmax(x) t = Transpose(s) out = Neg(t)", {"s", "t", "out"}),
        ("s = Softmax(x) t = Concat <axis = 0> (x, s) out = Identity(t)", {"s", "t", "out"}),
        ("s = Softmax(x) t = MatMul(s, s) out = Identity(t)", set()),
        ("s = Softmax(x) t = MatMul(s, s) out = Softmax(t)", {"out"}),
        ("s = Softmax(x) t = Transpose(s) out = Identity(x)", set()),
        ("out = Identity(x)", set()),
    ],
)
def test_results_are_found_behind_what_moves_them(body: str, moved: set[str]) -> None:
    assert find(body) == moved


def test_results_are_found_in_bodies() -> None:
    # fault: probabilities below 6e-8 are zeros in FP16, where an If decides which are returned
    body = """
        r = If (c) <
            then_branch = g () => (float[a] p) { s = Softmax(x) p = Reshape(s, n) },
            else_branch = h () => (float[a] q) { q = Relu(x) }
        >
        out = Transpose(r)
    """
    assert find(f"n = Constant <value_ints = [24]> () {body}") == {"s", "p", "r", "out"}


def test_results_of_a_loop_are_those_of_its_body() -> None:
    body = """
        n = Constant <value_int = 3> ()
        last, out = Loop (n, c, x) <
            body = g (int64 i, bool go, float[1, 4, 6] y) => (bool on, float[1, 4, 6] z, float[1, 4, 6] p) {
                on = Identity(go) z = Softmax(y) p = Softmax(y)
            }
        >
    """
    assert find(body) == {"p", "out"}


def test_results_are_found_in_the_state_of_a_loop_and_the_steps_of_a_scan() -> None:
    # fault: probabilities that a loop carries on are zeros in FP16
    body = """
        s = Softmax(x)
        n = Constant <value_int = 3> ()
        r = Loop (n, c, s) <
            body = g (int64 i, bool go, float[1, 4, 6] y) => (bool on, float[1, 4, 6] z) { on = Identity(go) z = Relu(y) }
        >
        out = Scan <num_scan_inputs = 1, body = h (float[4, 6] p) => (float[4, 6] q) { q = Neg(p) }> (r)
    """
    assert find(body) == {"s", "y", "z", "r", "p", "q", "out"}


def test_results_are_found_behind_scatters_casts_and_sequences() -> None:
    body = """
        s = Softmax(x) d = Cast <to = 11> (s) f = Cast <to = 1> (d)
        e = SequenceConstruct(f, f) i = Constant <value_int = 1> () t = SequenceAt(e, i)
        j = Constant <value_ints = [0]> () k = Unsqueeze(j, j)
        out = ScatterND(x, k, t)
    """
    assert find(body) == {"s", "d", "f", "e", "t", "out"}
