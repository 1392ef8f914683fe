"""Runs short requests in the event loop, together with others that arrive in the same turn.

A thread would cost more than the run: handing over a request and its result takes as long as running a small model
several times, and the first request of a turn would run alone.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Final

from enginewright_serving.server.inference.batching import BatchLimits
from enginewright_serving.server.inference.job import Job, JobState, fail_all, may_add
from enginewright_serving.server.inference.runs import ModelRuns
from enginewright_serving.server.inference.waiting import Waiting

_log: Final = logging.getLogger(__name__)
_TURN_SECONDS: Final = 0.001  # after which other connections are served first
# Of processor time: a run that takes more belongs into the model's thread. A limit on the processor time stops all
# threads alike, so that a thread, which costs more, would only answer fewer requests, also for a while after it.
_LONG_SECONDS: Final = 0.02
_LONG_RUNS: Final = 3  # of those among `_RUNS` in a row, after which all runs do for a while
_RUNS: Final = 256
_PAUSE_SECONDS: Final = 10.0  # that while


class Turns:
    """The requests that the event loop runs; its thread only."""

    def __init__(
        self,
        runs: ModelRuns,
        limits: BatchLimits,
        done: Callable[[Job], None],
        hand_over: Callable[[Job], None],
    ) -> None:
        """Call `done` for every job that was run or dropped, and `hand_over` for one to rerun in a thread."""
        self._runs = runs
        self._limits = limits
        self._done = done
        self._hand_over = hand_over
        self.waiting: Waiting[Job] = Waiting()
        self._counted = self._long = 0  # runs among `_RUNS` so far, and long ones of them
        self._paused_until = 0.0

    def takes(self, job: Job) -> bool:
        """Whether the run of `job` is short."""
        return 0 < job.rows <= self._limits.turn_rows and (
            job.elements <= self._limits.turn_elements and not self.is_paused(time.monotonic())
        )

    def is_paused(self, now: float) -> bool:
        """Whether the model's threads run all requests, since runs here took too long."""
        return self._paused_until > now

    def add(self, job: Job) -> None:
        """Run `job` once the requests that have arrived are read."""
        if not self.waiting:
            asyncio.get_running_loop().call_soon(self._run)
        job.move(JobState.QUEUED)
        self.waiting.add(job)

    def _run(self) -> None:
        end = time.monotonic() + _TURN_SECONDS
        try:
            while self.waiting:
                self._run_next()
                if time.monotonic() > end:
                    break
        finally:  # even after an error: waiting requests have no other turn
            if self.waiting:
                asyncio.get_running_loop().call_soon(self._run)

    def _run_next(self) -> None:
        jobs: list[Job] = []
        # until a run was long, that clock is not read: it costs as much as a tenth of a small run
        began = time.thread_time() if self._long else -math.inf
        if self._attempt(jobs):
            is_long = jobs[0].finished - jobs[0].started > _LONG_SECONDS
            self._count(is_long=is_long and time.thread_time() - began > _LONG_SECONDS)
            self._finish(jobs)
        else:
            for job in jobs:
                self._repeat(job)

    def _repeat(self, job: Job) -> None:
        """Have a thread run `job`, or fail it."""
        try:
            job.rows = 0
            job.forget_run()
            self._hand_over(job)
        except Exception:  # noqa: BLE001 - such as no memory: nothing else answers it
            fail_all([job], "handing over a request")
            self._finish([job])

    def _count(self, *, is_long: bool) -> None:
        """Take note of a run; pause after too many long ones."""
        self._counted += 1
        self._long += is_long
        if self._long == _LONG_RUNS:
            self._paused_until = time.monotonic() + _PAUSE_SECONDS
            _log.warning(
                "%d of %d runs in the event loop took longer than %g ms: the model's thread runs all requests for %g s",
                self._long,
                self._counted,
                _LONG_SECONDS * 1e3,
                _PAUSE_SECONDS,
            )
        elif self._counted < _RUNS:
            return
        self._counted = self._long = 0

    def _attempt(self, jobs: list[Job]) -> bool:
        """Move the jobs of the next run to `jobs`, and run them; return False if that fails or there are none."""
        try:
            self._take(jobs)
            return bool(jobs) and self._runs.attempt(jobs)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException:  # noqa: BLE001 - the model's thread runs the jobs
            _log.exception("unexpected error while running requests in the event loop")
            return False

    def _finish(self, jobs: list[Job]) -> None:
        for job in jobs:
            job.move(JobState.DONE)
            try:
                self._done(job)
            except Exception:  # noqa: BLE001 - an internal error ends one connection, not all turns
                job.abort()

    def _take(self, jobs: list[Job]) -> None:
        """Move the jobs of the next run to `jobs`; end abandoned and expired ones."""
        limits, waiting = self._limits, self.waiting
        now = time.monotonic()
        rows = elements = 0
        most = min(limits.rows, limits.turn_rows)
        waiting.be_fair()
        while waiting:
            job = waiting[0]
            if job.is_dropped or job.is_late(now):
                self._finish([self._claim_first()])
                continue
            rows += job.rows
            elements += job.elements
            full = rows > most or elements > limits.turn_elements
            if jobs and (full or not may_add(job, jobs, limits.padding)):
                break
            jobs.append(self._claim_first())

    def _claim_first(self) -> Job:
        job = self.waiting.popleft()
        job.move(JobState.CLAIMED)
        return job
