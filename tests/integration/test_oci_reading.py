"""A push that is interrupted while it reads the store: the thread's read ends before another try reads the same file."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from enginewright_runtime.oci.registry import _next


def test_a_read_that_is_under_way_ends_before_its_cancellation_goes_on() -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def chunks() -> Iterator[bytes]:
        begun.set()
        assert go_on.wait(30)
        ended.set()
        yield b"chunk"

    async def interrupt() -> None:
        reading = asyncio.ensure_future(_next(chunks()))
        assert await asyncio.to_thread(begun.wait, 30)
        reading.cancel()
        await asyncio.sleep(0)
        assert not reading.done(), "it waits for the thread"
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(interrupt())
    assert ended.is_set()


def test_chunks_end_with_an_empty_one() -> None:
    async def read() -> list[bytes]:
        chunks = iter((b"a", b"b"))
        return [await _next(chunks) for _ in range(3)]

    assert asyncio.run(read()) == [b"a", b"b", b""]
