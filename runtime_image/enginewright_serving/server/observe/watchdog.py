"""Reruns a golden sample when runs fail, in its own thread, to decide readiness and liveness.

Known-valid inputs decide, so that no client can make a pod unready with invalid ones.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from enginewright_runtime.core import nvml

from enginewright_serving.server.observe.health import HealthProblem, RunHealth

_log: Final = logging.getLogger(__name__)
_EVENT_MILLISECONDS: Final = 5000  # timeout of one wait for an Xid


class Watchdog:
    """Whether the session still runs what it ran at startup."""

    def __init__(self, run_known_valid: Callable[[], Exception | None]) -> None:
        """Start the thread, in which `run_known_valid` runs known-valid inputs and returns the exception, if any."""
        self._run_known_valid = run_known_valid
        self._health = RunHealth()
        self._changed = threading.Condition()  # guards the health
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def record(self, *, succeeded: bool) -> None:
        """Record whether a request's run succeeded."""
        with self._changed:
            if succeeded:
                self._health.on_success()
                return
            self._health.on_failure()
            self._changed.notify()

    def listen(self, library: str = nvml.LIBRARY) -> None:
        """Also listen for errors that the driver reports, if it supports that."""
        thread = threading.Thread(target=self._listen, args=(library,), name="xid", daemon=True)
        thread.start()

    def why_not_ready(self) -> HealthProblem | None:
        """Return why the pod should receive no requests, if so."""
        with self._changed:
            return self._health.why_not_ready()

    def why_not_live(self) -> HealthProblem | None:
        """Return why the process should be restarted, if it should."""
        with self._changed:
            return self._health.why_not_live(time.monotonic())

    def describe_stuck(self, seconds: float) -> HealthProblem:
        """Return the problem of a run that has taken more than `seconds`."""
        with self._changed:
            return self._health.describe_stuck(seconds)

    def _watch(self) -> None:
        while True:
            self._wait()
            error = self._run_known_valid()
            with self._changed:
                before = self._health.why_not_ready()
                self._health.on_test(None if error is None else str(error), time.monotonic())
                problem = self._health.why_not_ready()
            if problem is not None and problem != before:
                _log.error("%s: %s", problem.reason, problem.message)
            elif before is not None and problem is None:
                _log.warning("runs succeed again")

    def _wait(self) -> None:
        with self._changed:
            while (pause := self._health.next_test(time.monotonic())) != 0.0:
                self._changed.wait(pause)

    def _listen(self, library: str) -> None:
        events = nvml.XidEvents.open(library)
        if events is None:
            _log.info("Xid events are unavailable: a lost device is detected by failing runs")
            return
        try:
            while True:
                if (xid := events.wait(_EVENT_MILLISECONDS)) is not None:
                    _log.warning("the driver reports Xid %d", xid)
                    with self._changed:
                        self._health.on_xid(xid)
                        self._changed.notify()
        except OSError as error:
            _log.warning("Xid events are no longer available: %s", error)
