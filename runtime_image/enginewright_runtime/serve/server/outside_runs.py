"""The queue and thread of requests outside the shape profiles.

A run that hangs inside one node cannot be terminated. It blocks these requests only: they are refused until
it ends, and the pod stays live for all others.
"""

import time
from collections.abc import Callable
from typing import Final

from enginewright_runtime.serve.server.batching import BatchLimits
from enginewright_runtime.serve.server.job import Job
from enginewright_runtime.serve.server.outside_profiles import OutsideModel
from enginewright_runtime.serve.server.worker import InferenceWorker

_MOST_WAITING: Final = 16  # requests: they run one by one, and each may take long


class OutsideRuns:
    """Runs requests outside the shape profiles; for the event loop's thread."""

    def __init__(
        self,
        model: OutsideModel,
        done: Callable[[Job], None],
        *,
        max_queue: int,
        stop_after: float,
        stuck_after: float,
    ) -> None:
        """Start the thread.

        Args:
            model: the prepared model on the CPU.
            done: as for `InferenceWorker`.
            max_queue: requests that may wait in any queue.
            stop_after: seconds after which a run is terminated.
            stuck_after: seconds after which a run counts as one that hangs.
        """
        capacity = min(max_queue, _MOST_WAITING)
        judge = model.diagnosis.judge
        self.worker = InferenceWorker(model.run, judge, capacity, BatchLimits(), 1, done)
        self._model = model
        self._stop_after = stop_after
        self._stuck_after = stuck_after

    def stop_long_run(self) -> None:
        """Terminate a run that takes too long."""
        self._model.stop_run(self._stop_after)

    def why_refused(self) -> str | None:
        """Return why no request can run; None: it can, once those before it have."""
        if self.worker.busy_seconds(time.monotonic()) <= self._stuck_after:
            return None
        return (
            "a run with sizes outside the shape profiles could not be stopped after"
            f" {self._stuck_after:.3g} s; only sizes within them are served until it ends"
        )
