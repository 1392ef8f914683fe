"""The threads beside the event loop: in which order they work, and what waits for them."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, cast

import pytest
from enginewright_runtime.core.request_errors import RequestError
from enginewright_serving.server.inference.request_threads import RequestThreads
from enginewright_serving.server.inference.waiting import Waiting
from enginewright_serving.server.observe.metrics import CLIENT_CLOSED
from enginewright_serving.server.protocol.priorities import DEFAULT, HIGHEST, LOWEST
from enginewright_serving.transport.call import InferenceCall

from tests.support.played_clients import Panic

CAPACITY = 6
SECONDS = 30.0  # after which a test has failed


class Work:
    """One thread that is kept busy until `release`."""

    def __init__(self) -> None:
        self.threads = RequestThreads("work", 1, CAPACITY, "requests", "for a turn")
        self.order: list[str] = []
        self._held, self._begun = threading.Event(), threading.Event()
        self._ends: dict[str, asyncio.Future[asyncio.Future[Any]]] = {}

    def submit(
        self, name: str, call: InferenceCall, do: Callable[[], Any] | None = None, **more: Any
    ) -> None:
        end = self._ends[name] = asyncio.get_running_loop().create_future()
        more.setdefault("gives_way", True)
        self.threads.submit(call, do or partial(self.order.append, name), end.set_result, **more)

    async def hold(self) -> None:
        """Keep the thread busy."""

        def wait() -> None:
            self._begun.set()
            assert self._held.wait(SECONDS)

        self.submit("held", InferenceCall(), wait)
        assert await asyncio.to_thread(self._begun.wait, SECONDS)

    def release(self) -> None:
        self._held.set()

    async def end(self, name: str) -> BaseException | None:
        """Wait until a request has ended; return its error."""
        ended = await asyncio.wait_for(self._ends[name], SECONDS)
        return ended.exception()

    async def refusal(self, name: str) -> RequestError:
        error = await self.end(name)
        assert isinstance(error, RequestError)
        return error


@pytest.fixture
async def work() -> AsyncIterator[Work]:
    thread = Work()
    await thread.hold()
    yield thread
    thread.release()
    for name in thread._ends:
        await thread.end(name)
    assert thread.threads.outstanding == 0


async def test_urgent_requests_come_first(work: Work) -> None:
    for name, priority in (("low", LOWEST), ("usual", DEFAULT), ("high", HIGHEST)):
        work.submit(name, InferenceCall(), priority=priority)
    work.release()
    await work.end("low")
    assert work.order == ["high", "usual", "low"]


async def test_expired_and_abandoned_work_is_skipped(work: Work) -> None:
    gone = InferenceCall()
    work.submit("gone", gone)
    work.submit("late", InferenceCall(), deadline=time.monotonic() + 0.01)
    work.submit("patient", InferenceCall(), deadline=time.monotonic() + 10 * SECONDS)
    assert work.threads.waiting == 3
    error = await work.refusal("late")  # at its deadline, while the thread is busy
    assert (error.status, error.message) == (
        504,
        "the request waited longer than its timeout for a turn",
    )
    assert work.threads.waiting == 2
    gone.abandoned = True
    work.release()
    assert (await work.refusal("gone")).status == CLIENT_CLOSED
    await work.end("patient")
    assert work.order == ["patient"]


def fill(work: Work, **more: Any) -> None:
    for number in range(CAPACITY):
        work.submit(f"{number}", InferenceCall(), **more)
    assert work.threads.full


async def test_one_more_than_may_wait_is_refused(work: Work) -> None:
    fill(work)
    for check in (work.threads.check_room, work.threads.make_room):
        with pytest.raises(RequestError, match="6 requests wait for a turn; try again") as refused:
            check(DEFAULT)
        assert refused.value.status == 503


async def test_a_request_of_low_priority_gives_up_its_place(work: Work) -> None:
    fill(work, priority=LOWEST)
    work.threads.check_room(DEFAULT)
    work.threads.make_room(DEFAULT)
    error = await work.refusal("5")
    assert "requests of a higher priority wait for a turn" in error.message


@pytest.mark.parametrize("priority", [HIGHEST, LOWEST])
async def test_work_without_priority_keeps_its_place(work: Work, priority: int) -> None:
    fill(work, gives_way=False, priority=priority)
    for check in (work.threads.check_room, work.threads.make_room):
        with pytest.raises(RequestError, match="6 requests wait for a turn; try again"):
            check(DEFAULT)


async def test_abandoned_work_makes_room(work: Work) -> None:
    calls = [InferenceCall() for _ in range(CAPACITY)]
    for number, call in enumerate(calls):
        work.submit(f"{number}", call, gives_way=number != 1)
    for call in calls[:3]:
        call.abandoned = True
    work.threads.check_room(DEFAULT)
    for name in "012":
        assert (await work.refusal(name)).status == CLIENT_CLOSED
    assert work.threads.waiting == CAPACITY - 3


async def test_a_request_that_gives_its_place_once_its_client_has_left_is_not_refused(
    work: Work,
) -> None:
    fill(work)
    with pytest.raises(RequestError, match="6 requests wait for a turn; try again"):
        work.threads.make_room(DEFAULT)
    last = InferenceCall()
    work.submit("last", last, priority=LOWEST)
    last.abandoned = True
    work.threads.make_room(DEFAULT)
    assert (await work.refusal("last")).status == CLIENT_CLOSED


async def test_abandoned_work_is_no_timeout(work: Work) -> None:
    gone = InferenceCall()
    work.submit("gone", gone, deadline=time.monotonic() + 0.01)
    gone.abandoned = True
    assert (await work.refusal("gone")).status == CLIENT_CLOSED


async def test_a_failure_is_of_one_request(work: Work) -> None:
    def fail() -> None:
        raise OSError("broken")

    work.submit("broken", InferenceCall(), fail)
    work.submit("well", InferenceCall())
    work.release()
    assert isinstance(await work.end("broken"), OSError)
    await work.end("well")
    assert work.order == ["well"]


@pytest.mark.parametrize(
    "error", [Panic("in native code"), SystemExit(1), StopIteration()], ids=repr
)
async def test_the_thread_survives_any_exception(work: Work, error: BaseException) -> None:
    def fail() -> None:
        raise error

    work.submit("broken", InferenceCall(), fail)
    work.submit("well", InferenceCall())
    work.release()
    caught = await work.end("broken")
    assert isinstance(caught, RuntimeError)
    assert caught.__cause__ is error
    await work.end("well")
    work.submit("later", InferenceCall())
    await work.end("later")
    assert work.order == ["well", "later"]


async def test_an_error_in_the_queue_ends_no_thread(
    work: Work, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    be_fair, errors = Waiting.be_fair, [MemoryError("no space")]

    def fail_once(queue: Waiting[Any]) -> None:
        if errors:
            raise errors.pop()
        be_fair(queue)

    monkeypatch.setattr(Waiting, "be_fair", fail_once)
    work.submit("next", InferenceCall())
    work.release()
    assert await work.end("next") is None
    assert not errors
    assert "no space" in caplog.text


class ForgetfulLoop:
    """An event loop that finds no memory to be woken, once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._forgets = True

    def is_closed(self) -> bool:
        return self._loop.is_closed()

    def call_soon_threadsafe(self, call: Callable[..., None], *arguments: Any) -> None:
        if self._forgets:
            self._forgets = False
            raise MemoryError("no space")
        self._loop.call_soon_threadsafe(call, *arguments)


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Work:
    """Work whose thread finds no memory to end its first request."""
    run = RequestThreads._run

    def run_forgetfully(threads: RequestThreads, loop: Any, start: object) -> None:
        run(threads, cast("Any", ForgetfulLoop(loop)), start)

    monkeypatch.setattr(RequestThreads, "_run", run_forgetfully)
    return Work()


