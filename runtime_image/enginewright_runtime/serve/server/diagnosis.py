"""The trial that a failed run is put to: known-good inputs, and the same request once more.

Runs in the thread that runs the model, after a failure only: what succeeds pays nothing for it.
The known-good inputs mend the session besides: after sizes that clash OpenVINO 2025.4 goes on
refusing the shapes that it took before them, until it has run others.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.serve.server.decode import Feeds
from enginewright_runtime.serve.server.inference_request import InferenceRequest
from enginewright_runtime.serve.server.run_errors import (
    Fault,
    Rerun,
    at_once,
    by_trial,
    fingerprint,
    may_hold_sizes,
    only_shapes_matter,
)
from enginewright_runtime.serve.server.stopping import StoppedError
from enginewright_runtime.session.samples import GoldenSample

_REMEMBERED: Final = 256  # requests that were found to be at fault
_DOUBLED: Final = 8  # inputs that are tried in another shape, one by one
_log: Final = logging.getLogger(__name__)


class Diagnosis:
    """Says whose fault a failed run of one session is."""

    def __init__(
        self,
        run: Callable[[list[str], Feeds], list[NDArray[Any]]],
        outputs: Iterable[str],
        samples: Iterable[GoldenSample],
        memory: int | None,
    ) -> None:
        """Keep what is known to run.

        Args:
            run: outputs' names and feeds to outputs.
            outputs: the model's.
            samples: golden ones, at least one, all of which have run; the smallest is kept, and
                the smallest of other shapes.
            memory: bytes that the backend can have at most; None: unknown.
        """
        self._run = run
        self._outputs = list(outputs)
        known = [sample.feeds for sample in samples]
        self._known = {fingerprint(feeds) for feeds in known}
        known.sort(key=lambda feeds: sum(array.size for array in feeds.values()))
        self._control = known[0]
        others = (feeds for feeds in known if _shapes(feeds) != _shapes(known[0]))
        self._other = next(others, None)
        self._memory = memory
        self._found: set[tuple[int, str]] = set()

    def judge(self, plan: InferenceRequest, feeds: Feeds, error: Exception) -> Fault:
        """Return whose fault it is that `feeds` of a request with `plan` raised `error`."""
        seen = fingerprint(feeds)
        ran = bool(plan.answers)  # a request with this very header, so of these shapes
        ran_before = seen in self._known or (ran and only_shapes_matter(feeds))
        control = self.run_known()
        if isinstance(error, StoppedError):  # not tried again, for it takes as long
            return Fault.CLIENT if control is None and not ran_before else Fault.SERVER
        if control is None:
            if ran_before and self._attempt(plan.outputs, self._good_values(feeds)) is None:
                ran_before = False  # in these shapes too: what differs is the request's values
            fault = at_once(error, ran_before=ran_before)
            if fault is not None:
                return fault
        key = (seen, str(error))
        if control is None and key in self._found:
            return Fault.CLIENT
        trial = Rerun(control, self._attempt(plan.outputs, feeds))
        if trial.repeated is not None:
            self.run_known()
        fault = by_trial(error, trial, memory=self._memory)
        if fault is Fault.CLIENT:
            if len(self._found) >= _REMEMBERED:
                self._found.clear()
            self._found.add(key)
        elif trial.control is not None:
            _log.error("a golden input fails too: %s", plain(str(trial.control)))
        return fault

    def run_known(self) -> Exception | None:
        """Run what is known to run, after other shapes where it no longer does; return what it raises."""
        error = self._attempt(self._outputs, self._control)
        others = [self._other] if self._other else _doubled(self._control)
        for feeds in others if error is not None else ():
            if self._attempt(self._outputs, feeds) is None:
                error = self._attempt(self._outputs, self._control)
            if error is None:
                break
        return error

    def _good_values(self, feeds: Feeds) -> Feeds:
        """Return the control's values, repeated, in the shapes of `feeds`; sizes stay those of `feeds`."""
        return {
            name: array if may_hold_sizes(array) else np.resize(self._control[name], array.shape)
            for name, array in feeds.items()
        }

    def _attempt(self, outputs: list[str], feeds: Feeds) -> Exception | None:
        try:
            self._run(outputs, feeds)
        except Exception as error:  # noqa: BLE001 - exceptions of ONNX Runtime share no other class
            return error
        return None


def _shapes(feeds: Feeds) -> set[tuple[str, tuple[int, ...]]]:
    return {(name, array.shape) for name, array in feeds.items()}


def _doubled(feeds: Feeds) -> Iterator[Feeds]:
    """Yield `feeds` in other shapes, a few; whether the model takes them is found by running."""
    names = [name for name, array in feeds.items() if array.ndim]
    for changed in ([*names], *([name] for name in names[:_DOUBLED])):
        for axis in (0, -1):
            twice = {name: np.concatenate([feeds[name]] * 2, axis) for name in changed}
            yield feeds | twice
