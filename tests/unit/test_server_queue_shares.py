"""Whose waiting request is given up for another client's."""

from types import SimpleNamespace
from typing import cast

from enginewright_serving.server.account import Peer
from enginewright_serving.server.job import Job
from enginewright_serving.server.queue_shares import QueueShares
from hypothesis import given
from hypothesis import strategies as st

USUAL = 3


class _Job(SimpleNamespace):
    """What the shares read of a job."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # SimpleNamespace has none, since it compares values


def job(peer: Peer | None, priority: int = USUAL, *, reserved: bool = False) -> Job:
    call = SimpleNamespace(sender=peer, reserved=reserved)
    return cast("Job", _Job(call=call, priority=priority))


class Queue:
    """Jobs in order, and a clock."""

    def __init__(self, *jobs: Job) -> None:
        self.jobs = list(jobs)
        self.now = 0.0
        self.shares = QueueShares(lambda: self.jobs, lambda: self.now)

    def ask(self, peer: Peer | None, priority: int = USUAL) -> Job | None:
        """Give up a job for one of `peer` if there is one, as a full queue does."""
        for each in self.shares.candidates(peer, priority):
            if each in self.jobs:
                self.jobs.remove(each)
                self.jobs.append(job(peer, priority))
                if peer is not None:
                    self.shares.took(peer)
                return each
        return None


def test_the_newest_of_the_client_with_the_most_is_given_up_first() -> None:
    most, many, new = Peer(), Peer(), Peer()
    jobs = [job(most), job(many), job(most), job(many), job(many), job(most), job(most)]
    queue = Queue(*jobs)
    assert queue.ask(new) is jobs[6]
    assert queue.ask(new) is None  # nobody has more than twice the two that it would have
    assert queue.ask(most) is None


def test_a_client_has_what_others_want_until_it_has_twice_as_much() -> None:
    greedy, modest = Peer(), Peer()
    queue = Queue(*(job(greedy) for _ in range(256)))
    taken = 0
    while queue.ask(modest) is not None:
        taken += 1
        queue.now += 0.001
    assert taken == 85
    assert queue.ask(greedy) is None


def test_more_urgent_requests_and_those_of_probes_are_not_given_up() -> None:
    greedy, modest = Peer(), Peer()
    urgent = [job(greedy, 1) for _ in range(9)]
    usual = job(greedy)
    probes = [job(greedy, 1, reserved=True) for _ in range(9)]
    queue = Queue(*probes, *urgent, usual)
    assert queue.ask(modest) is usual
    assert queue.ask(modest) is None
    assert queue.ask(Peer(), 1) is urgent[-1]


def test_who_is_unknown_takes_no_place() -> None:
    greedy = Peer()
    queue = Queue(*(job(greedy) for _ in range(9)))
    assert not queue.shares.may_take(None)
    assert queue.ask(None) is None


def test_what_has_run_meanwhile_is_passed_over_and_looked_for_again() -> None:
    greedy, modest = Peer(), Peer()
    queue = Queue(*(job(greedy) for _ in range(9)))
    assert queue.shares.may_take(modest)
    queue.jobs = [job(greedy) for _ in range(9)]
    assert queue.ask(modest) is None
    queue.now += 0.003
    assert queue.ask(modest) is not None


def test_a_request_that_has_ended_is_not_kept() -> None:
    greedy = Peer()
    queue = Queue(*(job(greedy) for _ in range(9)))
    assert queue.shares.may_take(Peer())
    queue.jobs.clear()
    assert queue.ask(Peer()) is None


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), max_size=40))
def test_nobody_loses_places_to_one_that_has_more(have: list[int], ask: list[int]) -> None:
    peers = [Peer() for _ in range(4)]
    queue = Queue(*(job(peers[number]) for number in have))
    for number in ask:
        peer = peers[number]
        held = {each: sum(job.call.sender is each for job in queue.jobs) for each in peers}
        found = queue.ask(peer)
        if found is not None:
            loser = found.call.sender
            assert loser is not None
            assert held[loser] > held[peer] + 1
        queue.now += 1
