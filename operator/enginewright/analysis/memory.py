"""Whether the new revision's memory grows steadily, as with a leak, and the serving one's does not.

Caches and allocators grow while they warm up and then level off, so only the last half of a pod's
observation decides:

- it grows: the Mann-Kendall trend test (Mann, Econometrica 13, 1945), which outliers cannot mislead;
- by how much: the Theil-Sen slope, the median of all slopes between two samples (Sen, Journal of the
  American Statistical Association 63, 1968), times twice the duration of the half: the whole
  observation's growth at this pace, and never more than the memory has grown;
- steadily: its second part grows at least three quarters as fast as its first, which warm-up with a
  decreasing pace does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from statistics import median
from typing import Final, TypeAlias

from enginewright.analysis.result import AnalysisLimits, AnalysisResult, Figure
from enginewright.analysis.window import start_of
from enginewright.contract.measurements import Measurements, MemorySample
from enginewright.contract.reasons import Reason
from enginewright.contract.report import Finding

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
    growth: float  # bytes over the observation; 0: not steady, or too few samples
    samples: int

    @property
    def share(self) -> float:
        return self.growth / self.start if self.start else 0.0


def compare_memory(
    stable: Sequence[Measurements], canary: Sequence[Measurements], limits: AnalysisLimits
) -> AnalysisResult:
    """Compare the growth of each pod of the new revision with the usual one of the serving pods."""
    since = start_of(canary)
    theirs = [_growth(pod, since) for pod in stable]
    ours = max((_growth(pod, since) for pod in canary), key=lambda each: each.share, default=None)
    if ours is None:
        return AnalysisResult("passed")
    usual = median(each.share for each in theirs) if theirs else 0.0
    leaks = ours.growth >= LEAST_GROWTH and ours.share - usual > limits.max_memory_growth
    figure = Figure(
        name="memory growth",
        unit="share",
        stable=usual if theirs else None,
        canary=ours.share,
        ratio=None,
        limit=limits.max_memory_growth,
        stable_samples=sum(each.samples for each in theirs),
        canary_samples=ours.samples,
        state="failed" if leaks else "passed",
    )
    if not leaks:
        return AnalysisResult("passed", figures=(figure,))
    cause = (
        f"the server's memory grows steadily, by {ours.growth / 2**20:.0f} MiB ({ours.share:.0%})"
        f" since the rollout began, in the serving revision by {usual:.0%}"
    )
    finding = Finding(reason=Reason.MEMORY_GROWTH, cause=cause)
    return AnalysisResult("failed", findings=(finding,), figures=(figure,))


def _growth(pod: Measurements, since: float) -> _Growth:
    samples = [each for each in pod.memory if each.at >= since][_FIRST:]
    if len(samples) < _LEAST:
        return _Growth(0.0, 0.0, len(samples))
    start = median(each.bytes for each in samples[:3])
    end = median(each.bytes for each in samples[-3:])
    middle = (samples[0].at + samples[-1].at) / 2
    half = _thinned([each for each in samples if each.at >= middle])
    if not _grows(half):
        return _Growth(start, 0.0, len(samples))
    cut = len(half) // 2
    if _slope(half[cut:]) < _STEADY * _slope(half[: cut + 1]):
        return _Growth(start, 0.0, len(samples))
    pace = _slope(half) * (samples[-1].at - samples[0].at)
    return _Growth(start, max(0.0, min(pace, end - start)), len(samples))


def _thinned(samples: Samples) -> Samples:
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
    """Return bytes per second, by Theil-Sen; 0: there are no two times."""
    slopes = [
        (later.bytes - earlier.bytes) / (later.at - earlier.at)
        for earlier, later in combinations(samples, 2)
        if later.at > earlier.at
    ]
    return median(slopes) if slopes else 0.0
