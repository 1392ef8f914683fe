"""Requests that wait for something slow: clients take turns within a priority. Pure.

A client that sends many requests has them wait behind those of clients with few, however many it has. This
is start-time fair queueing (Goyal, Vin and Cheng, 1996) in which every request counts as one.
"""

from bisect import insort_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from typing_extensions import override

from enginewright_runtime.serve.server.waiting import Waiting, Waits

if TYPE_CHECKING:
    from enginewright_runtime.serve.server.account import Peer


class TakesTurns(Waits, Protocol):
    """What waits, and its turn."""

    turn: int


_W = TypeVar("_W", bound=TakesTurns)


@dataclass(slots=True)
class _Line:
    """What one client has waiting."""

    last: int  # turn of the newest
    length: int = 0


class FairWaiting(Waiting[_W]):
    """A queue whose first request is the next one, and whose last one is the first to give up."""

    __slots__ = ("_lines", "_turn")

    def __init__(self) -> None:
        super().__init__()
        self._turn = 0  # of the last request that was taken
        self._lines: dict[Peer | None, _Line] = {}  # of clients that wait; None: all unknown ones

    @override
    def add(self, job: _W) -> None:
        """Insert `job` where it is its client's turn, behind other requests of that turn."""
        line = self._lines.setdefault(job.call.sender, _Line(self._turn))
        job.turn = line.last = max(self._turn, line.last) + 1
        line.length += 1
        insort_right(self, job, key=_place)

    def take(self) -> _W:
        """Remove and return the next request."""
        self.be_fair()
        job = self.popleft()
        self._turn = max(self._turn, job.turn)
        self._left(job)
        return job

    @override
    def discard(self, job: _W) -> bool:
        """Remove `job`; False: it is not here."""
        found = super().discard(job)
        if found:
            self._left(job)
        return found

    @override
    def give_up(self, priority: int) -> _W | None:
        """Remove and return the last of the lowest priority; None: none is below `priority`."""
        job = super().give_up(priority)
        if job is not None:
            self._left(job)
        return job

    def _left(self, job: _W) -> None:
        """Forget a request, so that one that did not run costs its client no turn."""
        peer = job.call.sender
        line = self._lines[peer]
        line.length -= 1
        if not line.length:
            del self._lines[peer]
        elif job.turn == line.last:
            line.last -= 1


def _place(job: TakesTurns) -> tuple[int, int]:
    return job.priority, job.turn
