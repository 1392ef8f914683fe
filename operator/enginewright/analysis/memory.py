"""Whether the new revision's memory grows steadily, as with a leak, and the serving one's does not.

Caches and allocators grow while they warm up and then level off, so only the last half of a pod's
observation decides:

- it grows: the Mann-Kendall trend test (Mann, Econometrica 13, 1945), which outliers cannot mislead;
- by how much: the Theil-Sen slope, the median of all slopes between two samples (Sen, Journal of the
  American Statistical Association 63, 1968), times twice the duration of the half: the whole
  observation's growth at this pace, and never more than the memory has grown;
- steadily: its second part grows at least three quarters as fast as its first, which warm-up with a
  decreasing pace does not.

Pods that have run for different times are compared over the new revision's, at the serving ones' pace.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from statistics import median
from typing import Final, TypeAlias

from enginewright_contract.measurements import Measurements, MemorySample
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding

from enginewright.analysis.result import AnalysisLimits, AnalysisResult, Figure
from enginewright.analysis.window import start_of

LEAST_GROWTH: Final = 32 * 2**20  # bytes
_FIRST: Final = 4  # samples of a pod that are left out
_LEAST: Final = 16  # samples that are needed after them
_MOST: Final = 64  # evenly distributed samples of the half, as all pairs of them are compared
_SIGNIFICANT: Final = 3.09  # standard deviations: one-sided 0.1%
_STEADY: Final = 0.75

Samples: TypeAlias = Sequence[MemorySample]


@dataclass(frozen=True)
class _Growth:
    start: float  # bytes
    growth: float  # bytes over the observation, or 0 if it is not steady
    seconds: float  # of the observation
    samples: int

    @property
    def share(self) -> float:
        return self.growth / self.start if self.start else 0.0


@dataclass(frozen=True)
class _Compared:
    """A pod of the new revision, and the serving ones."""

    growth: _Growth
    usual: float | None  # share that the serving revision's pods grow in as long, if known

    @property
    def excess(self) -> float:
        return self.growth.share - (self.usual or 0.0)


def compare_memory(
    stable: Sequence[Measurements], canary: Sequence[Measurements], limits: AnalysisLimits
) -> AnalysisResult:
    """Compare the growth of each pod of the new revision with the usual one of the serving pods.

    Pods with too few samples are left out. If those are all serving pods, nothing fails.
    """
    since = start_of(stable, canary)
    theirs, ours = (
        [growth for pod in pods if (growth := _growth(pod, since))] for pods in (stable, canary)
    )
    worst = max(
        (_Compared(item, _usual(theirs, item.seconds)) for item in ours),
        key=lambda compared: compared.excess,
        default=None,
    )
    if worst is None:
        return AnalysisResult("passed")
    growth, usual = worst.growth, worst.usual
    leaks = growth.growth >= LEAST_GROWTH and worst.excess > limits.max_memory_growth
    fails = leaks and bool(theirs or not stable)
    figure = Figure(
        name="memory growth",
        unit="share",
        stable=usual,
        canary=growth.share,
        ratio=None,
        limit=limits.max_memory_growth,
        stable_samples=sum(their.samples for their in theirs),
        canary_samples=growth.samples,
        state="failed" if fails else "passed",
    )
    if not fails:
        return AnalysisResult("passed", figures=(figure,))
    cause = (
        f"the server's memory grows steadily, by {growth.growth / 2**20:.0f} MiB"
        f" ({growth.share:.0%}) since the rollout began, in the serving revision by {usual or 0:.0%}"
    )
    finding = Finding(reason=Reason.MEMORY_GROWTH, cause=cause)
    return AnalysisResult("failed", findings=(finding,), figures=(figure,))


def _usual(pods: Sequence[_Growth], seconds: float) -> float | None:
    shares = [pod.share * seconds / pod.seconds for pod in pods]
    return median(shares) if shares else None


def _growth(pod: Measurements, since: float) -> _Growth | None:
    samples = [sample for sample in pod.memory if sample.at >= since][_FIRST:]
    if len(samples) < _LEAST or samples[-1].at <= samples[0].at:
        return None
    start = median(sample.bytes for sample in samples[:3])
    end = median(sample.bytes for sample in samples[-3:])
    seconds = samples[-1].at - samples[0].at
    middle = (samples[0].at + samples[-1].at) / 2
    half = _thin([sample for sample in samples if sample.at >= middle])
    cut = len(half) // 2
    steady = _grows(half) and _slope(half[cut:]) >= _STEADY * _slope(half[: cut + 1])
    growth = max(0.0, min(_slope(half) * seconds, end - start)) if steady else 0.0
    return _Growth(start, growth, seconds, len(samples))


def _thin(samples: Samples) -> Samples:
    step = -(-len(samples) // _MOST)
    return samples[::-1][::step][::-1]  # the last one stays


def _grows(samples: Samples) -> bool:
    """Return whether there is an upward trend, by Mann-Kendall."""
    count = len(samples)
    score = sum(
        (later.bytes > earlier.bytes) - (later.bytes < earlier.bytes)
        for earlier, later in combinations(samples, 2)
    )
    deviation = sqrt(count * (count - 1) * (2 * count + 5) / 18)
    return count > 2 and score - 1 > _SIGNIFICANT * deviation


def _slope(samples: Samples) -> float:
    """Return bytes per second, by Theil-Sen, or 0 without two times."""
    slopes = [
        (later.bytes - earlier.bytes) / (later.at - earlier.at)
        for earlier, later in combinations(samples, 2)
        if later.at > earlier.at
    ]
    return median(slopes) if slopes else 0.0
