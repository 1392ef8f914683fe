"""Everything the sidecar knows about its pod, and the verdict on it. Pure: the clock is given."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from enginewright_contract import report
from enginewright_contract.execution import Execution, PlacementFacts
from enginewright_contract.manifest import Manifest
from enginewright_contract.measurements import PROBING_SECONDS
from enginewright_contract.reasons import NOTHING_RUNS, Reason
from enginewright_contract.task import ServeTask
from enginewright_contract.verdict import Check, FallbackVerdict, Verdict
from enginewright_runtime.session.padding import PaddedShapes

from enginewright_serving.sidecar import execution_checks, settings
from enginewright_serving.sidecar.checks import CheckBoard, CheckResult
from enginewright_serving.sidecar.errors import ErrorShare
from enginewright_serving.sidecar.golden import ProbeResult
from enginewright_serving.sidecar.golden_results import GoldenResults
from enginewright_serving.sidecar.measurements import PodMeasurements
from enginewright_serving.sidecar.pod_latency import PodLatency
from enginewright_serving.sidecar.probe_schedule import ProbeFacts, Traffic
from enginewright_serving.sidecar.readiness import Gate

_log: Final = logging.getLogger(__name__)

OF_EXECUTION: Final = (
    Check.PROVIDER,
    Check.PLACEMENT,
    Check.DISTRIBUTION,
    Check.VERSIONS,
    Check.LIVE_LATENCY,
    Check.CLASS_LATENCY,
)


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the nodes run."""

    fallback: FallbackVerdict
    nodes: Mapping[str, int]  # compute nodes by provider


