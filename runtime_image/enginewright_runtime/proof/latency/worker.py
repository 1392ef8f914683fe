"""Loads one model and runs it on command, in a separate process; measures time and memory.

Commands are lines of JSON on standard input, results likewise on a separate descriptor, since
native libraries write to standard output. Run manually, results are on standard output: `python -m
enginewright_runtime.proof.latency.worker`, with the commands from the log.
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from enginewright_contract.execution import PlacementFacts
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding
from pydantic_core import to_jsonable_python

from enginewright_runtime.core.answers import ProcessAnswer
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.memory import peak_bytes
from enginewright_runtime.core.nvml import device_bytes
from enginewright_runtime.core.ort_messages import is_out_of_memory, plain
from enginewright_runtime.graph.shapes import CORNERS
from enginewright_runtime.proof.golden_run import run_sample
from enginewright_runtime.proof.latency.figures import choose_samples, is_warm, rows
from enginewright_runtime.session import loading
from enginewright_runtime.session.arrays import Arrays, read_arrays
from enginewright_runtime.session.runner import Runner
from enginewright_runtime.session.signature import read_signature

_MOST_WARM_UPS: Final = 100


@dataclass(frozen=True)
class Loaded:
    """A loaded model, before any run."""

    samples: Mapping[str, int]  # rows by sample to run, smallest first
    provider: str  # the requested one
    placement: PlacementFacts


@dataclass(frozen=True)
class Warm:
    """The result of a warm-up."""

    runs: int
    seconds: float  # of the last run
    memory: int | None  # bytes
    device_memory: int | None  # bytes


class WorkerAnswer(ProcessAnswer):
    """The result of one command."""

    result: Any = None  # as JSON
    failure: Finding | None = None  # after it the worker exits


class BenchmarkWorker:
    """One loaded model and its inputs."""

    def __init__(self, model: str, backend: str, inputs: str) -> None:
        self._before = device_bytes()
        loaded = loading.create(backend, Path(model))
        session = loaded.session
        self._placement = loaded.placement
        self._signature = read_signature(session.get_inputs(), session.get_outputs(), ())
        self._runner = Runner(session, self._signature)
        samples = read_arrays(Path(inputs))
        shapes = {
            name: tuple(array.shape for array in feeds.values()) for name, feeds in samples.items()
        }
        self._samples: dict[str, Arrays] = {
            name: samples[name] for name in choose_samples(shapes, CORNERS)
        }

    def facts(self) -> Loaded:
        """Return the facts about the loaded model."""
        samples = {name: rows(feeds) for name, feeds in self._samples.items()}
        return Loaded(samples, self._placement.provider, self._placement.facts())

    def warm_up(self, sample: str, seconds: float) -> Warm:
        """Run until the time of a run is stable, or for `seconds`."""
        times: list[float] = []
        end = time.monotonic() + seconds
        while not is_warm(times) and len(times) < _MOST_WARM_UPS:
            times.append(self._run(sample))
            if time.monotonic() >= end:
                break
        after, before = device_bytes(), self._before
        device_memory = None if after is None or before is None else max(0, after - before)
        return Warm(len(times), times[-1], peak_bytes(), device_memory)

    def run(self, sample: str, runs: int) -> list[float]:
        """Return the seconds of each of `runs` runs."""
        return [self._run(sample) for _ in range(runs)]

    def _run(self, sample: str) -> float:
        began = time.perf_counter()
        run_sample(self._runner, self._signature, self._samples[sample])
        return time.perf_counter() - began


def main(descriptor: int) -> int:
    """Execute commands until the end of standard input."""
    worker: BenchmarkWorker | None = None
    with open(descriptor, "w", buffering=1) as answers:
        for line in sys.stdin:
            arguments = json.loads(line)
            name = arguments.pop("command")
            try:
                if name == "load":
                    worker = BenchmarkWorker(**arguments)
                    name, arguments = "facts", {}
                result = getattr(worker, name)(**arguments)
                answer = WorkerAnswer(result=to_jsonable_python(result))
            except Exception as error:  # noqa: BLE001 - ONNX Runtime's exceptions have no common class
                answer = WorkerAnswer(failure=_failure_of(error).finding)
            answers.write(answer.encode() + "\n")
            if answer.failure is not None:
                break
    return 0


def _failure_of(error: Exception) -> StageFailure:
    if isinstance(error, StageFailure):
        return error
    if isinstance(error, MemoryError):
        return StageFailure(Reason.OUT_OF_MEMORY, "an allocation failed")
    memory = is_out_of_memory(str(error))
    reason = Reason.OUT_OF_MEMORY if memory else Reason.UNSUPPORTED_OPERATOR
    return StageFailure(reason, plain(str(error)))


if __name__ == "__main__":
    sys.exit(main(os.dup(sys.stdout.fileno())))
