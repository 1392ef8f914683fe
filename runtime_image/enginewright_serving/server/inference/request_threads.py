"""Threads that work on requests beside the event loop, and the bounded queue before them.

Work that would block the event loop for more than a millisecond is done here: steps of spec.processing, decoding and
encoding. Requests of high priorities come first; those whose clients have left are skipped. While the queue is full,
these make room, then the newest one of a lower priority, as in the model's queue.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from enginewright_runtime.core.request_errors import RequestError

from enginewright_serving.server.inference.request_failures import busy
from enginewright_serving.server.inference.waiting import Waiting
from enginewright_serving.server.observe.metrics import CLIENT_CLOSED
from enginewright_serving.server.protocol.priorities import DEFAULT
from enginewright_serving.transport.call import InferenceCall

_LOOK_SECONDS: Final = 0.02  # between searches of a full queue for requests whose clients have left
_RETRY_SECONDS: Final = 0.1  # after an error in the queue itself

_log: Final = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class _Work(Generic[_T]):
    call: InferenceCall
    do: Callable[[], _T]
    done: Callable[[asyncio.Future[_T]], None]
    priority: int
    ended: asyncio.Future[_T]  # made first: once a request waits, its end needs no memory
    gives_way: bool
    queued: float = field(default_factory=time.monotonic)
    timer: asyncio.TimerHandle | None = None


class RequestThreads:
    """Threads for requests, and their queue; used by the event loop."""

    def __init__(self, name: str, threads: int, capacity: int, who: str, purpose: str) -> None:
        """Let `capacity` requests wait.

        Clients read that `who`, such as "requests", wait for a `purpose`, such as "to be read".
        """
        self._threads = threads
        self._executor = ThreadPoolExecutor(threads, name)
        self._capacity = capacity
        self._who = who
        self._purpose = purpose
        self.outstanding = 0  # requests that wait or are worked on; of the event loop
        self._searched_at = float("-inf")  # for requests whose clients have left
        self._lock = threading.Lock()  # guards the next two
        self._queue: Waiting[_Work[Any]] = Waiting()
        self._working: set[object] = set()  # one for each thread that works, or is about to

    @property
    def waiting(self) -> int:
        """Requests that wait, without those that a thread is about to take."""
        return max(0, self.outstanding - self._threads)

    @property
    def full(self) -> bool:
        """Whether no more may wait."""
        return self.waiting >= self._capacity

    def check_room(self, priority: int) -> None:
        """Refuse a request for which `make_room` would find no room: RequestError 503."""
        if self._stays_full() and not self._has_below(priority):
            raise self._full()

    def make_room(self, priority: int) -> None:
        """If the queue is full, refuse a waiting request of a lower priority; raise RequestError 503 if there is none."""
        if not self._stays_full():
            return
        refusal = busy(f"{self._who} of a higher priority wait {self._purpose}")
        work = self._give_up(priority)
        if work is None:
            raise self._full()
        self._end(work, refusal)

    def submit(
        self,
        call: InferenceCall,
        do: Callable[[], _T],
        done: Callable[[asyncio.Future[_T]], None],
        *,
        priority: int = DEFAULT,
        deadline: float = 0.0,
        gives_way: bool = False,
    ) -> None:
        """Work on a request in a thread, unless its client leaves or `deadline` passes before.

        `done` is called in the event loop, at the `deadline` (`time.monotonic()`; 0 without one) if the work has
        not begun. `gives_way`: another may get its place, see `make_room`. RuntimeError or MemoryError means that no
        thread could be started; then the request does not wait.
        """
        loop = asyncio.get_running_loop()
        work = _Work(call, do, done, priority, loop.create_future(), gives_way=gives_way)
        if deadline:
            work.timer = loop.call_later(deadline - work.queued, self._expire, work)
        start = object()
        with self._lock:
            self._queue.add(work)
            self.outstanding += 1  # unless that has failed
            if len(self._working) == self._threads:
                return
        try:
            with self._lock:
                self._working.add(start)
            self._executor.submit(self._run, loop, start)
        except (RuntimeError, MemoryError):  # such as at the limit of the process's threads
            if self._is_taken_back(work, start):
                raise

    # In the event loop.

    def _is_taken_back(self, work: _Work[Any], start: object) -> bool:
        """Take back `work`, for which no thread could be started; return False if another one works on it.

        The executor has kept `start`, for a thread that it may start later.
        """
        with self._lock:
            self._working.discard(start)
            waits = self._queue.discard(work)
        if waits:
            self._leave(work)
        return waits

    def _stays_full(self) -> bool:
        if not self.full:
            return False
        now = time.monotonic()
        if now - self._searched_at > _LOOK_SECONDS:
            self._searched_at = now
            with self._lock:
                abandoned = self._queue.remove_abandoned()
            self._end_abandoned(abandoned)
        return self.full

    def _has_below(self, priority: int) -> bool:
        with self._lock:
            return self._queue.has_below(priority) and self._queue[-1].gives_way

    def _give_up(self, priority: int) -> _Work[Any] | None:
        with self._lock:
            gives_way = self._queue and self._queue[-1].gives_way
            return self._queue.give_up(priority) if gives_way else None

    def _full(self) -> RequestError:
        return busy(f"{self.waiting} {self._who} wait {self._purpose}")

    def _expire(self, work: _Work[Any]) -> None:
        late = RequestError(504, f"the request waited longer than its timeout {self._purpose}")
        with self._lock:
            waits = self._queue.discard(work)
        if waits:
            self._end(work, late)

    def _end_abandoned(self, abandoned: list[_Work[Any]]) -> None:
        for work in abandoned:
            try:
                self._end(work, _client_has_left())
            except Exception:  # noqa: BLE001 - it is one request's: the others end too
                _log.exception("unexpected error while ending a request whose client has left")

    def _end(self, work: _Work[_T], error: RequestError) -> None:
        work.ended.set_exception(_client_has_left() if work.call.abandoned else error)
        self._finish(work)

    def _finish(self, work: _Work[_T]) -> None:
        self._leave(work)
        work.done(work.ended)

    def _leave(self, work: _Work[Any]) -> None:
        self.outstanding -= 1
        if work.timer is not None:
            work.timer.cancel()

    # In a thread.

    def _run(self, loop: asyncio.AbstractEventLoop, start: object) -> None:
        work: _Work[Any] | None = None
        while not loop.is_closed():  # else the process is exiting
            try:
                # after an error, such as a lack of memory, the same request again: nothing else answers it
                while work is not None or (work := self._next(start)) is not None:
                    if not work.ended.done():
                        _do(work)
                    loop.call_soon_threadsafe(self._finish, work)
                    work = None  # which an error in it refers to, by this frame
            except BaseException:  # noqa: BLE001 - the thread works on the next requests
                if not loop.is_closed():
                    _log.exception("unexpected error while taking requests")
                    time.sleep(_RETRY_SECONDS)
            else:
                return

    def _next(self, start: object) -> _Work[Any] | None:
        """Take the next work, whose client may have left; end `start` if there is none."""
        with self._lock:
            if self._queue:
                self._queue.be_fair()
                return self._queue.popleft()
            self._working.discard(start)
            return None


def _do(work: _Work[Any]) -> None:
    ended = work.ended
    try:
        if work.call.abandoned:
            ended.set_exception(_client_has_left())
        else:
            ended.set_result(work.do())
    except BaseException as error:  # noqa: BLE001 - it fails one request, not the thread
        ended.set_exception(_as_exception(error))
        del ended, work  # likewise


def _as_exception(error: BaseException) -> Exception:
    """Return `error`, or a replacement that neither ends the event loop nor is refused by a future."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    replacement = RuntimeError(f"{type(error).__name__} was raised")
    replacement.__cause__ = error
    return replacement


def _client_has_left() -> RequestError:
    return RequestError(CLIENT_CLOSED, "the client has left")
