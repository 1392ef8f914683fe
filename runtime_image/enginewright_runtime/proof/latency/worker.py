"""Loads one model and runs it on orders, in a process of its own; measures time and memory.

Several such processes get orders in turn, so that other load on the machine meets all of them alike.
Orders are lines of JSON on standard input, answers likewise on a descriptor of their own, since
native libraries write to standard output. By hand, they are on standard output too:
`python -m enginewright_runtime.proof.latency.worker`, with the orders that the log gives.
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from enginewright.contract.execution import PlacementFacts
from enginewright.contract.reasons import Reason
from enginewright.contract.report import Finding
from pydantic_core import to_jsonable_python

from enginewright_runtime.core.answers import ProcessAnswer
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.memory import peak_bytes
from enginewright_runtime.core.nvml import device_bytes
from enginewright_runtime.core.ort_messages import is_out_of_memory, plain
from enginewright_runtime.graph.shapes import CORNERS
from enginewright_runtime.proof.golden_run import run_sample
from enginewright_runtime.proof.latency.figures import chosen, is_warm, rows
from enginewright_runtime.session import loading
from enginewright_runtime.session.arrays import Arrays, read_arrays
from enginewright_runtime.session.runner import Runner
from enginewright_runtime.session.signature import read_signature

_MOST_WARM_UPS: Final = 100


@dataclass(frozen=True)
class Loaded:
    """What is known before any run."""

    samples: Mapping[str, int]  # that are run, smallest first, and how many rows they have
    provider: str  # that was asked for
    placement: PlacementFacts


@dataclass(frozen=True)
class Warm:
    """What runs are like once they no longer get faster."""

    runs: int  # that it took
    seconds: float  # of the last one
    memory: int | None  # bytes
    device_memory: int | None  # bytes


class WorkerAnswer(ProcessAnswer):
    """What has become of one order."""

    result: Any = None  # as JSON
    failure: Finding | None = None  # the last answer, if there is one


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
        self._samples: dict[str, Arrays] = {name: samples[name] for name in chosen(shapes, CORNERS)}

    def facts(self) -> Loaded:
        """Return what is known before any run."""
        samples = {name: rows(feeds) for name, feeds in self._samples.items()}
        return Loaded(samples, self._placement.provider, self._placement.facts())

    def warm_up(self, sample: str, seconds: float) -> Warm:
        """Run until runs take about as long as those before, or the time is up."""
        times: list[float] = []
        end = time.monotonic() + seconds
        while not is_warm(times) and len(times) < _MOST_WARM_UPS:
            times.append(self._run(sample))
            if time.monotonic() >= end:
                break
        used = device_bytes()
        known = used is not None and self._before is not None
        device_memory = max(0, (used or 0) - (self._before or 0)) if known else None
        return Warm(len(times), times[-1], peak_bytes(), device_memory)

    def run(self, sample: str, runs: int) -> list[float]:
        """Return the seconds of so many runs."""
        return [self._run(sample) for _ in range(runs)]

    def _run(self, sample: str) -> float:
        began = time.perf_counter()
        run_sample(self._runner, self._signature, self._samples[sample])
        return time.perf_counter() - began


def main(descriptor: int) -> int:
    """Answer orders until there are no more."""
    worker: BenchmarkWorker | None = None
    with open(descriptor, "w", buffering=1) as answers:
        for line in sys.stdin:
            order = json.loads(line)
            name = order.pop("order")
            try:
                if name == "load":
                    worker = BenchmarkWorker(**order)
                    name, order = "facts", {}
                result = getattr(worker, name)(**order)
                _answer(answers, WorkerAnswer(result=to_jsonable_python(result)))
            except StageFailure as failure:
                return _fail(answers, failure)
            except MemoryError:
                return _fail(answers, StageFailure(Reason.OUT_OF_MEMORY, "an allocation failed"))
            except Exception as error:  # noqa: BLE001 - of ONNX Runtime, which has no class of its own
                memory = is_out_of_memory(str(error))
                reason = Reason.OUT_OF_MEMORY if memory else Reason.UNSUPPORTED_OPERATOR
                return _fail(answers, StageFailure(reason, plain(str(error))))
    return 0


def _fail(answers: IO[str], failure: StageFailure) -> int:
    _answer(answers, WorkerAnswer(failure=failure.finding))
    return 0


def _answer(answers: IO[str], answer: WorkerAnswer) -> None:
    answers.write(answer.encode() + "\n")


if __name__ == "__main__":
    sys.exit(main(os.dup(sys.stdout.fileno())))