class PodState:
    """Records what polls and probes found, and derives the verdict."""

    def __init__(
        self, task: ServeTask, manifest: Manifest, samples: int, clock: Callable[[], float]
    ) -> None:
        self.task = task
        self.manifest = manifest
        self.board = CheckBoard()
        self.latency = PodLatency(manifest, clock)
        self._samples = samples
        self.golden_results = GoldenResults(manifest, samples)
        self.reported: Execution | None = None
        self.measurements = PodMeasurements(task)
        self.restarts = 0  # rises while the server's process is not running
        self._probing_until = float("-inf")
        self._gate = Gate(task.promise.policy)
        self._clock = clock
        self._traffic = Traffic()
        self._errors = ErrorShare()
        self._placed: Placed | None = None
        self._admitted: PlacementFacts | None = None
        self._foreign = False
        self._was_ready = False
        self._released_until = float("-inf")
        self._verdict: Verdict | None = None  # unless what it depends on has changed
        self._verdict_until = float("-inf")  # when it changes by itself

    # Results of polls and golden inferences.

    def server(
        self, *, live: bool, ready: bool, reason: Reason | None = None, why: str = ""
    ) -> None:
        """The server reported its health, and `reason` and `why` of a problem."""
        if live and ready:
            self._was_ready = True
            self._record(Check.SERVER, CheckResult.as_ok("the server is live and ready"))
        elif self._was_ready and reason is not None:
            self._record(Check.SERVER, CheckResult.as_failed(reason, why))
        elif live:
            self._server_failed("the server is live but not ready")
        else:
            self._server_failed("the server reports that it is not live")
        self._invalidate()

    def server_missed(self, why: str, *, unreachable: bool) -> None:
        """The server did not respond; `unreachable`: its process is not running."""
        if unreachable:
            self._restart(why)
        self._server_failed(why)
        self._invalidate()

    def execution(self, reported: Execution, due: Iterable[Check]) -> None:
        """The server returned its execution report; `due`: the checks to evaluate."""
        self._foreign = False
        self.reported = reported
        self.latency.reported = reported.usual or self.latency.reported
        self._traffic.add(reported.buckets, self._clock())
        for check in due:
            self._record(check, self._judge(check, reported))
        self._invalidate()

    def execution_missed(self, why: str, due: Iterable[Check], *, foreign: bool) -> None:
        """The server returned no execution report; `foreign`: it has no such endpoint."""
        if foreign:
            self._foreign = True
            self.reported = None
            self._traffic = Traffic()
        for check in due:
            if foreign:
                self._record(check, CheckResult.as_unknown(why))
            else:
                self.board.miss(check, why)
        self._invalidate()

    def golden(self, result: ProbeResult, interval: float) -> None:
        """A golden inference has ended; the next one starts in `interval` seconds."""
        if not result.paired and (result.late or (result.wrong is None and result.not_run is None)):
            idle = self.probe_facts.is_idle
            self.latency.add_probe(result, idle=idle, probing=self._probing)
        outcome = self.golden_results.add(result)
        if result.not_run is None and not result.paired:
            self.latency.durations.observe(max(0.0, result.seconds - result.queued))
        if outcome is None:
            self.board.miss(Check.GOLDEN, result.not_run or "")
        else:
            taken = result.seconds if result.not_run is None else 0.0
            self._record(Check.GOLDEN, outcome, interval + taken)
        latency = self.latency.probes.outcome(self._clock())
        self._record(Check.PROBE_LATENCY, latency, interval + result.seconds)
        self._invalidate()

    def responses(self, counts: Mapping[int, float]) -> None:
        """The server reported its responses by status code."""
        self._errors.add(counts, self._clock())
        self._record(Check.ERRORS, self._errors.outcome())
        self._invalidate()

    def responses_missed(self, why: str) -> None:
        """The server did not report its responses."""
        self.board.miss(Check.ERRORS, why)
        self._invalidate()

    def release(self, seconds: float) -> None:
        """The operator releases the pod for a broken promise, for `seconds` from now, if not 0."""
        self._released_until = self._clock() + seconds if seconds else float("-inf")
        self._invalidate()

    def probe(self) -> None:
        """The operator asks for golden inferences at a higher rate, which ends by itself."""
        self._probing_until = self._clock() + PROBING_SECONDS

    # Derived state.

    @property
    def serving(self) -> bool:
        """Whether the server is known to be ready."""
        return self.board.verdict(Check.SERVER, self._clock()).state == "ok"

    @property
    def fault(self) -> Reason | None:
        """Why every run fails although the server responds: DeviceLost or RunsFail; else None."""
        now = self._clock()
        verdicts = (self.board.verdict(check, now) for check in (Check.SERVER, Check.GOLDEN))
        reasons = (verdict.reason for verdict in verdicts if verdict.reason in NOTHING_RUNS)
        return min(reasons, key=NOTHING_RUNS.index, default=None)

    @property
    def ready(self) -> bool:
        """What `/readyz` answers."""
        return self.verdict().ready

    @property
    def admitted(self) -> bool:
        """Whether the server's process has been admitted."""
        return self._gate.admitted

    @property
    def probe_facts(self) -> ProbeFacts:
        """What the next golden inference depends on."""
        return ProbeFacts(
            proven=self.golden_results.proven,
            idle=self._traffic.idle(self._clock()),
            served=self._traffic.served,
            undecided=self.latency.probes.is_undecided(self._clock()),
            probing=self._probing,
            batch=self.reported.batch_rows if self.reported else 1,
        )

    @property
    def padding(self) -> PaddedShapes | None:
        """How the server pads requests, if it does."""
        padding = self.reported.padding if self.reported else None
        return PaddedShapes(**dict(padding)) if padding else None

    @property
    def _probing(self) -> bool:
        return self._clock() < self._probing_until

    @property
    def placed(self) -> Placed | None:
        """Where the nodes run, if that was reported recently."""
        state = self.board.verdict(Check.PLACEMENT, self._clock()).state
        return None if state == "unknown" else self._placed

    def verdict(self) -> Verdict:
        """Return the verdict on the pod, the same object for as long as nothing has changed."""
        now = self._clock()
        if self._verdict is None or now >= self._verdict_until:
            self._verdict = self._make_verdict()
            released_until = self._released_until if self._released_until > now else math.inf
            self._verdict_until = min(self.board.expires(now), released_until)
        return self._verdict

    # Internal.

    def _invalidate(self) -> None:
        self._verdict = None
        self._decide()

    def _make_verdict(self) -> Verdict:
        ready = self._decide()
        placed = self.placed
        return Verdict(
            model=self.task.model,
            revision=self.task.revision,
            backend=self.task.backend,
            provider=self.reported.provider if self.reported else None,
            ready=ready,
            admitted=self._gate.admitted,
            checks=self.board.verdicts(self._clock()),
            fallback=placed.fallback if placed else None,
            baseline=self.latency.baseline,
            times=self.reported.times if self.reported and self._gate.admitted else None,
            parity_max_abs_error=self.golden_results.max_abs_error,
            accepted=self.golden_results.unjudged.note,
        )

    def _record(self, check: Check, outcome: CheckResult, interval: float = 0.0) -> None:
        seconds = settings.STALE_INTERVALS * max(settings.INTERVALS[check], interval)
        self.board.record(check, outcome, self._clock() + seconds + settings.REQUEST_SECONDS)

    def _server_failed(self, why: str) -> None:
        if self._was_ready:
            self._record(Check.SERVER, CheckResult.as_failed(Reason.SERVER_DOWN, why))
        else:
            self._record(
                Check.SERVER, CheckResult.as_unknown(f"{why}; the server was not ready yet")
            )

    def _restart(self, why: str) -> None:
        """Discard results of a process that has ended; the baseline belongs to the pod and stays."""
        if self._gate.admitted:
            _log.warning("the server restarted: it must be admitted again")
        self.restarts += 1
        self.board.forget(why)
        self._gate.restart()
        self.measurements.restart()
        self._traffic = Traffic()
        self._errors = ErrorShare()
        self.latency.restart()
        self.golden_results = GoldenResults(self.manifest, self._samples)
        self.reported = self._placed = self._admitted = None
        self._foreign = False

    def _judge(self, check: Check, reported: Execution) -> CheckResult:
        match check:
            case Check.PROVIDER:
                return execution_checks.provider(reported, self._cause(reported))
            case Check.PLACEMENT:
                verdict = execution_checks.fallback(
                    reported, self.manifest, self.task, self._cause(reported)
                )
                nodes = execution_checks.original_nodes(
                    reported.placement, reported.provider, verdict
                )
                self._placed = Placed(verdict, nodes)
                return execution_checks.placement(verdict)
            case Check.DISTRIBUTION:
                return execution_checks.distribution(reported)
            case Check.VERSIONS:
                return execution_checks.versions(reported, self.manifest, self.task)
            case Check.CLASS_LATENCY:
                return self.latency.judge_class()
            case _:
                self.latency.live.add(reported.buckets, self._clock())
                return self.latency.live.outcome(self._clock())

    def _cause(self, reported: Execution) -> report.Finding | None:
        return execution_checks.cause(reported, self.task.backend, self._admitted)

    def _decide(self) -> bool:
        now = self._clock()
        before = self._gate.admitted
        ready = self._gate.decide(
            {verdict.check: verdict for verdict in self.board.verdicts(now)},
            foreign=self._foreign,
            released=now < self._released_until,
        )
        if self._gate.admitted and not before:
            self._admitted = self.reported.placement if self.reported else None
        return ready
