"""All that the sidecar knows of its pod, and what follows from it. Pure: no IO, the clock is given."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from enginewright.contract.execution import Execution, PlacementFacts
from enginewright.contract.manifest import Manifest
from enginewright.contract.reasons import Reason
from enginewright.contract.task import ServeTask
from enginewright.contract.verdict import Check, FallbackVerdict, Verdict

from enginewright_runtime.logs import counted
from enginewright_runtime.sidecar import told as judge
from enginewright_runtime.sidecar.board import Board, Outcome
from enginewright_runtime.sidecar.errors import ErrorShare
from enginewright_runtime.sidecar.golden import Finding
from enginewright_runtime.sidecar.histogram import Histogram
from enginewright_runtime.sidecar.latency import LiveLatency, ProbeLatency
from enginewright_runtime.sidecar.readiness import Gate
from enginewright_runtime.sidecar.settings import Settings

_log: Final = logging.getLogger(__name__)

OF_EXECUTION: Final = (
    Check.PROVIDER,
    Check.PLACEMENT,
    Check.DISTRIBUTION,
    Check.VERSIONS,
    Check.LIVE_LATENCY,
)


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the nodes run, when that is known."""

    fallback: FallbackVerdict
    nodes: Mapping[str, int]  # compute nodes by provider


class Findings:
    """Takes in what was asked and gives out verdicts."""

    def __init__(
        self,
        task: ServeTask,
        manifest: Manifest,
        samples: int,
        settings: Settings,
        clock: Callable[[], float],
    ) -> None:
        self.task = task
        self.manifest = manifest
        self.board = Board()
        self.latency = ProbeLatency(settings, samples)
        self.probes = Histogram()
        self.told: Execution | None = None
        self._gate = Gate(task.promise.policy)
        self._samples = samples
        self._settings = settings
        self._clock = clock
        self._live = LiveLatency(settings)
        self._errors = ErrorShare(settings)
        self._golden: dict[str, Finding] = {}  # the last one by sample
        self._placed: Placed | None = None
        self._admitted: PlacementFacts | None = None
        self._foreign = False
        self._was_ready = False
        self._released_until = float("-inf")

    # What is taken in.

    def server(self, *, live: bool, ready: bool) -> None:
        """The server has answered for its health."""
        if live and ready:
            self._was_ready = True
            self._record(Check.SERVER, Outcome.ok("the server is alive and ready"))
        elif live:
            self._server_failed("the server is alive and not ready")
        else:
            self._server_failed("the server says that it is not alive")
        self._decide()

    def server_missed(self, why: str, *, gone: bool) -> None:
        """The server has not answered; `gone`: its process is not there."""
        if gone:
            self._restart(why)
        self._server_failed(why)
        self._decide()

    def execution(self, told: Execution, due: Iterable[Check]) -> None:
        """The server has told how it runs the model; `due`: the checks whose time has come."""
        self._foreign = False
        self.told = told
        for check in due:
            self._record(check, self._judge(check, told))
        self._decide()

    def execution_missed(self, why: str, due: Iterable[Check], *, foreign: bool) -> None:
        """The server has not told; `foreign`: it knows no such question."""
        if foreign:
            self._foreign = True
            self.told = None
        for check in due:
            if foreign:
                self._record(check, Outcome.unknown(why))
            else:
                self.board.miss(check, why)
        self._decide()

    def golden(self, found: Finding, interval: float) -> None:
        """A golden inference has ended; the next one is `interval` seconds away."""
        if found.late:
            self.latency.add(found.sample, found.seconds)
        if found.unanswered is not None:
            self.board.miss(Check.GOLDEN, found.unanswered)
        else:
            self.probes.observe(found.seconds)
            self._golden[found.sample] = found
            if found.wrong is None:
                self.latency.add(found.sample, found.seconds)
            self._record(Check.GOLDEN, self._golden_outcome(), interval + found.seconds)
        outcome = self.latency.outcome()
        self._record(Check.PROBE_LATENCY, outcome, interval + found.seconds)
        self._decide()

    def answers(self, counts: Mapping[int, float]) -> None:
        """The server has told its answers by status code."""
        self._errors.add(counts, self._clock())
        self._record(Check.ERRORS, self._errors.outcome())

    def answers_missed(self, why: str) -> None:
        """The server has told no such counts."""
        self.board.miss(Check.ERRORS, why)

    def release(self) -> None:
        """The operator lets the pod go for a broken promise, for a while."""
        self._released_until = self._clock() + self._settings.release_seconds
        self._decide()

    # What is given out.

    @property
    def serving(self) -> bool:
        """Whether the server is ready, as far as is known."""
        return self.board.verdict(Check.SERVER, self._clock()).state == "ok"

    @property
    def ready(self) -> bool:
        """What `/readyz` answers."""
        return self._decide()

    @property
    def admitted(self) -> bool:
        """Whether the server's process was admitted once."""
        return self._gate.admitted

    @property
    def placed(self) -> Placed | None:
        """Where the nodes run; None: not known, or not lately."""
        state = self.board.verdict(Check.PLACEMENT, self._clock()).state
        return None if state == "unknown" else self._placed

    @property
    def parity_max_abs_error(self) -> float | None:
        """Largest absolute error in the samples' last answers, two digits; None: not known."""
        errors = [found.error for found in self._golden.values() if found.error is not None]
        return float(f"{max(errors):.1e}") if errors else None

    def verdict(self) -> Verdict:
        """Return all that is known."""
        ready = self._decide()
        placed = self.placed
        return Verdict(
            model=self.task.model,
            revision=self.task.revision,
            backend=self.task.backend,
            provider=self.told.provider if self.told else None,
            ready=ready,
            admitted=self._gate.admitted,
            checks=self.board.verdicts(self._clock()),
            fallback=placed.fallback if placed else None,
            baseline=self.latency.baseline,
            parity_max_abs_error=self.parity_max_abs_error,
        )

    # Inside.

    def _record(self, check: Check, outcome: Outcome, interval: float = 0.0) -> None:
        settings = self._settings
        seconds = settings.stale_intervals * max(settings.intervals[check], interval)
        self.board.record(check, outcome, self._clock() + seconds + settings.request_seconds)

    def _server_failed(self, why: str) -> None:
        if self._was_ready:
            self._record(Check.SERVER, Outcome.failed(Reason.SERVER_DOWN, why))
        else:
            self._record(Check.SERVER, Outcome.unknown(f"{why}; it has not been ready yet"))

    def _restart(self, why: str) -> None:
        """Forget what was found about a process that has gone; the baseline is the pod's."""
        if self._gate.admitted:
            _log.warning("the server has gone: it is to be admitted anew")
        self.board.forget(why)
        self._gate.restart()
        self._live = LiveLatency(self._settings)
        self._errors = ErrorShare(self._settings)
        self.latency.restart()
        self._golden.clear()
        self.told = self._placed = self._admitted = None
        self._foreign = False

    def _judge(self, check: Check, told: Execution) -> Outcome:
        match check:
            case Check.PROVIDER:
                return judge.provider(told)
            case Check.PLACEMENT:
                found = judge.fallback(told, self.manifest, self.task, self._admitted)
                nodes = judge.original_nodes(told.placement, told.provider, found)
                self._placed = Placed(found, nodes)
                return judge.placement(found)
            case Check.DISTRIBUTION:
                return judge.distribution(told)
            case Check.VERSIONS:
                return judge.versions(told, self.manifest, self.task)
            case _:
                self._live.add(told.buckets, self._clock())
                return self._live.outcome()

    def _golden_outcome(self) -> Outcome:
        wrong = next((each.wrong for each in self._golden.values() if each.wrong), None)
        if wrong is not None:
            return Outcome.failed(Reason.PARITY_FAILED, wrong)
        if len(self._golden) < self._samples:
            return Outcome.unknown("not every golden sample has been asked yet")
        return Outcome.ok(f"{counted(self._samples, 'golden sample')} answered rightly")

    def _decide(self) -> bool:
        now = self._clock()
        before = self._gate.admitted
        ready = self._gate.decide(
            {found.check: found for found in self.board.verdicts(now)},
            foreign=self._foreign,
            released=now < self._released_until,
        )
        if self._gate.admitted and not before:
            self._admitted = self.told.placement if self.told else None
        return ready
