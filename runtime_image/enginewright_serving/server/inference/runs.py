"""Runs the model for one request, or for several at once; used by any thread."""

import time
from collections.abc import Callable
from typing import Any, Final

from numpy.typing import NDArray

from enginewright_serving.server.inference.batching import join, split
from enginewright_serving.server.inference.job import Job, JobState
from enginewright_serving.server.inference.padding import Padding
from enginewright_serving.server.protocol.decode import Feeds


class ModelRuns:
    """Runs of one session."""

    def __init__(
        self,
        run: Callable[[list[str], Feeds], list[NDArray[Any]]],
        padding: Padding | None = None,
    ) -> None:
        self._run: Final = run
        self._padding: Final = padding

    def attempt(self, jobs: list[Job]) -> bool:
        """Run `jobs`, which must be joinable; return False if that fails. The first one of a client gets the run's figures."""
        began = time.monotonic()
        for job in jobs:  # before the run, so that none expires meanwhile
            job.move(JobState.RUNNING)
            job.started = began
        counted = jobs[0]
        if not counted.call.of_client:
            counted = next((job for job in jobs if job.call.of_client), counted)
        parts, error = self._outputs(jobs, counted)
        finished = time.monotonic()
        counted.error = error
        for job in jobs:
            job.finished = finished
            job.batch = 0
        counted.batch = len(jobs)
        if parts is None:
            return False
        for job, arrays in zip(jobs, parts, strict=True):
            job.arrays = arrays
        return True

    def _outputs(
        self, jobs: list[Job], counted: Job
    ) -> tuple[list[list[NDArray[Any]]] | None, Exception | None]:
        try:
            if len(jobs) == 1:
                counted.ran = counted.feeds
                return [self._run(counted.plan.outputs, counted.feeds)], None
            counted.ran = join([job.feeds for job in jobs], self._padding)
            arrays = self._run(counted.plan.outputs, counted.ran)
            return self._divide(jobs, arrays), None
        except Exception as error:  # noqa: BLE001 - after any error the next request is served
            return None, error

    def _divide(
        self, jobs: list[Job], arrays: list[NDArray[Any]]
    ) -> list[list[NDArray[Any]]] | None:
        """Return the outputs of each job, without what belongs to padding; None if an output has other rows."""
        padding = self._padding
        parts = split(arrays, [job.rows for job in jobs])
        if parts is None or padding is None:
            return parts
        return [
            padding.cut_all(job.plan.outputs, part, job.feeds)
            for job, part in zip(jobs, parts, strict=True)
        ]
