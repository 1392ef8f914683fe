"""Which golden sample runs next, when, and how long it may be deferred. Pure.

To be admitted a pod must pass every sample. Once it serves, golden inferences compete with clients' requests, so
only the smallest samples and those that take no longer than requests run, while no request is waiting. Larger
samples run only while the pod is idle.

During a rollout the operator asks for a higher rate, to compare latencies. It too is limited to shares of the
server's time, one of them for larger samples.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Final

from enginewright_contract.execution import ComputeBucket
from enginewright_contract.verdict import Check

from enginewright_serving.sidecar import settings
from enginewright_serving.sidecar.golden import ProbeResult

_PROBE_SHARE: Final = 0.005  # of the server's time for golden inferences while there are requests
_IDLE_SHARE: Final = 0.05  # likewise while the pod is idle
_IDLE_SECONDS: Final = 60.0  # without requests until a pod is idle
_OWN_SHARE: Final = 0.005  # of a core for comparing outputs
_PROBING_SHARE: Final = 0.05  # as _PROBE_SHARE, while the operator asks for a higher rate
_PROBING_IDLE_SHARE: Final = 0.2  # as _IDLE_SHARE, likewise
_PROBING_LARGE_SHARE: Final = 0.05  # of _PROBING_IDLE_SHARE, for larger samples
PROBING_OWN_SHARE: Final = 0.05  # as _OWN_SHARE, likewise, and for a canary's answers
ADMISSION_INTERVAL: Final = 0.05  # seconds between golden inferences until every sample has passed
_ALIKE: Final = 1.5  # samples up to this many times the smallest one's cost count as small
_UNDECIDED_EVERY: Final = 4  # interval while undecided, in multiples of the sample's cost
_LARGE_EVERY: Final = 5  # least intervals between larger samples
_ROUND: Final = 4  # least golden inferences after which one runs in a batch with other inputs
_COSTS: Final = 5  # measurements of a sample, of which the lowest is its cost
_SERVED_MOST: Final = 15  # reports with requests whose mean times in the model are known
_SERVED_LEAST: Final = 3  # likewise, for a median
_REPORT_SECONDS: Final = 5.0  # after which counts do not say whether there are requests


@dataclass(frozen=True, slots=True)
class ProbeFacts:
    """What the choice depends on."""

    proven: Collection[str]  # samples whose last outputs agreed
    idle: float  # seconds without a request, until the last report; 0 if unknown
    undecided: bool = False  # there is no baseline yet, or the last golden inference was slow
    served: float = 0.0  # seconds that a request spends in the model; 0 if unknown
    probing: bool = False  # the operator asks for a higher rate
    batch: int = 1  # rows of the largest batch that the server forms

    @property
    def is_idle(self) -> bool:
        """Whether clients have sent no request for so long that larger samples may run."""
        return self.idle >= _IDLE_SECONDS


@dataclass(frozen=True, slots=True)
class ProbeTurn:
    """What runs next."""

    sample: str
    defer: float  # seconds for which the server may defer it
    batch: int = 1  # of at most so many rows, in which it runs with other inputs; 1: it runs alone


class Traffic:
    """How long clients have sent no request, from the server's counts; times in seconds."""

    def __init__(self) -> None:
        self._requests: int | None = None  # as last reported
        self._timed, self._seconds = 0, 0.0
        self._means: deque[float] = deque(maxlen=_SERVED_MOST)
        self._changed = 0.0
        self._reported = 0.0

    def add(self, buckets: Sequence[ComputeBucket], now: float) -> None:
        """Record the server's counts at `now`."""
        self._reported = now
        timed = sum(bucket.count for bucket in buckets)
        seconds = sum(bucket.seconds for bucket in buckets)
        if timed > self._timed:
            self._means.append((seconds - self._seconds) / (timed - self._timed))
        self._timed, self._seconds = timed, seconds
        requests = timed + sum(bucket.untimed for bucket in buckets)
        if requests != self._requests:
            if self._requests is not None or requests:
                self._changed = now
            elif not requests:
                self._changed = float("-inf")  # no request so far
            self._requests = requests

    @property
    def served(self) -> float:
        """Seconds that a request spends in the model, the median of the means between reports; 0 if unknown."""
        return median_low(self._means) if len(self._means) >= _SERVED_LEAST else 0.0

    def idle(self, now: float) -> float:
        """Return for how long there had been no request at the last report, 0 without a recent report."""
        if self._requests is None or now - self._reported > _REPORT_SECONDS:
            return 0.0
        return self._reported - self._changed