async def test_a_request_whose_end_finds_no_memory_is_worked_on_once_and_ends(
    forgetful: Work, caplog: pytest.LogCaptureFixture
) -> None:
    forgetful.submit("first", InferenceCall())
    forgetful.submit("second", InferenceCall())
    assert [await forgetful.end("first"), await forgetful.end("second")] == [None, None]
    assert forgetful.order == ["first", "second"]
    assert forgetful.threads.outstanding == 0
    assert "no space" in caplog.text


async def test_abandoned_work_that_cannot_be_ended_keeps_no_other_waiting(
    work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    calls = [InferenceCall() for _ in range(CAPACITY)]
    for number, call in enumerate(calls):
        work.submit(f"{number}", call)
    work._ends.pop("0").cancel()  # its end raises
    for call in calls[:3]:
        call.abandoned = True
    work.threads.check_room(DEFAULT)
    for name in "12":
        assert (await work.refusal(name)).status == CLIENT_CLOSED
    assert work.threads.waiting == CAPACITY - 3
    assert "InvalidStateError" in caplog.text


async def test_a_request_that_finds_no_memory_to_wait_leaves_the_others_their_places(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(Waiting, "add", fail)
        with pytest.raises(MemoryError):
            work.submit("first", InferenceCall(), deadline=time.monotonic() + 0.01)
    del work._ends["first"]
    assert work.threads.outstanding == 1, "the one that is held"
    work.submit("late", InferenceCall(), deadline=time.monotonic() + 0.02)
    assert (await work.refusal("late")).status == 504, "and the first one is not answered again"


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
async def test_a_request_for_which_no_thread_starts_leaves_the_others_their_places(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: threading.Thread) -> None:
        raise error("can't start new thread")

    work = Work()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        for name in ("first", "second"):
            with pytest.raises(error, match="start new thread"):
                work.submit(name, InferenceCall(), deadline=time.monotonic() + SECONDS)
            del work._ends[name]
    assert work.threads.outstanding == 0
    for name in ("third", "fourth"):
        work.submit(name, InferenceCall())
    for name in ("third", "fourth"):
        assert await work.end(name) is None
    assert work.order == ["third", "fourth"]
    assert work.threads.outstanding == 0
