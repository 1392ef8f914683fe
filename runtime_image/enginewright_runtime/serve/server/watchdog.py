"""Runs a golden sample again when runs fail, in a thread of its own, and says what follows.

Only inputs that are known to be good decide: no client can make a pod unready with inputs that the
model does not take.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from enginewright_runtime.core import nvml
from enginewright_runtime.serve.server.health import HealthProblem, RunHealth
from enginewright_runtime.serve.server.settings import ServerSettings

_log: Final = logging.getLogger(__name__)
_EVENT_MILLISECONDS: Final = 5000  # a wait for an Xid, after which it is waited for again


class Watchdog:
    """Whether the session still runs what it has run at start."""

    def __init__(self, run_known: Callable[[], Exception | None], settings: ServerSettings) -> None:
        """Start to watch.

        Args:
            run_known: runs inputs that are known to be good and returns what that raises; it is
                called in another thread.
            settings: the thresholds.
        """
        self._run_known = run_known
        self._health = RunHealth(settings)
        self._changed = threading.Condition()  # guards the health
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def note(self, *, runs: bool) -> None:
        """Take in whether the model runs, as far as a request has shown."""
        with self._changed:
            if runs:
                self._health.succeeded()
                return
            self._health.failed()
            self._changed.notify()

    def listen(self, library: str = nvml.LIBRARY) -> None:
        """Take in what the driver reports too, where there is one that does."""
        thread = threading.Thread(target=self._listen, args=(library,), name="xid", daemon=True)
        thread.start()

    def why_not_ready(self) -> HealthProblem | None:
        """Return why no request should come here."""
        with self._changed:
            return self._health.why_not_ready()

    def why_not_live(self) -> HealthProblem | None:
        """Return why only another process may help."""
        with self._changed:
            return self._health.why_not_live(time.monotonic())

    def stuck(self, seconds: float) -> HealthProblem:
        """Return the problem that a run has not ended within `seconds`."""
        with self._changed:
            return self._health.stuck(seconds)

    def _watch(self) -> None:
        while True:
            self._wait()
            error = self._run_known()
            with self._changed:
                before = self._health.why_not_ready()
                self._health.tested(None if error is None else str(error), time.monotonic())
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
            _log.info("the driver reports no Xid here: runs that fail show a lost device")
            return
        try:
            while True:
                if (xid := events.wait(_EVENT_MILLISECONDS)) is not None:
                    _log.warning("the driver reports Xid %d", xid)
                    with self._changed:
                        self._health.reported(xid)
                        self._changed.notify()
        except OSError as error:
            _log.warning("the driver reports no more Xid: %s", error)
