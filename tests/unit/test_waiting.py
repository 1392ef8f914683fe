"""Deadlines of tests are postponed by a busy machine, and come."""

import pytest

from tests.support.waiting import Deadline, processor_share, until


@pytest.mark.parametrize(("share", "seconds"), [(1.0, 10), (0.5, 20), (0.1, 100)])
def test_deadline_follows_cpu_seconds(share: float, seconds: int) -> None:
    now = 0.0
    deadline = Deadline(10, clock=lambda: now, share=lambda: share)
    for _ in range(seconds - 1):
        now += 1
        assert not deadline.is_over()
    now += 1.001
    assert deadline.is_over()


def test_a_share_is_a_part_of_a_processor() -> None:
    assert 0 < processor_share() <= 1


def test_value_is_returned_or_time_ends() -> None:
    polls = iter(["", "", "here"])
    assert until(lambda: next(polls), interval=0) == "here"
    with pytest.raises(AssertionError, match="the letter did not come within 0 s"):
        until(lambda: False, "the letter", seconds=0)
