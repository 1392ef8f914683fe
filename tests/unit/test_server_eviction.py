"""Which connection is closed for a new one, and how those that flood take turns."""

import asyncio
import weakref
from dataclasses import dataclass
from functools import partial

import pytest
from enginewright_serving.transport import input_turns
from enginewright_serving.transport.eviction import Eviction, WaitsFor
from enginewright_serving.transport.input_turns import InputTurns
from typing_extensions import override

NEWEST = 2


@dataclass(eq=False)
class OpenConnection:
    """A connection that waits for something, or for nothing."""

    wait: WaitsFor | None
    since: float = 0.0
    aborted: bool = False

    def waits(self, now: float) -> tuple[WaitsFor, float] | None:
        assert now >= self.since
        return None if self.aborted or self.wait is None else (self.wait, self.since)

    def abort(self) -> None:
        assert not self.aborted
        self.aborted = True


class Table:
    """Connections, and the order in which they are closed."""

    def __init__(self, *clients: OpenConnection) -> None:
        self.clients = list(clients)
        self.now = 100.0
        self.eviction = Eviction(lambda: self.now, NEWEST)

    def close_one(self) -> OpenConnection | None:
        before = [client for client in self.clients if not client.aborted]
        victim = self.eviction.close_one(self.clients)
        closed = [connection for connection in before if connection.aborted]
        assert len(closed) == victim
        return closed[0] if closed else None

    def order(self) -> list[OpenConnection]:
        return list(iter(self.close_one, None))


def test_states_are_closed_in_their_order() -> None:
    clients = [OpenConnection(wait) for wait in WaitsFor if wait is not WaitsFor.NEW]
    assert Table(*reversed(clients)).order() == clients


@pytest.mark.parametrize("wait", list(WaitsFor))
def test_the_longest_is_closed_first(wait: WaitsFor) -> None:
    clients = [OpenConnection(wait, float(number)) for number in range(5)]
    assert Table(*reversed(clients)).order() == clients


def test_the_newest_connections_are_closed_last() -> None:
    active = OpenConnection(WaitsFor.ACTIVE)
    clients = [OpenConnection(WaitsFor.NEW, 50.0 + number) for number in range(5)]
    assert Table(active, *clients).order() == [*clients[:3], active, *clients[3:]]


def test_client_that_no_longer_waits_is_not_closed() -> None:
    first, second, third = (OpenConnection(WaitsFor.IDLE, float(number)) for number in range(3))
    table = Table(first, second, third)
    assert table.close_one() is first
    second.wait = None  # its request has arrived since the order was found
    assert table.close_one() is third
    assert table.close_one() is None


def test_an_order_is_found_again_after_a_while() -> None:
    table = Table(OpenConnection(WaitsFor.ACTIVE, 0.0), OpenConnection(WaitsFor.ACTIVE, 1.0))
    assert table.close_one() is table.clients[0]
    added = OpenConnection(WaitsFor.SILENT, 99.0)
    table.clients.append(added)
    table.now += 1.0
    assert table.close_one() is added


def test_connections_of_an_order_are_let_go() -> None:
    table = Table(*(OpenConnection(WaitsFor.IDLE, float(number)) for number in range(100)))
    assert table.close_one() is not None
    gone = weakref.ref(table.clients.pop())
    assert gone() is not None
    table.eviction.forget()
    assert gone() is None


class Counted(OpenConnection):
    """A connection that counts how often it is asked for what it waits."""

    asked = 0

    @override
    def waits(self, now: float) -> tuple[WaitsFor, float] | None:
        Counted.asked += 1
        return super().waits(now)


def test_a_storm_looks_at_few_connections_for_each_that_is_closed() -> None:
    most, storm = 1000, 5000
    table = Table(*(Counted(WaitsFor.NEW, 99.0) for _ in range(most)))
    for number in range(storm):
        oldest = next(client for client in table.clients if not client.aborted)
        assert table.close_one() is oldest, number
        table.clients.remove(oldest)
        table.now += 0.0005
        table.clients.append(Counted(WaitsFor.NEW, table.now))
    assert Counted.asked < 5 * storm


def test_client_is_closed_by_its_current_rank() -> None:
    clients = [OpenConnection(WaitsFor.NEW, float(number)) for number in range(100)]
    table = Table(*clients)
    assert table.close_one() is clients[0]
    clients[1].wait = WaitsFor.SILENT
    assert table.close_one() is clients[1]


async def _all(queue: InputTurns) -> None:
    """WaitsFor until those that have taken a turn so far have had it."""
    had = asyncio.Event()
    queue.take(had.set)
    await had.wait()


async def test_turns_are_taken_in_order_and_few_at_a_time() -> None:
    taken: list[int] = []
    queue = InputTurns()
    for number in range(100):
        queue.take(partial(taken.append, number))
    await asyncio.sleep(0)
    assert 0 < len(taken) <= input_turns._MOST
    await asyncio.wait_for(_all(queue), 10)
    assert taken == list(range(100))


async def test_failing_turn_does_not_end_others() -> None:
    taken: list[bool] = []

    def fail() -> None:
        raise ZeroDivisionError

    asyncio.get_running_loop().set_exception_handler(lambda *_: taken.append(False))
    queue = InputTurns()
    queue.take(fail)
    queue.take(lambda: taken.append(True))
    await asyncio.wait_for(_all(queue), 10)
    assert taken == [False, True]
