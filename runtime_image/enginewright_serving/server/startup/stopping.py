"""Terminates runs that take too long, so that one huge request does not restart the pod.

ONNX Runtime checks between nodes, and between iterations of a loop, whether to terminate. A run that hangs inside one
kernel continues, and the server is then not live.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import onnxruntime as ort

from enginewright_serving.server.startup.arena import Arena


class StoppedError(Exception):
    """A run was terminated because it took too long."""


class StoppableSession:
    """A session for `Runner`; any thread can terminate its runs, each thread has one at a time."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self._session = session
        self._arena = Arena(session)
        self._current: dict[int, tuple[float, ort.RunOptions]] = {}  # by thread

    def run(self, outputs: list[str], feeds: Any) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
        """Run on arrays."""
        return self._run(self._session.run, outputs, feeds)

    def run_with_ort_values(self, outputs: list[str], feeds: Any) -> Any:  # noqa: ANN401 - likewise
        """Run on OrtValues."""
        return self._run(self._session.run_with_ort_values, outputs, feeds)

    def stop(self, longer_than: float) -> None:
        """Terminate the current runs that have taken more than `longer_than` seconds."""
        now = time.monotonic()
        for began, options in list(self._current.values()):
            if now - began > longer_than:
                options.terminate = True

    def _run(self, run: Callable[..., Any], outputs: list[str], feeds: Any) -> Any:  # noqa: ANN401 - likewise
        options = self._arena.prepare_options()
        began = time.monotonic()
        thread = threading.get_ident()
        self._current[thread] = began, options
        try:
            results = run(outputs, feeds, options)
        except Exception as error:
            self._arena.remember_failure()
            if options.terminate:
                took = time.monotonic() - began
                raise StoppedError(f"the run was stopped after {took:.3g} s") from error
            raise
        finally:
            del self._current[thread]
        self._arena.remember(feeds.values(), results)
        return results
