"""Requests that wait for something slow: clients take turns within a priority. Pure.

A client that sends many requests has them wait behind those of clients with few, however many it has. This
is start-time fair queueing (Goyal, Vin and Cheng, 1996), by priority, in which every request that runs
counts as one. Those behind a request that does not run move up, all at once before the next one that comes
or runs, since many may expire at the same time.
"""

from bisect import bisect_left, insort_right
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from typing_extensions import override

from enginewright_serving.server.waiting import Waiting, Waits

if TYPE_CHECKING:
    from enginewright_serving.server.account import Peer


class TakesTurns(Waits, Protocol):
    """What waits, and its turn."""

    turn: int


_W = TypeVar("_W", bound=TakesTurns)


@dataclass(slots=True)
class _Line:
    """What one client has waiting, of one priority."""

    last: int  # turn of the newest
    length: int = 0
    gaps: list[int] = field(default_factory=list)  # turns of those that do not run


class FairWaiting(Waiting[_W]):
    """A queue whose first request is the next one, and whose last one is the first to give up."""

    __slots__ = ("_has_gaps", "_lines", "_turns")

    def __init__(self) -> None:
        super().__init__()
        self._turns: Counter[int] = Counter()  # by priority: of the last request that was taken
        # of clients that wait, by priority; None: all unknown ones
        self._lines: dict[tuple[Peer | None, int], _Line] = {}
        self._has_gaps = False

    @override
    def add(self, job: _W) -> None:
        """Insert `job` where it is its client's turn, behind other requests of that turn."""
        self._close_gaps()
        turn = self._turns[job.priority]
        line = self._lines.setdefault(_key(job), _Line(turn))
        job.turn = line.last = max(turn, line.last) + 1
        line.length += 1
        insort_right(self, job, key=_place)

    def take(self) -> _W:
        """Remove and return the next request."""
        self._close_gaps()
        self.be_fair()
        job = self.popleft()
        self._turns[job.priority] = max(self._turns[job.priority], job.turn)
        self._shorten(job)
        return job

    def remove_abandoned(self) -> list[_W]:
        """Remove and return the requests whose clients have left, in their order."""
        found = [job for job in self if job.call.abandoned]
        if found:
            removed = set(map(id, found))
            kept = [job for job in self if id(job) not in removed]
            self.clear()
            self.extend(kept)
            for job in reversed(found):
                self._leave(job)
        return found

    @override
    def discard(self, job: _W) -> bool:
        """Remove `job`; False: it is not here."""
        found = super().discard(job)
        if found:
            self._leave(job)
        return found

    @override
    def give_up(self, priority: int) -> _W | None:
        """Remove and return the last of the lowest priority; None: none is below `priority`."""
        job = super().give_up(priority)
        if job is not None:
            self._leave(job)
        return job

    def _leave(self, job: _W) -> None:
        """Forget a request that was removed and does not run, so that it costs its client no turn."""
        line = self._shorten(job)
        if job.turn == line.last:
            line.last -= 1
        elif line.length:
            line.gaps.append(job.turn)
            self._has_gaps = True

    def _shorten(self, job: _W) -> _Line:
        key = _key(job)
        line = self._lines[key]
        line.length -= 1
        if not line.length:
            del self._lines[key]
        return line

    def _close_gaps(self) -> None:
        """Move those up that wait behind requests of their client that do not run."""
        if not self._has_gaps:
            return
        self._has_gaps = False
        lines = [line for line in self._lines.values() if line.gaps]
        for line in lines:
            line.gaps.sort()
        for job in self:
            gaps = self._lines[_key(job)].gaps
            if gaps:
                job.turn -= bisect_left(gaps, job.turn)
        for line in lines:
            line.last -= len(line.gaps)
            line.gaps.clear()
        jobs = sorted(self, key=_place)
        self.clear()
        self.extend(jobs)


def _key(job: TakesTurns) -> tuple["Peer | None", int]:
    return job.call.sender, job.priority


def _place(job: TakesTurns) -> tuple[int, int]:
    return job.priority, job.turn
