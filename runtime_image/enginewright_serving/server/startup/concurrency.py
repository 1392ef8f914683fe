"""Finds out at startup how many runs of the model may take place at the same time.

ONNX Runtime's CPU provider allows several runs of one session, which share its threads and weights. A run that leaves
cores idle, as most do between operators and in small ones, gains from a neighbour. Golden samples prove that outputs
do not depend on neighbours, and the gain is measured.
"""

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.session.runner import Runner
from enginewright_runtime.session.samples import GoldenSample
from enginewright_runtime.session.signature import Signature

from enginewright_serving.server.inference.batching import BatchLimits
from enginewright_serving.server.protocol.decode import Feeds
from enginewright_serving.server.startup.known_times import is_gain_confirmed
from enginewright_serving.server.startup.run_proof import RunProver

if TYPE_CHECKING:
    from numpy.typing import NDArray

_log: Final = logging.getLogger(__name__)
_GAIN: Final = 1.15  # least factor of the rate that several runs at a time have
_ABOUT: Final = 1.05  # a number of runs whose rate is this much below the highest is as good
_SHORTEST: Final = 0.001  # seconds of a run; handing over shorter ones costs more than it gains
_ROUNDS: Final = 3  # of each number of runs, one at a time in between; the median counts
_ROUND_SECONDS: Final = 0.1  # of a round, unless a run takes longer
_SECONDS: Final = 2.0  # for all numbers, or as long as one round takes


@dataclass(frozen=True, slots=True)
class Concurrency:
    """How many runs may take place at the same time."""

    runs: int = 1
    off: str = ""  # why only one
    gain: float = 1.0  # factor of the rate, at startup
    slowest: float = 0.0  # seconds of a run beside others

    def details(self) -> dict[str, object]:
        """Return what users are shown."""
        return {"max_runs": self.runs, "gain": round(self.gain, 2), "off": self.off}


@dataclass(frozen=True, slots=True)
class RunConditions:
    """What several runs at a time depend on besides the model."""

    threads: int  # of the session
    most: int | None  # serving.maxConcurrentRuns, otherwise as many as are worthwhile
    memory: int | None  # bytes that the process may use, if known
    loaded: int  # resident bytes before the first run
    varying: bool  # some output differs from run to run
    on_cpu: bool  # ONNX Runtime's CPU provider runs the model
    foreign: bool  # with operators of others


class ConcurrencyProver(RunProver):
    """Proves and times several runs at a time of one session."""

    def __init__(
        self,
        runner: Runner,  # for several threads at a time
        signature: Signature,
        progress: Callable[[str], None],
        earlier: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        super().__init__(runner, signature)
        self._earlier = earlier  # gains by number of runs
        self.gains: dict[int, float] = {}  # likewise, as measured
        self._progress = progress

    def prove(
        self,
        samples: Sequence[GoldenSample],
        feeds: Feeds,
        batches: BatchLimits,
        given: RunConditions,
    ) -> Concurrency:
        """Return how many runs may take place at a time; golden samples and `feeds`, of a usual run or batch, have run."""
        most = given.threads if given.most is None else min(given.most, given.threads)
        off = _why_not(most, batches, given)
        if off:
            return Concurrency(off=off)
        try:
            return self._measure(samples, feeds, self._fitting(most, given))
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's exceptions have no common class
            text = plain(str(error))
            _log.warning("one run at a time: several fail: %s", text)
            return Concurrency(off=f"the model fails with several runs at a time: {text}")

    def _measure(self, samples: Sequence[GoldenSample], feeds: Feeds, most: int) -> Concurrency:
        self._progress("timing several runs at a time")
        single = min(self._time(feeds, 1, 1) for _ in range(2))
        if single < _SHORTEST:
            off = f"a run takes only {single * 1e6:.0f} µs"
        elif most < 2:
            off = "the memory does not suffice for a second run"
        else:
            off = self._why_dependent(samples, 2)
        gains = {} if off else self._gains(feeds, most, single)
        best = max(gains.values(), default=1.0)
        if not off and best < _GAIN:
            off = "several runs at a time are not faster"
        if not off:
            most = min(runs for runs, gain in gains.items() if gain * _ABOUT >= best)
            off = self._why_dependent(samples, most)
        if off:
            return Concurrency(off=off, gain=best)
        return Concurrency(most, gain=gains[most], slowest=self.slowest)

    def _fitting(self, most: int, given: RunConditions) -> int:
        if given.memory is None:
            return most
        resident = self._resident()
        growth = max(resident - given.loaded, 1)
        return min(most, 1 + max(0, given.memory - resident) // growth)

    def _why_dependent(self, samples: Sequence[GoldenSample], runs: int) -> str:
        """Return why runs must not take place at the same time, or "" if their outputs stay the same."""
        alone = [self._run(sample.feeds) for sample in samples[: runs + 1]]
        results: list[tuple[int, list[NDArray[Any]]]] = []

        def work(number: int) -> None:
            for at in range(len(alone)):  # beside others, and beside itself
                sample = (number // 2 + at) % len(alone)
                feeds = samples[sample].feeds
                results.append((sample, self._run(feeds)))

        self._together(work, runs)
        for sample, arrays in results:
            name = self._differing(alone[sample], arrays)
            if name is not None:
                return f"output {name!r} of a run depends on others at the same time"
        return ""

    def _gains(self, feeds: Feeds, most: int, single: float) -> dict[int, float]:
        end = self._clock() + _SECONDS
        count = max(1, math.ceil(_ROUND_SECONDS / single))
        gains = self.gains = {1: 1.0}
        for runs in _numbers(most):
            if len(gains) > 1 and self._clock() > end:
                break
            ratios: list[float] = []
            while len(ratios) < _ROUNDS and (not ratios or self._clock() < end):
                alone = self._time(feeds, 1, count)
                ratios.append(runs * alone / self._time(feeds, runs, count))
                earlier = self._earlier.get(runs)
                if earlier and is_gain_confirmed(earlier, ratios[-1]):
                    ratios = [earlier]
                    break
            gains[runs] = median(ratios)
            if gains[runs] < max(gains.values()):
                break
        return gains

    def _time(self, feeds: Feeds, runs: int, count: int) -> float:
        def work(_: int) -> None:
            for _ in range(count):
                began = self._clock()
                self._run(feeds)
                self._end_run(began)

        began = self._clock()
        self._together(work, runs)
        return self._clock() - began

    @staticmethod
    def _together(work: Callable[[int], None], count: int) -> None:
        errors: list[BaseException] = []
        start = threading.Barrier(count)

        def call(number: int) -> None:
            try:
                start.wait()
                work(number)
            except BaseException as error:  # noqa: BLE001 - raised below
                errors.append(error)

        if count == 1:
            work(0)
            return
        threads = [
            threading.Thread(target=call, args=(number,), name="proof", daemon=True)
            for number in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]


def _why_not(most: int, batches: BatchLimits, given: RunConditions) -> str:
    """Return why there is one run at a time, as far as that is known without runs, or ""."""
    off = ""
    if given.most == 1:
        off = "serving.maxConcurrentRuns is 1"
    elif not given.on_cpu:
        off = "only ONNX Runtime's CPU provider has several runs at a time"
    elif most < 2:
        off = "the container has less than two CPUs"
    elif given.foreign:
        off = "the libraries of spec.extensions may not allow it"
    elif given.varying:
        off = "outputs differ from run to run"
    elif batches.turn_rows:
        off = "runs are short, and take place in the event loop"
    return off


def _numbers(most: int) -> list[int]:
    doubled = [2**power for power in range(1, most.bit_length())]
    return sorted({*doubled, most})
