"""What the operator compares during a rollout, since the server process started. Pure.

Requests are measured by the server, golden inferences here. A restart of the server discards all but the answers
to another revision's samples, and another revision's to our requests, which depend on the artefacts only.
"""

from typing import Generic, TypeVar

from enginewright_contract.base import TEXT_LENGTH
from enginewright_contract.measurements import (
    COUNTS,
    WINDOWS,
    AnswerChange,
    Counts,
    Measurements,
    MemorySample,
    ServerMeasurements,
    ShadowComparison,
)
from enginewright_contract.task import ServeTask

from enginewright_serving.sidecar.golden import ProbeResult
from enginewright_serving.windows import Windows

_Sample = TypeVar("_Sample", MemorySample, Counts)


class History(Generic[_Sample]):
    """Samples since the process's start, at most `most`: the older, the further apart."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.samples: list[_Sample] = []

    def add(self, sample: _Sample) -> None:
        """Add the latest sample; of too many, remove the one with the shortest gap for its age. Later ones go if the clock was set back."""
        samples = self.samples
        while samples and samples[-1].at > sample.at:
            samples.pop()
        samples.append(sample)
        if len(samples) <= self._most:
            return

        def relative_gap(index: int) -> float:
            age = sample.at - samples[index].at
            return (samples[index + 1].at - samples[index - 1].at) / age if age > 0 else 0.0

        # never the first or the last one
        del samples[min(range(1, len(samples) - 1), key=relative_gap)]


class PodMeasurements:
    """The measurements of one pod."""

    def __init__(self, task: ServeTask) -> None:
        self._task = task
        self.answers: AnswerChange | None = None
        self.shadow: ShadowComparison | None = None
        self.restart()

    def restart(self) -> None:
        """Discard what was measured: the server's process has ended."""
        self._server: ServerMeasurements | None = None
        self._memory = History[MemorySample](WINDOWS)
        self._counts = History[Counts](COUNTS)
        self._golden: dict[tuple[str, str], Windows] = {}  # by sample and digest of its inputs
        self.left_out: list[str] = []
        self._ok = self._wrong = self._failed = 0

    def server(self, reported: ServerMeasurements, now: float, *, sample: bool) -> None:
        """Record the server's report at the Unix time `now`; `sample`: in the histories too."""
        is_new = self._server is None or self._server.started != reported.started
        if self._server is not None and is_new:
            self.restart()
        self._server = reported
        if sample or is_new:
            at = round(now, 3)
            self._memory.add(MemorySample(at=at, bytes=reported.memory_bytes))
            self._counts.add(
                Counts(
                    at=at,
                    responses=reported.responses,
                    golden_ok=self._ok,
                    golden_wrong=self._wrong,
                    golden_failed=self._failed,
                )
            )

    def golden(self, result: ProbeResult, now: float) -> None:
        """Count a golden inference that ended at the Unix time `now`, unless the server was too busy for it."""
        if result.wrong is not None:
            self._wrong += 1
        elif result.not_run is None:
            self._ok += 1
        elif result.fails or result.late:
            self._failed += 1
        if result.not_run is None and result.compute is not None and not result.paired:
            windows = self._golden.setdefault((result.sample, result.inputs), Windows())
            windows.add(result.compute, now)

    @property
    def document(self) -> Measurements | None:
        """Return everything measured, once the server has reported."""
        server = self._server
        if server is None:
            return None
        golden = tuple(
            windows.series("golden", name, inputs)
            for (name, inputs), windows in sorted(self._golden.items())
        )
        return Measurements(
            model=self._task.model,
            revision=self._task.revision,
            since=server.started,
            responses=server.responses,
            golden_ok=self._ok,
            golden_wrong=self._wrong,
            golden_failed=self._failed,
            golden_left_out=tuple(name[:TEXT_LENGTH] for name in self.left_out),
            counts=tuple(self._counts.samples),
            memory=tuple(self._memory.samples),
            latencies=(*server.latencies, *golden),
            answers=self.answers,
            shadow=self.shadow,
        )
