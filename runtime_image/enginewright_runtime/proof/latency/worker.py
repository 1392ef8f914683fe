"""Loads one model and runs it when it is told to, in a process of its own; measures time and memory.

Several such processes are told in turn, so that other load on the machine meets all of them alike.
Orders are lines of JSON on standard input, answers likewise on a descriptor of their own, since
native libraries write to standard output.
"""

import json
import sys
import time
from pathlib import Path
from typing import IO, Any, Final

from enginewright.contract.execution import PlacementFacts
from enginewright.contract.reasons import Reason

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.memory import device_bytes, peak_bytes
from enginewright_runtime.core.ort_messages import is_out_of_memory, plain
from enginewright_runtime.graph.shapes import CORNERS
from enginewright_runtime.proof.golden_run import run_sample
from enginewright_runtime.proof.latency.figures import chosen, is_warm, rows
from enginewright_runtime.session import loading
from enginewright_runtime.session.arrays import Arrays, read_arrays
from enginewright_runtime.session.runner import Runner
from enginewright_runtime.session.signature import read_signature

_MOST_WARM_UPS: Final = 100


class Worker:
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

    def facts(self) -> dict[str, Any]:
        """Return what is known before any run.

        Returns:
            `samples` that are run, smallest first, and how many rows they have; `provider` that was
            asked for; `placement` as PlacementFacts.
        """
        placement = PlacementFacts(
            nodes=dict(self._placement.nodes),
            elsewhere=self._placement.elsewhere,
            context_nodes=self._placement.context_nodes,
        )
        return {
            "samples": {name: rows(feeds) for name, feeds in self._samples.items()},
            "provider": self._placement.provider,
            "placement": placement.model_dump(mode="json"),
        }

    def warm_up(self, sample: str, seconds: float) -> dict[str, Any]:
        """Run until runs take about as long as those before, or the time is up.

        Returns:
            `runs`; `seconds` of the last one; `memory` and `device_memory` in bytes, or None.
        """
        times: list[float] = []
        end = time.monotonic() + seconds
        while not is_warm(times) and len(times) < _MOST_WARM_UPS:
            times.append(self._run(sample))
            if time.monotonic() >= end:
                break
        used = device_bytes()
        known = used is not None and self._before is not None
        return {
            "runs": len(times),
            "seconds": times[-1],
            "memory": peak_bytes(),
            "device_memory": max(0, (used or 0) - (self._before or 0)) if known else None,
        }

    def run(self, sample: str, runs: int) -> list[float]:
        """Return the seconds of so many runs."""
        return [self._run(sample) for _ in range(runs)]

    def _run(self, sample: str) -> float:
        began = time.perf_counter()
        run_sample(self._runner, self._signature, self._samples[sample])
        return time.perf_counter() - began


def main(descriptor: int) -> int:
    """Answer orders until there are no more."""
    worker: Worker | None = None
    with open(descriptor, "w", buffering=1) as answers:
        for line in sys.stdin:
            order = json.loads(line)
            name = order.pop("order")
            try:
                if name == "load":
                    worker = Worker(**order)
                    _answer(answers, {"result": worker.facts()})
                else:
                    _answer(answers, {"result": getattr(worker, name)(**order)})
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
    _answer(answers, {"failure": {"reason": failure.reason.value, "message": failure.message}})
    return 0


def _answer(answers: IO[str], answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
