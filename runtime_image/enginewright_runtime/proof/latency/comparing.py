"""Benchmarks candidates in separate processes and interleaved rounds, so that other load affects all alike."""

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final

from enginewright_contract.execution import PlacementFacts
from enginewright_contract.images import DEVICE_BACKENDS
from enginewright_contract.manifest import Latency

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.isolation import Limits
from enginewright_runtime.graph.shapes import opt_sample
from enginewright_runtime.proof.latency.figures import latency
from enginewright_runtime.proof.latency.process import WorkerProcess

if TYPE_CHECKING:
    from enginewright_runtime.proof.latency.worker import Loaded, Warm

_log: Final = logging.getLogger(__name__)
_COMMAND_SECONDS: Final = 600.0  # timeout of a command to a worker, in addition to its own time
_ROUND_SECONDS: Final = 0.05  # of one candidate with one sample, in which short runs are repeated
_MOST_REPEATS: Final = 100  # in one round
_MOST_RUNS: Final = 500  # of one candidate with one sample
_LEAST_ROUNDS: Final = 3
_NOWHERE: Final = PlacementFacts(nodes={})


@dataclass(frozen=True)
class BenchmarkCandidate:
    """A model on a backend."""

    name: str
    model: Path
    backend: str


@dataclass(frozen=True)
class BenchmarkResult:
    """The measurements of one candidate."""

    candidate: BenchmarkCandidate
    latencies: tuple[Latency, ...] = ()  # one for each sample, smallest first
    # median seconds, by sample
    rounds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    failure: StageFailure | None = None  # why there are none
    provider: str = ""  # that the backend asks ONNX Runtime for
    placement: PlacementFacts = _NOWHERE  # where the nodes ran

    @property
    def usual(self) -> Latency | None:
        """The latency of the usual shapes, unless the candidate failed."""
        by_sample = dict(zip(self.rounds, self.latencies, strict=True))
        return by_sample[opt_sample(list(by_sample))] if by_sample else None

    @property
    def usual_rounds(self) -> tuple[float, ...]:
        """The median seconds of each round of the usual shapes; empty if the candidate failed."""
        return self.rounds[opt_sample(list(self.rounds))] if self.rounds else ()


def measure(
    model: Path,
    backend: str,
    inputs: Path,
    *,
    seconds: float = 10.0,
    usual_only: bool = False,
    total: float = inf,
) -> BenchmarkResult:
    """Measure one model, with arguments as for `compare`; raises StageFailure."""
    candidate = BenchmarkCandidate(model.stem, model, backend)
    (result,) = compare([candidate], inputs, seconds=seconds, usual_only=usual_only, total=total)
    if result.failure is not None:
        raise result.failure
    return result


def compare(
    candidates: Sequence[BenchmarkCandidate],
    inputs: Path,
    *,
    seconds: float = 10.0,
    usual_only: bool = False,
    total: float = inf,
) -> tuple[BenchmarkResult, ...]:
    """Measure all candidates on the same inputs, an .npz file of arrays SAMPLE/INPUT.

    Samples named min, opt and max are run; if there are none, at most three others, by size; with
    `usual_only`, only the sample with the usual shapes. `seconds` is an approximate limit for each
    candidate and sample, and for its warm-up; `total` limits everything together, with loading.
    """
    with ExitStack() as stack:
        runs = [
            _Measured(candidate, stack, inputs, seconds, usual_only, total)
            for candidate in candidates
        ]
        for run in runs:
            run.prepare()
        _take_turns(runs, seconds)
        return tuple(run.result() for run in runs)


def _take_turns(runs: Sequence["_Measured"], seconds: float) -> None:
    samples = list(dict.fromkeys(name for run in runs for name in run.rows))
    for sample in samples:
        taking = [run for run in runs if sample in run.rows]
        end = time.monotonic() + seconds * len(taking)
        number = 0
        while any(run.needs_more(sample) for run in taking):
            if number >= _LEAST_ROUNDS and time.monotonic() >= end:
                break
            for run in taking:
                run.round(sample)
            number += 1


@dataclass
class _Measured:
    candidate: BenchmarkCandidate
    stack: ExitStack
    inputs: Path
    seconds: float
    usual_only: bool
    total: float
    failure: StageFailure | None = None
    process: WorkerProcess | None = None
    loaded: "Loaded | None" = None
    warm: dict[str, "Warm"] = field(default_factory=dict)
    times: dict[str, list[list[float]]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)  # by sample; empty after a failure

    def prepare(self) -> None:
        candidate = self.candidate
        _log.info("measuring %s on backend %s", candidate.name, candidate.backend)
        doing = f"measuring {candidate.name} on backend {candidate.backend}"
        limits = Limits.of_model(on_device=candidate.backend in DEVICE_BACKENDS)
        seconds = _COMMAND_SECONDS + self.seconds
        try:
            self.process = self.stack.enter_context(
                WorkerProcess(doing, seconds, self.total, limits.memory_bytes)
            )
            self.loaded = self.process.load(candidate.model, candidate.backend, self.inputs)
            self.rows = dict(self.loaded.samples)
            if self.usual_only:
                only = opt_sample(list(self.rows))
                self.rows = {only: self.rows[only]}
            for sample in self.rows:
                self.warm[sample] = self.process.warm_up(sample, self.seconds)
                self.times[sample] = []
        except StageFailure as failure:
            self._fail(failure)

    def needs_more(self, sample: str) -> bool:
        count = sum(len(times) for times in self.times.get(sample, []))
        return sample in self.rows and count < _MOST_RUNS

    def round(self, sample: str) -> None:
        if self.process is None or not self.needs_more(sample):
            return
        seconds = max(self.warm[sample].seconds, _ROUND_SECONDS / _MOST_REPEATS)
        try:
            times = self.process.run(sample, max(1, int(_ROUND_SECONDS / seconds)))
        except StageFailure as failure:
            self._fail(failure)
        else:
            self.times[sample].append(times)

    def _fail(self, failure: StageFailure) -> None:
        _log.warning("%s", failure.message)
        self.failure = failure
        self.rows = {}

    def result(self) -> BenchmarkResult:
        if self.failure is not None or self.loaded is None:
            return BenchmarkResult(self.candidate, failure=self.failure)
        return BenchmarkResult(
            self.candidate,
            tuple(self._latency(sample) for sample in self.rows),
            {
                sample: tuple(sorted(times)[len(times) // 2] for times in rounds)
                for sample, rounds in self.times.items()
            },
            provider=self.loaded.provider,
            placement=self.loaded.placement,
        )

    def _latency(self, sample: str) -> Latency:
        times = [value for part in self.times[sample] for value in part]
        warm = self.warm[sample]
        return latency(times, sample, self.rows[sample]).model_copy(
            update={
                "warm_up_runs": warm.runs,
                "peak_memory_bytes": warm.memory,
                "peak_device_memory_bytes": warm.device_memory,
            }
        )
