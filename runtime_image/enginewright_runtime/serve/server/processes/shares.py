"""What one of several server processes may take of what a pod has. Pure.

The kernel spreads connections, and so requests, about evenly, so each process has an equal part of the
limits, and all of them together no more than one process would have.
"""

from dataclasses import replace

from enginewright.contract.task import ServeTask

from enginewright_runtime.serve.server.settings import ServerSettings


def task_of_process(task: ServeTask) -> ServeTask:
    """Return the task with one process's part of the queue."""
    return task.model_copy(update={"max_queue": max(1, task.max_queue // task.processes)})


def settings_of_process(settings: ServerSettings, processes: int) -> ServerSettings:
    """Return one process's part of connections and bytes; each still takes one request of the largest size."""
    return replace(
        settings,
        connections=max(1, settings.connections // processes),
        reserved_connections=max(1, settings.reserved_connections // processes),
        inflight_bytes=max(
            min(settings.body_bytes, settings.inflight_bytes), settings.inflight_bytes // processes
        ),
        inflight_largest=max(1, settings.inflight_largest // processes),
    )
