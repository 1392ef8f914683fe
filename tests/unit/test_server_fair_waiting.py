"""In which order requests run that wait for something slow: clients take turns."""

from types import SimpleNamespace
from typing import Any

from enginewright_runtime.serve.server.account import Peer
from enginewright_runtime.serve.server.fair_waiting import FairWaiting
from enginewright_runtime.serve.server.priorities import DEFAULT, HIGHEST, LOWEST
from hypothesis import given
from hypothesis import strategies as st


def request(peer: Peer | None, number: int = 0, priority: int = DEFAULT) -> Any:
    call = SimpleNamespace(sender=peer)
    return SimpleNamespace(call=call, priority=priority, queued=float(number), turn=0)


def filled(*requests: Any) -> FairWaiting[Any]:
    waiting: FairWaiting[Any] = FairWaiting()
    for each in requests:
        waiting.add(each)
    return waiting


def test_a_client_with_one_request_waits_for_one_of_a_client_with_many() -> None:
    greedy, modest = Peer(), Peer()
    many = [request(greedy) for _ in range(100)]
    waiting = filled(*many)
    assert waiting.take() is many[0]
    one = request(modest)
    waiting.add(one)
    assert waiting.take() is many[1]
    assert waiting.take() is one
    assert waiting.take() is many[2]


def test_who_has_waited_for_nothing_has_no_turns_left_over() -> None:
    early, late = Peer(), Peer()
    waiting = filled(*(request(early) for _ in range(9)))
    for _ in range(9):
        waiting.take()
    first = [request(late), request(early), request(late), request(early)]
    for each in first:
        waiting.add(each)
    assert [waiting.take() for _ in first] == [first[0], first[1], first[2], first[3]]


def test_requests_that_were_given_up_or_expired_cost_no_turn() -> None:
    patient, hasty = Peer(), Peer()
    expired = [request(hasty) for _ in range(9)]
    given_up = [request(hasty, priority=LOWEST) for _ in range(9)]
    waiting = filled(*(request(patient) for _ in range(9)), *expired, *given_up)
    for _ in given_up:
        assert waiting.give_up(DEFAULT) in given_up
    assert waiting.give_up(DEFAULT) is None
    for each in expired:
        assert waiting.discard(each)
    assert not waiting.discard(expired[0])
    waiting.take()
    again = request(hasty)
    waiting.add(again)
    waiting.take()
    assert waiting.take() is again


def test_priorities_come_before_turns() -> None:
    greedy, modest = Peer(), Peer()
    urgent = [request(greedy, priority=HIGHEST) for _ in range(3)]
    usual = request(modest)
    waiting = filled(usual, *urgent)
    assert [waiting.take() for _ in range(4)] == [*urgent, usual]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_no_client_is_two_requests_ahead_of_another_that_waits(senders: list[int]) -> None:
    peers = [Peer() for _ in range(4)]
    waiting = filled(*(request(peers[each], at) for at, each in enumerate(senders)))
    left = [senders.count(each) for each in range(4)]
    taken = [0] * 4
    order: dict[int, list[float]] = {each: [] for each in range(4)}
    while waiting:
        found = waiting.take()
        who = peers.index(found.call.sender)
        taken[who] += 1
        left[who] -= 1
        order[who].append(found.queued)
        assert all(taken[who] <= taken[each] + 1 for each in range(4) if left[each])
    assert all(each == sorted(each) for each in order.values())
    assert sum(taken) == len(senders)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(HIGHEST, LOWEST), st.booleans())))
def test_whatever_arrives_and_runs_each_clients_order_is_kept(
    steps: list[tuple[int, int, bool]],
) -> None:
    peers: list[Peer | None] = [Peer(), Peer(), Peer(), None]
    waiting: FairWaiting[Any] = FairWaiting()
    found: list[Any] = []
    for number, (who, priority, takes) in enumerate(steps):
        waiting.add(request(peers[who], number, priority))
        if takes:
            found.append(waiting.take())
        places = [(each.priority, each.turn) for each in waiting]
        assert places == sorted(places)
    while waiting:
        found.append(waiting.take())
    assert sorted(each.queued for each in found) == [float(n) for n in range(len(steps))]
    for peer in peers:
        for priority in range(HIGHEST, LOWEST + 1):
            own = [
                each.queued
                for each in found
                if each.call.sender is peer and each.priority == priority
            ]
            assert own == sorted(own)
