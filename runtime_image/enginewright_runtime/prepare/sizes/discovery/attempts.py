"""Runs one session at many points, within limits; the only part of discovery that runs anything.

Outcomes are written to a journal, so that a process restarted after a crash skips the points
before.
"""

import json
import resource
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto

from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.core.time_limit import TimeLimit
from enginewright_runtime.prepare.sizes.discovery.hints import find_failed_node
from enginewright_runtime.prepare.sizes.discovery.problem import Point, Problem
from enginewright_runtime.prepare.sizes.discovery.search import ExhaustedError, Outcome
from enginewright_runtime.prepare.sizes.trial_run import end_after, feeds_of
from enginewright_runtime.proof.golden_inputs import Sample, draw, sum_bytes

RUNS: Final = 400
SECONDS: Final = 60.0  # of `TimeLimit`, for all runs
_RUN_SECONDS: Final = 10.0  # likewise, for one
_INPUT_BYTES: Final = 256 << 20
_GROWTH_BYTES: Final = 1 << 30  # of resident memory in one run: larger points are then skipped
_CRASHED: Final = "the process ended"
_TOO_LONG: Final = "it would take too long"


class TrialRuns:
    """Runs of one session."""

    def __init__(
        self,
        session: ort.InferenceSession,
        problem: Problem,
        order: Mapping[str, int],
        journal: Path,
    ) -> None:
        """Load the outcomes of runs in the journal; `order` is the position of nodes, by name."""
        self._session = session
        self._problem = problem
        self._order = order
        self._outputs = [output.name for output in session.get_outputs()]
        self._half = {
            item.name
            for item in (*session.get_inputs(), *session.get_outputs())
            if item.type == "tensor(bfloat16)"
        }
        self._ranges = {profile.input: (profile.low, profile.high) for profile in problem.given}
        self._outcomes = _read(journal)
        self._journal = journal.open("a")
        self._limit = TimeLimit(SECONDS)
        self._too_large = inf  # bytes of inputs, of a run that used too much memory
        self._too_slow = inf  # likewise, of one that took too long
        self.runs = len(self._outcomes)

    def __call__(self, point: Point, corner: str) -> Outcome:
        """Run a point, once; raises ExhaustedError if the runs or the time are used up."""
        key = json.dumps([corner, sorted(point.items())])
        if (earlier := self._outcomes.get(key)) is not None:
            return earlier
        if self.runs >= RUNS or self._limit.over():
            raise ExhaustedError
        self.runs += 1
        self._write([key])
        outcome = self._run(point, corner)
        self._outcomes[key] = outcome
        self._write([key, outcome.ran, outcome.message, outcome.progress])
        return outcome

    def _run(self, point: Point, corner: str) -> Outcome:
        shapes = self._problem.shapes_at(point, corner)
        if any(size < 0 for shape in shapes.values() for size in shape):
            return Outcome(ran=False, message="its sizes contradict each other")
        size = sum_bytes(self._problem.inputs, shapes)
        if size > _INPUT_BYTES or size >= self._too_large:
            return Outcome(ran=False, message="it would take too much memory")
        if size >= self._too_slow:
            return Outcome(ran=False, message=_TOO_LONG)
        sample = self._sample(point, shapes, corner)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        limit = TimeLimit(_RUN_SECONDS)
        try:
            arrays = self._outputs_of(sample)
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors share no other base class
            error_text = str(error)
            progress = self._order.get(find_failed_node(error_text) or "", -1)
            message = _TOO_LONG if limit.over() else plain(error_text)
            outcome = Outcome(ran=False, message=message, progress=progress)
        else:
            # an empty past is valid only if the outputs are not empty
            is_empty = any(point[item.name] == 0 for item in self._problem.unknowns)
            if is_empty and any(map(_is_empty, arrays)):
                outcome = Outcome(ran=False, message="its outputs are empty, or not finite")
            else:
                outcome = Outcome(ran=True)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        if grown > _GROWTH_BYTES:
            self._too_large = size
        if limit.over():
            self._too_slow = size
        return outcome

    def _sample(self, point: Point, shapes: Mapping[str, tuple[int, ...]], corner: str) -> Sample:
        ranges: dict[str, tuple[float | None, float | None]] = dict(self._ranges)
        for spec in self._problem.inputs:
            if (span := self._problem.span(spec.name, point)) is not None:
                ranges[spec.name] = span
        return draw(
            self._problem.inputs, shapes, ranges, self._problem.integer_range(point), corner
        )

    def _outputs_of(self, sample: Sample) -> list[NDArray[Any] | ort.OrtValue]:
        with end_after(_RUN_SECONDS) as options:
            if self._half:
                values = {name: self._value(name, input_) for name, input_ in sample.inputs.items()}
                return list(self._session.run_with_ort_values(self._outputs, values, options))
            return list(self._session.run(self._outputs, feeds_of(sample), options))

    def _value(self, name: str, array: NDArray[Any]) -> ort.OrtValue:
        if name in self._half:
            return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, TensorProto.BFLOAT16)
        return ort.OrtValue.ortvalue_from_numpy(array)

    def _write(self, entry: list[Any]) -> None:
        self._journal.write(json.dumps(entry) + "\n")
        self._journal.flush()


def _read(journal: Path) -> dict[str, Outcome]:
    """Return outcomes by key; a run without one has crashed the process."""
    outcomes: dict[str, Outcome] = {}
    if journal.exists():
        for line in journal.read_text().splitlines():
            key, *result = json.loads(line)
            outcomes[key] = Outcome(*result) if result else Outcome(ran=False, message=_CRASHED)
    return outcomes


def _is_empty(array: NDArray[Any] | ort.OrtValue) -> bool:
    if not isinstance(array, np.ndarray):
        return False
    if not array.size:
        return True
    return array.dtype.kind == "f" and not bool(np.isfinite(array).all())
