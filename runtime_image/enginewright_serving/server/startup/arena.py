"""Gives back the memory of large runs that ONNX Runtime's arena of the CPU keeps for the next one.

The arena keeps as much as the largest run took, outputs included, of which those count together that wait for their
clients at a time. A run that shrinks it frees what is unused then, so the
first run after a pause without large ones does, once their outputs are sent: a model whose usual runs are large keeps
its memory, and the sidecar's golden inferences come also without clients. A run that fails counts as large: a text of
many tokens takes gigabytes before the model refuses it.
"""

import time
import weakref
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import onnxruntime as ort

from enginewright_serving.transport.settings import MIB

_LARGE: Final = 32 * MIB  # bytes of inputs and outputs
_COUNTED: Final = (
    MIB  # bytes of an output, or of a run, from which on it counts among those that wait
)
_PAUSE: Final = 10.0  # seconds without a large run
_SHRINK: Final = ("memory.enable_memory_arena_shrinkage", "cpu:0")


class Arena:
    """The arena of one session; any thread may run it."""

    def __init__(self, session: object) -> None:
        # a session without this arena refuses to shrink it
        self._shrinks = isinstance(session, ort.InferenceSession) and session.get_providers() == [
            "CPUExecutionProvider"
        ]
        # when the last large run ended, or one failed, unless the arena was shrunk since
        self._large_at = 0.0
        self._outputs: list[weakref.ref[Any]] = []  # that may wait for their clients

    def prepare_options(self) -> ort.RunOptions:
        """Return the options of the next run."""
        options = ort.RunOptions()
        if (
            self._large_at
            and time.monotonic() - self._large_at > _PAUSE
            and not any(output() is not None for output in self._outputs)
        ):
            self._large_at = 0.0
            options.add_run_config_entry(*_SHRINK)
        return options

    def remember(self, inputs: Iterable[object], outputs: Iterable[object]) -> None:
        """Remember a run if it was large."""
        if not self._shrinks:
            return
        arrays = [output for output in outputs if isinstance(output, np.ndarray)]
        given = [value for value in inputs if isinstance(value, np.ndarray)]
        size = sum([array.nbytes for array in (*given, *arrays)])
        if size < _COUNTED and not self._outputs:
            return
        waiting = [output for output in self._outputs if output() is not None]
        waiting += [weakref.ref(array) for array in arrays if array.nbytes >= _COUNTED]
        held = sum([array.nbytes for output in waiting if (array := output()) is not None])
        self._outputs = waiting
        if max(size, held) > _LARGE:
            self._large_at = time.monotonic()

    def remember_failure(self) -> None:
        """Remember a run that has failed, of which nothing shows how much it took."""
        if self._shrinks:
            self._large_at = time.monotonic()
