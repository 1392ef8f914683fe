"""The search for the first drifting node, on graphs of every form, with a probe that knows the truth."""

import math
from collections.abc import Iterable, Mapping, Sequence

import pytest
from enginewright_runtime.proof.parity.bisection import Ancestry, Drifting, first_drifting
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import GraphProto, TensorProto, helper

from tests.support.effort import examples
from tests.support.optional import present


def graph(nodes: Sequence[tuple[str, Sequence[str]]], output: str) -> GraphProto:
    return helper.make_graph(
        [helper.make_node("Sum", list(reads), [name], name=name) for name, reads in nodes],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, [1])],
    )


class Truth:
    """Answers a probe: what is wrong spreads to all that is made of it."""

    def __init__(
        self, nodes: Sequence[tuple[str, Sequence[str]]], wrong: Iterable[str], healed: str = ""
    ) -> None:
        self.drifting = set(wrong)
        for name, reads in nodes:
            if self.drifting & set(reads) and name != healed:
                self.drifting.add(name)
        self.asked: list[Sequence[str]] = []

    def __call__(self, names: Sequence[str]) -> Mapping[str, str]:
        self.asked.append(names)
        return {name: f"{name} drifts" for name in names if name in self.drifting}


def names(nodes: Sequence[tuple[str, Sequence[str]]]) -> frozenset[str]:
    return frozenset(name for name, _ in nodes)


CHAIN = [("a0", ["x"]), *((f"a{index}", [f"a{index - 1}"]) for index in range(1, 1000))]


@pytest.mark.parametrize("wrong", [0, 1, 499, 998, 999])
def test_a_chain_takes_a_logarithm_of_its_length(wrong: int) -> None:
    truth = Truth(CHAIN, [f"a{wrong}"])
    drift = first_drifting(graph(CHAIN, "a999"), "a999", names(CHAIN), truth)
    assert drift == Drifting(wrong, f"a{wrong}", f"a{wrong} drifts")
    assert len(truth.asked) <= math.log2(1000) + 3
    assert max(len(row) for row in truth.asked) == 1


def test_branches() -> None:
    """A wrong branch is not missed because the other one, later in order, agrees."""
    nodes = [
        ("start", ["x"]),
        *((f"l{number}", [f"l{number - 1}" if number else "start"]) for number in range(20)),
        *((f"r{number}", [f"r{number - 1}" if number else "start"]) for number in range(20)),
        ("end", ["l19", "r19"]),
    ]
    for wrong in ("start", "l0", "l7", "l19", "r0", "r13", "end"):
        drift = present(
            first_drifting(graph(nodes, "end"), "end", names(nodes), Truth(nodes, [wrong]))
        )
        assert drift.tensor == wrong


def test_nodes_beside_the_output_are_not_looked_at() -> None:
    nodes = [("a", ["x"]), ("other", ["a"]), ("b", ["a"])]
    truth = Truth(nodes, ["b", "other"])
    drift = present(first_drifting(graph(nodes, "b"), "b", names(nodes), truth))
    assert drift.tensor == "b"
    assert all("other" not in row for row in truth.asked)


def test_tensors_that_one_model_lacks_are_passed_over() -> None:
    seen = names(CHAIN) - {f"a{index}" for index in range(300, 500)}
    drift = present(first_drifting(graph(CHAIN, "a999"), "a999", seen, Truth(CHAIN, ["a400"])))
    assert drift.tensor == "a500"  # the first that can be seen


def test_nothing_can_be_seen() -> None:
    assert first_drifting(graph(CHAIN, "a999"), "a999", frozenset(), Truth(CHAIN, ["a4"])) is None


def test_nothing_drifts_any_more() -> None:
    """Tensors that are looked at may keep a backend from what it did wrong."""
    truth = Truth(CHAIN, [])
    assert first_drifting(graph(CHAIN, "a999"), "a999", names(CHAIN), truth) is None


def test_a_name_that_means_something_else_in_the_other_model() -> None:
    """What drifts without a consequence is no cause."""
    nodes = [("a", ["x"]), ("b", ["a"]), ("c", ["b"]), ("d", ["c"]), ("e", ["d"])]
    truth = Truth(nodes, ["a", "d"], healed="b")
    drift = present(first_drifting(graph(nodes, "e"), "e", names(nodes), truth))
    assert drift.tensor == "d"


def test_the_body_of_a_node_reads_tensors_too() -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["a"], ["inner"])],
        "body",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [1])],
    )
    whole = graph([("a", ["x"]), ("c", ["x"])], "y")
    whole.node.append(
        helper.make_node("If", ["c"], ["y"], name="y", then_branch=body, else_branch=body)
    )
    drift = present(
        first_drifting(whole, "y", frozenset("acy"), Truth([("a", []), ("y", ["a"])], ["a"]))
    )
    assert drift.tensor == "a"


def test_an_order_in_which_nothing_runs_as_written() -> None:
    nodes = [("b", ["a"]), ("a", ["x"])]
    assert Ancestry(graph(nodes, "b"), "b").order == [1, 0]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[tuple[str, list[str]]], str]:
    """Draw a graph and one node that its last one is made of."""
    nodes: list[tuple[str, list[str]]] = []
    for index in range(draw(st.integers(1, 30))):
        tensors = ["x", *(name for name, _ in nodes)]
        reads = draw(st.lists(st.sampled_from(tensors[-6:]), min_size=1, max_size=3, unique=True))
        nodes.append((f"n{index}", reads))
    ancestry = Ancestry(graph(nodes, nodes[-1][0]), nodes[-1][0])
    wrong = draw(st.sampled_from(ancestry.order))
    return nodes, nodes[wrong][0]


@given(graphs())
@settings(max_examples=examples(200))
def test_wrong_node_of_any_graph_is_found(drawn: tuple[list[tuple[str, list[str]]], str]) -> None:
    nodes, wrong = drawn
    output = nodes[-1][0]
    truth = Truth(nodes, [wrong])
    drift = present(first_drifting(graph(nodes, output), output, names(nodes), truth))
    assert drift.tensor == wrong
    assert len(truth.asked) <= math.log2(len(nodes)) + 5
