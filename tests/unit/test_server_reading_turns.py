"""Connections that are read from in turns."""

import asyncio

import pytest
from enginewright_serving.server.reading_turns import WATCHED, ReadingTurns


class Sender:
    """A connection to which something has been sent, or nothing."""

    def __init__(
        self,
        queue: ReadingTurns,
        *,
        sends: bool = False,
        fails: bool = False,
        fails_to_rest: bool = False,
    ) -> None:
        self.is_watched = False
        self.is_one_of_many = True
        self.turns = 0
        self._queue = queue
        self._sends = sends
        self._fails = fails
        self._fails_to_rest = fails_to_rest

    def watch(self) -> None:
        if self._fails:
            raise ZeroDivisionError
        self.turns += 1
        self.is_watched = True
        if self._sends:  # the event loop reads, and the connection waits for its next turn
            self.is_watched = False
            self._queue.take(self)

    def rest(self) -> bool:
        if self._fails_to_rest:
            raise ZeroDivisionError
        if not self.is_watched or not self.is_one_of_many:
            return False
        self.is_watched = False
        return True


async def _until_each_had(senders: list[Sender], turns: int) -> None:
    async with asyncio.timeout(10):
        while any(each.turns < turns for each in senders):
            assert sum(each.is_watched for each in senders) <= WATCHED
            await asyncio.sleep(0)


@pytest.mark.parametrize("sends", [False, True])
def test_few_are_watched_at_a_time_and_each_has_its_turn_again(sends: bool) -> None:
    async def run() -> None:
        queue = ReadingTurns()
        senders = [Sender(queue, sends=sends) for _ in range(5 * WATCHED)]
        for each in senders:
            queue.take(each)
        await _until_each_had(senders, 3)
        assert max(each.turns for each in senders) <= 5

    asyncio.run(run())


def test_who_is_not_one_of_many_any_more_is_watched_from_then_on() -> None:
    async def run() -> None:
        queue = ReadingTurns()
        one = Sender(queue)
        queue.take(one)
        await _until_each_had([one], 2)
        one.is_one_of_many = False
        await asyncio.sleep(0.02)
        turns = one.turns
        await asyncio.sleep(0.02)
        assert one.is_watched
        assert one.turns == turns

    asyncio.run(run())


@pytest.mark.parametrize("how", ["fails", "fails_to_rest"])
def test_who_fails_in_its_turn_does_not_end_those_of_others(how: str) -> None:
    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        queue = ReadingTurns()
        other = Sender(queue)
        queue.take(Sender(queue, **{how: True}))
        queue.take(other)
        await _until_each_had([other], 3)

    asyncio.run(run())
