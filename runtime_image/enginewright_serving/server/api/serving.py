"""A model that is ready, what runs it, and whether that still works."""

import time
from collections.abc import Callable
from typing import Final

from enginewright_contract.task import ServeTask

import enginewright_serving.server.observe.metrics as figures
from enginewright_serving.server.inference.results import InferenceResults
from enginewright_serving.server.inference.worker import InferenceWorker
from enginewright_serving.server.observe.device_use import DeviceMetrics, DeviceSampler
from enginewright_serving.server.observe.health import HealthProblem
from enginewright_serving.server.observe.watchdog import Watchdog
from enginewright_serving.server.startup.prepare import ServedModel

_LONG_SECONDS: Final = 50.0  # a run that takes longer
_LONG_RUNS: Final = 15  # and longer than so many warm-up runs is terminated
_STUCK_SECONDS: Final = 60.0  # one that takes longer
_STUCK_RUNS: Final = 20  # and longer than so many warm-up runs: not live


class RunningModel:
    """A ready model and the objects that run it; for the event loop's thread."""

    def __init__(
        self,
        model: ServedModel,
        task: ServeTask,
        metrics: figures.Metrics,
        results: InferenceResults,
        on_lost_thread: Callable[[], None],
    ) -> None:
        self.model = model
        self.worker = worker = InferenceWorker(
            model.runner.run,
            model.diagnosis.judge,
            task.max_queue,
            model.batches,
            model.concurrent_runs,
            results.finish,
            on_lost_thread,
        )
        metrics.depth = lambda: worker.depth
        metrics.runs_in_loop = lambda: worker.runs_in_loop
        self._watchdog = Watchdog(model.diagnosis.run_known_valid)
        results.observe_runs(self._watchdog, model.buckets)
        if model.needs_driver:
            self._watchdog.listen()
            sampler = DeviceSampler()
            metrics.add(DeviceMetrics(task.model, task.revision, sampler.latest))
        self._stop_after = max(_LONG_SECONDS, _LONG_RUNS * model.slowest_run)
        self._stuck_after = max(_STUCK_SECONDS, _STUCK_RUNS * model.slowest_run)

    def stop_long_run(self) -> None:
        """Terminate runs that take too long; their requests fail, the next ones run."""
        self.model.stop_run(self._stop_after)

    def why_not_live(self) -> HealthProblem | None:
        """Return why this process should be restarted, if it should."""
        if self.worker.busy_seconds(time.monotonic()) > self._stuck_after:
            return self._watchdog.describe_stuck(self._stuck_after)
        return self._watchdog.why_not_live()

    def why_not_ready(self) -> HealthProblem | None:
        """Return why this process should receive no requests, if so."""
        return self.why_not_live() or self._watchdog.why_not_ready()