class ProbeSchedule:
    """The order of the golden samples of one pod."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._turn = 0
        self._paired = 0  # golden inferences with other inputs
        self._alone = self._round = max(_ROUND, len(self._names))  # others since then, and when due
        self._last: dict[str, int] = {}  # turn of each
        # seconds in the model of its last runs, by sample
        self._measured: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_COSTS))
        self._large_at = float("-inf")  # when the last larger sample began
        self._large_cost = 0.0  # of it
        self._interval = 0.0  # the last one
        self._last_result: ProbeResult | None = None

    def next(self, facts: ProbeFacts, now: float) -> ProbeTurn:
        """Return the sample to run at `now`."""
        if unproven := [name for name in self._names if name not in facts.proven]:
            return ProbeTurn(self._one_of(unproven), 0.0)
        defer = 0.0 if facts.is_idle else self.pace(facts) * (settings.STALE_INTERVALS - 1)
        large = self._large(facts)
        if large and facts.is_idle and now >= self._large_at + self._large_rest(facts):
            name = self._one_of(large)
            self._large_at, self._large_cost = now, self._measured[name][-1]
            return ProbeTurn(name, defer)
        cheap = [name for name in self._names if name not in large]
        if facts.batch > 1 and self._alone >= self._round:
            self._alone = 0
            self._paired += 1
            return ProbeTurn(cheap[self._paired % len(cheap)], defer, facts.batch)
        self._alone += 1
        return ProbeTurn(self._one_of(cheap), defer)

    def find_left_out(self, facts: ProbeFacts) -> list[str]:
        """Return the samples that do not run at present, since they would delay clients' requests."""
        return [] if facts.is_idle else self._large(facts)

    def _large(self, facts: ProbeFacts) -> list[str]:
        most = self._most(facts)
        return [name for name in self._names if self._cost(name) > most]

    def _cost(self, name: str) -> float:
        """Return a sample's seconds in the model, 0 before its first run; the fastest of its last runs, as the node delays some."""
        return min(self._measured.get(name, ()), default=0.0)

    def _large_rest(self, facts: ProbeFacts) -> float:
        share = _PROBING_LARGE_SHARE if facts.probing else _PROBE_SHARE
        return max(_LARGE_EVERY * self.pace(facts), self._large_cost / share)

    def _most(self, facts: ProbeFacts) -> float:
        """Return the most seconds in the model for a golden inference while requests are served."""
        return max(min(map(self._cost, self._measured), default=0.0) * _ALIKE, facts.served)

    def _charge(self, result: ProbeResult, facts: ProbeFacts) -> float:
        """Return the seconds of a run that determine when the next one begins; larger samples have their own interval."""
        return result.cost if result.paired else min(result.cost, self._most(facts))

    def _one_of(self, names: Sequence[str]) -> str:
        name = min(names, key=lambda item: self._last.get(item, -1))
        self._last[name] = self._turn = self._turn + 1
        return name

    def interval(self, result: ProbeResult, facts: ProbeFacts) -> float:
        """Return the interval between the starts of the run of `result` and of the next one, at the usual rate."""
        self._last_result = result
        if result.not_run is None and not result.paired:
            self._measured[result.sample].append(result.cost)
        usual = settings.INTERVALS[Check.GOLDEN]
        if result.wrong is not None or result.not_run is not None:
            self._interval = usual  # retry soon
        elif len({*facts.proven, result.sample}) < len(self._names):
            self._interval = ADMISSION_INTERVAL
        else:
            share = _IDLE_SHARE if facts.is_idle else _PROBE_SHARE
            needed = max(self._charge(result, facts) / share, result.own_seconds / _OWN_SHARE)
            if facts.undecided and facts.is_idle:
                needed = _UNDECIDED_EVERY * result.cost  # a few more measurements decide
            self._interval = min(settings.SLOWEST_INTERVAL, max(usual, needed))
        return self._interval

    def pace(self, facts: ProbeFacts) -> float:
        """Return the interval since the start of the last run that applies at this moment."""
        result = self._last_result
        if len(facts.proven) < len(self._names):  # after a restart too
            return min(self._interval, settings.INTERVALS[Check.GOLDEN])
        if result is None or not facts.probing or result.not_run is not None:
            return self._interval
        share = _PROBING_IDLE_SHARE if facts.is_idle else _PROBING_SHARE
        if facts.is_idle and self._large(facts):
            share -= _PROBING_LARGE_SHARE
        needed = max(self._charge(result, facts) / share, result.own_seconds / PROBING_OWN_SHARE)
        return min(self._interval, max(ADMISSION_INTERVAL, needed))
