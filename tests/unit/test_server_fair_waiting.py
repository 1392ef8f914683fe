"""In which order requests run that wait for something slow: clients take turns."""

from types import SimpleNamespace
from typing import Any

from enginewright_serving.server.account import Peer
from enginewright_serving.server.fair_waiting import FairWaiting
from enginewright_serving.server.priorities import DEFAULT, HIGHEST, LOWEST
from hypothesis import given
from hypothesis import strategies as st


def request(peer: Peer | None, number: int = 0, priority: int = DEFAULT) -> Any:
    call = SimpleNamespace(sender=peer, abandoned=False)
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


def test_urgent_requests_of_others_cost_a_client_of_a_lower_priority_no_turn() -> None:
    greedy, urgent, modest = Peer(), Peer(), Peer()
    waiting = filled(*(request(greedy) for _ in range(200)))
    for _ in range(100):  # one at a time
        each = request(urgent, priority=HIGHEST)
        waiting.add(each)
        while waiting.take() is not each:
            pass
    one = request(modest)
    waiting.add(one)
    assert one in [waiting.take() for _ in range(2)]


def test_those_behind_what_expired_move_up() -> None:
    hasty, other = Peer(), Peer()
    of_hasty, of_other = ([request(each) for _ in range(9)] for each in (hasty, other))
    waiting = filled(*of_hasty, *of_other)
    for each in [*of_hasty[:3], *of_hasty[4:8]]:
        assert waiting.discard(each)
    assert [waiting.take() for _ in range(4)] == [
        of_other[0],
        of_hasty[3],
        of_other[1],
        of_hasty[8],
    ]


def test_requests_of_a_low_priority_cost_urgent_ones_of_their_client_no_turn() -> None:
    peer, other = Peer(), Peer()
    low = [request(peer, priority=LOWEST) for _ in range(9)]
    usual, of_other = request(peer), [request(other) for _ in range(3)]
    waiting = filled(*low, *of_other, usual)
    for each in reversed(low[1:]):
        assert waiting.give_up(DEFAULT) is each
    again = request(peer, priority=LOWEST)
    waiting.add(again)
    assert [waiting.take() for _ in range(6)] == [of_other[0], usual, *of_other[1:], low[0], again]


def test_those_behind_what_was_abandoned_move_up() -> None:
    peer, other = Peer(), Peer()
    left = [request(peer) for _ in range(9)]
    of_other = [request(other) for _ in range(9)]
    waiting = filled(*of_other, *left)
    again = request(peer)
    waiting.add(again)
    for each in left:
        each.call.abandoned = True
    assert waiting.take() is of_other[0]
    assert waiting.remove_abandoned() == left
    assert waiting.remove_abandoned() == []
    assert [waiting.take(), waiting.take()] == [again, of_other[1]]


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=60))
def test_what_did_not_run_leaves_the_order_as_if_it_had_never_come(
    steps: list[tuple[int, bool]],
) -> None:
    peers = [Peer() for _ in range(3)]
    requests = [request(peers[who], at) for at, (who, _) in enumerate(steps)]
    waiting = filled(*requests)
    stay = [each for each, (_, stays) in zip(requests, steps, strict=True) if stays]
    for each in requests:
        if each not in stay:
            assert waiting.discard(each)
    found = [waiting.take() for _ in stay]
    turns = [each.turn for each in found]
    assert turns == sorted(turns)
    filled(*stay)  # gives them their turns anew
    assert turns == [each.turn for each in found]


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
