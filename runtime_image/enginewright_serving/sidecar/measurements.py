"""What the operator compares during a rollout, since the server process started. Pure.

Requests are measured by the server, golden inferences here. All of it belongs to one server process:
the time before a restart says nothing about the process that serves now. Only the answers to another
revision's samples, and another revision's to our requests, stay: they depend on the artefacts.
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
        """Add the latest sample; of too many, remove the one whose gap would be shortest for its age.

        Where the clock was set back, those of later moments go, so that the samples stay in order.
        """
        samples = self.samples
        while samples and samples[-1].at > sample.at:
            samples.pop()
        samples.append(sample)
        if len(samples) <= self._most:
            return

        def relative_gap(index: int) -> float:
            age = sample.at - samples[index].at
            return (samples[index + 1].at - samples[index - 1].at) / age if age > 0 else 0.0

        # never the first and the last one, between which everything happened
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
        if self._server is None:
            sample = True
        elif self._server.started != reported.started:
            self.restart()
            sample = True
        self._server = reported
        if sample:
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

    def golden(self, found: ProbeResult, now: float) -> None:
        """Count a golden inference that ended at the Unix time `now`.

        One that found the server too busy proves nothing, and is not counted.
        """
        if found.wrong is not None:
            self._wrong += 1
        elif found.not_run is None:
            self._ok += 1
        elif found.fails or found.late:
            self._failed += 1
        if found.not_run is None and found.compute is not None:
            windows = self._golden.setdefault((found.sample, found.inputs), Windows())
            windows.add(found.compute, now)

    @property
    def document(self) -> Measurements | None:
        """Return everything measured; None: the server has not reported yet."""
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
