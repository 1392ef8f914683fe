"""The node that keeps a model from being built is the last of the shortest beginning that fails."""

from collections.abc import Sequence

from enginewright_runtime.engine.culprit import bisect
from hypothesis import given
from hypothesis import strategies as st


@given(st.data())
def test_the_first_node_with_which_a_beginning_fails_is_returned(data: st.DataObject) -> None:
    nodes = data.draw(st.lists(st.integers(0, 999), min_size=1, max_size=200, unique=True))
    culprits = data.draw(st.sets(st.sampled_from(nodes), min_size=1))
    tried: list[int] = []

    def fails(beginning: Sequence[int]) -> bool:
        assert 0 < len(beginning) < len(nodes), "all of them are known to fail"
        tried.append(len(beginning))
        return not culprits.isdisjoint(beginning)

    assert bisect(nodes, fails) == next(node for node in nodes if node in culprits)
    assert len(tried) <= len(nodes).bit_length()
    assert len(set(tried)) == len(tried)
