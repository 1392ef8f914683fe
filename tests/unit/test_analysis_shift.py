"""The p-value that ranks bound, for few slices and for many."""

from math import comb
from time import thread_time

import pytest
from enginewright.analysis.shift import Shift


def certain(slices: int) -> Shift:
    """Return a shift that only the number of slices makes uncertain."""
    return Shift(mean=1.0, slices=slices, variance=1e-12, moderated=1e-12)


@pytest.mark.parametrize("slices", [1, 2, 10, 100, 500])
def test_ranks_bound_few_slices(slices: int) -> None:
    assert certain(slices).chance_above(1.0) == 1 / comb(2 * slices, slices)


def test_many_slices_are_compared_at_once() -> None:
    """As in pods by tens: the binomial of all of them would stall every thread for seconds."""
    start = thread_time()
    assert certain(400_000).chance_above(1.0) == 0.0
    assert thread_time() - start < 0.1
