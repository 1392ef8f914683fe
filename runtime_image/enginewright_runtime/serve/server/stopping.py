"""Terminates runs that take too long, so that one huge request does not get the pod restarted.

ONNX Runtime checks between nodes, and between iterations of a loop, whether to terminate. A run
that hangs inside one kernel continues, and the server is then not live.
"""

import time
from collections.abc import Callable
from typing import Any

import onnxruntime as ort


class StoppedError(Exception):
    """A run was terminated because it took too long."""


class StoppableSession:
    """A session for `Runner` that one thread at a time runs and any thread can terminate."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self._session = session
        self._current: tuple[float, ort.RunOptions] | None = None

    def run(self, outputs: list[str], feeds: Any) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
        """Run on arrays."""
        return self._run(self._session.run, outputs, feeds)

    def run_with_ort_values(self, outputs: list[str], feeds: Any) -> Any:  # noqa: ANN401 - likewise
        """Run on OrtValues."""
        return self._run(self._session.run_with_ort_values, outputs, feeds)

    def stop(self, longer_than: float) -> None:
        """Terminate the current run if it has taken more than `longer_than` seconds."""
        current = self._current
        if current is not None and time.monotonic() - current[0] > longer_than:
            current[1].terminate = True

    def _run(self, run: Callable[..., Any], outputs: list[str], feeds: Any) -> Any:  # noqa: ANN401 - likewise
        options = ort.RunOptions()
        began = time.monotonic()
        self._current = began, options
        try:
            return run(outputs, feeds, options)
        except Exception as error:
            if options.terminate:
                took = time.monotonic() - began
                raise StoppedError(f"the run was stopped after {took:.3g} s") from error
            raise
        finally:
            self._current = None
