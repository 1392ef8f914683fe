"""Diagnoses a failed run, in the inference thread: reruns known-valid inputs, then the same request.

Known-valid inputs also repair the session: after a request with incompatible sizes OpenVINO 2025.4 rejects shapes
that it accepted before, until it has run others.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.session.samples import GoldenSample
from numpy.typing import NDArray

from enginewright_serving.server.inference.job import RequestPlan
from enginewright_serving.server.inference.run_errors import (
    Fault,
    fault_from_error,
    fault_from_rerun,
    fingerprint,
    may_hold_sizes,
    only_shapes_matter,
)
from enginewright_serving.server.protocol.decode import Feeds
from enginewright_serving.server.startup.stopping import StoppedError

_CACHED_FAULTS: Final = 256  # requests that were found to be at fault
_DOUBLED: Final = 8  # inputs that are tried in another shape, one at a time
_log: Final = logging.getLogger(__name__)


class Diagnosis:
    """Decides whether the client or the server caused a failed run of one session."""

    def __init__(
        self,
        run: Callable[[list[str], Feeds], list[NDArray[Any]]],
        outputs: Iterable[str],
        samples: Iterable[GoldenSample],
        memory: int | None,
    ) -> None:
        """Keep the smallest golden sample, and the smallest with other shapes; `memory`: bytes of the backend, if known."""
        self._run = run
        self._outputs = list(outputs)
        valid = [sample.feeds for sample in samples]
        self._valid = {fingerprint(feeds) for feeds in valid}
        valid.sort(key=lambda feeds: sum(array.size for array in feeds.values()))
        self._control = valid[0]
        others = (feeds for feeds in valid if _shapes(feeds) != _shapes(valid[0]))
        self._other = next(others, None)
        self._memory = memory
        self._at_fault: set[tuple[int, str]] = set()

    def judge(self, plan: RequestPlan, feeds: Feeds, error: Exception) -> Fault:
        """Return who caused `error`, which running `feeds` of a request with `plan` raised."""
        seen = fingerprint(feeds)
        ran_before = seen in self._valid or (plan.has_run and only_shapes_matter(feeds))
        control = self.run_known_valid()
        if isinstance(error, StoppedError):  # not rerun: it would take as long again
            return Fault.CLIENT if control is None and not ran_before else Fault.SERVER
        if control is None:
            if ran_before and self._attempt(plan.outputs, self._valid_values(feeds)) is None:
                ran_before = False  # these shapes still run: the request's values are the cause
            fault = fault_from_error(error, ran_before=ran_before)
            if fault is not None:
                return fault
        key = (seen, str(error))
        if control is None and key in self._at_fault:
            return Fault.CLIENT
        repeated = self._attempt(plan.outputs, feeds)
        if repeated is not None:
            self.run_known_valid()
        fault = fault_from_rerun(error, control, repeated, memory=self._memory)
        if fault is Fault.CLIENT:
            if len(self._at_fault) >= _CACHED_FAULTS:
                self._at_fault.clear()
            self._at_fault.add(key)
        elif control is not None:
            _log.error("a golden sample fails too: %s", plain(str(control)))
        return fault

    def run_known_valid(self) -> Exception | None:
        """Run known-valid inputs, retry them after other shapes; return the exception that remains."""
        error = self._attempt(self._outputs, self._control)
        others = [self._other] if self._other else _double(self._control)
        for feeds in others if error is not None else ():
            if self._attempt(self._outputs, feeds) is None:
                error = self._attempt(self._outputs, self._control)
            if error is None:
                break
        return error

    def _valid_values(self, feeds: Feeds) -> Feeds:
        """Return known-valid values in the shapes of `feeds`; tensors that may hold sizes are kept."""
        return {
            name: array if may_hold_sizes(array) else np.resize(self._control[name], array.shape)
            for name, array in feeds.items()
        }

    def _attempt(self, outputs: list[str], feeds: Feeds) -> Exception | None:
        try:
            self._run(outputs, feeds)
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's exceptions have no common class
            return error
        return None


def _shapes(feeds: Feeds) -> set[tuple[str, tuple[int, ...]]]:
    return {(name, array.shape) for name, array in feeds.items()}


def _double(feeds: Feeds) -> Iterator[Feeds]:
    """Yield `feeds` in a few other shapes, which the model may or may not accept."""
    names = [name for name, array in feeds.items() if array.ndim]
    for changed in ([*names], *([name] for name in names[:_DOUBLED])):
        for axis in (0, -1):
            twice = {name: np.concatenate([feeds[name]] * 2, axis) for name in changed}
            yield feeds | twice
