"""Copies of requests that the server keeps for its sidecar: few, not large, and freed if unclaimed."""

import asyncio
from collections.abc import Callable

import numpy as np
from enginewright_serving.exchanges import ASKED_SECONDS, LARGEST_BYTES, ExchangeHead
from enginewright_serving.server.api.copies import MOST, MOST_BYTES, Copies
from enginewright_serving.transport.message import BINARY_TYPE, JSON_TYPE, Body, HttpResponse

from tests.support.virtual_time import run


def body(size: int) -> Body:
    made = Body(size, 0)
    made.view()[:] = bytes([7]) * size
    return made


def answer(size: int) -> HttpResponse:
    return HttpResponse(200, JSON_TYPE, [b"a" * size], size)


def head_of(response: HttpResponse) -> ExchangeHead:
    line = next(part for part in response.headers.split(b"\r\n") if b"Shadow" in part)
    return ExchangeHead.read(line.split(b": ")[1])


def run_act(act: Callable[[Copies], None], chance: float = 0.0) -> None:
    async def start() -> None:
        act(Copies(lambda: chance))

    run(start())


def test_a_copy_has_both_bodies_and_says_where_they_are() -> None:
    def act(kept: Copies) -> None:
        kept.ask(1.0)
        kept.add(body(100), None, answer(50))
        tensor = np.arange(4, dtype=np.float32)
        parts: list[bytes | memoryview] = [b"{...}", tensor.view("u1").data]
        kept.add(body(10), 6, HttpResponse(200, BINARY_TYPE + b"x: y\r\n", parts, 21))
        first, second, third = kept.take(), kept.take(), kept.take()
        assert head_of(first) == ExchangeHead(0, 100, None, None)
        assert b"".join(first.parts) == b"\7" * 100 + b"a" * 50
        assert head_of(second) == ExchangeHead(0, 10, 6, 5)
        assert b"".join(second.parts) == b"\7" * 10 + b"{...}" + tensor.tobytes()
        assert (second.length, third.length, head_of(third)) == (31, 0, ExchangeHead(0))

    run_act(act)


def test_a_share_is_chosen_and_none_before_somebody_asks() -> None:
    def act(kept: Copies) -> None:
        assert not kept.chooses()
        kept.ask(0.5)
        assert not kept.chooses(), "the chance is 0.5, from 0 to below 1"
        kept.ask(0.51)
        assert kept.chooses()

    run_act(act, chance=0.5)


def test_copies_are_bounded_and_dropped_ones_counted() -> None:
    def act(kept: Copies) -> None:
        kept.ask(1.0)
        for _ in range(MOST + 3):
            kept.add(body(1), None, answer(1))
        assert head_of(kept.take()).dropped == 3
        kept.stop()
        kept.ask(1.0)
        kept.add(body(LARGEST_BYTES), None, answer(1))
        assert (kept.kept_bytes, head_of(kept.take())) == (0, ExchangeHead(4)), "too large"
        for _ in range(5):
            kept.add(body(LARGEST_BYTES - 1), None, answer(1))
        assert kept.kept_bytes == MOST_BYTES
        assert head_of(kept.take()).dropped == 7
        assert kept.kept_bytes == MOST_BYTES - LARGEST_BYTES

    run_act(act)


def test_unclaimed_copies_are_freed() -> None:
    async def act() -> None:
        kept = Copies(lambda: 0.0)
        kept.ask(1.0)
        kept.add(body(100), None, answer(1))
        await asyncio.sleep(0.6 * ASKED_SECONDS)
        kept.ask(1.0)
        await asyncio.sleep(0.6 * ASKED_SECONDS)
        assert kept.kept_bytes == 101, "it is still asked for"
        await asyncio.sleep(0.6 * ASKED_SECONDS)
        assert kept.kept_bytes == 0
        assert not kept.chooses()
        kept.add(body(1), None, answer(1))  # chosen before the end
        assert kept.kept_bytes == 0

    run(act())
