"""Latency windows of the same requests, or the same golden sample, of both revisions.

Only windows since both revisions have a pod are compared, as load and neighbours differed before.
A golden sample whose inputs have changed is another one, even under the same name.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, log
from typing import Final, TypeAlias

from enginewright_contract.measurements import WINDOW, LatencySeries, Measurements

from enginewright.analysis.shift import Windows
from enginewright.analysis.window import count_since, start_of

Key: TypeAlias = tuple[str, str]  # source and name

_LEAST: Final = 1e-7  # seconds: what servers round to; less is no measurement


@dataclass(frozen=True)
class Arm:
    """One revision's measurements of one series, its pods together."""

    windows: Windows = ()
    count: int = 0  # measurements, including those whose windows are no longer kept

    def until(self, time: float) -> Windows:
        """Return the windows up to a Unix time."""
        return [window for window in self.windows if window[0] <= time]

    def find_time(self, count: int) -> float:
        """Return when there were `count` measurements, as far as their windows are kept."""
        return self.windows[min(ceil(count / WINDOW), len(self.windows)) - 1][0]


@dataclass(frozen=True)
class Pair:
    """The same series of both revisions."""

    stable: Arm
    canary: Arm

    @property
    def count(self) -> int:
        """Return how many measurements each revision has at least."""
        return min(self.stable.count, self.canary.count)


def pairs(stable: Sequence[Measurements], canary: Sequence[Measurements]) -> dict[Key, Pair]:
    """Return the series that both revisions have."""
    start = start_of(stable, canary)
    arms = [_arms(row, start) for row in (stable, canary)]
    other = {("golden", name) for name in other_inputs(stable, canary)}
    return {
        key: Pair(arms[0][key], arms[1][key])
        for key in sorted(arms[0].keys() & arms[1].keys() - other)
    }


def requests_of(stable: Sequence[Measurements], canary: Sequence[Measurements]) -> int:
    """Return how many clients' requests both revisions have answered since both have a pod."""
    start = start_of(stable, canary)
    return sum(sum(count_since(pod, start).responses.values()) for pod in (*stable, *canary))


def only_other_inputs(stable: Sequence[Measurements], canary: Sequence[Measurements]) -> bool:
    """Return whether no golden sample can ever be compared, as the inputs of all have changed.

    Samples take turns, so it is known once the new revision has a median of one.
    """
    measured = _arms(canary, start_of(stable, canary))
    theirs, ours = map(_golden, (stable, canary))
    same = theirs & ours - set(other_inputs(stable, canary))
    return not same and any(source == "golden" for source, _ in measured)


def other_inputs(stable: Sequence[Measurements], canary: Sequence[Measurements]) -> list[str]:
    """Return the golden samples of both revisions whose inputs are known to differ."""
    arms = [_inputs(row) for row in (stable, canary)]
    names = arms[0].keys() & arms[1].keys()
    return sorted(name for name in names if arms[0][name] != arms[1][name])


def pool(arms: Iterable[Arm]) -> Arm:
    """Return several as one."""
    arms = tuple(arms)
    windows = sorted(window for arm in arms for window in arm.windows)
    return Arm(windows, sum(arm.count for arm in arms))


def _arms(pods: Iterable[Measurements], start: float) -> dict[Key, Arm]:
    by_key: dict[Key, list[Arm]] = {}
    for pod in pods:
        for series in pod.latencies:
            arm = _arm(series, max(start, pod.since))
            if arm.windows:
                by_key.setdefault((series.source, series.name), []).append(arm)
    return {key: pool(arms) for key, arms in by_key.items()}


def _golden(pods: Iterable[Measurements]) -> set[str]:
    """Return the names of golden samples, including those without a median."""
    pods = tuple(pods)
    series = (latency for pod in pods for latency in pod.latencies if latency.source == "golden")
    return {
        *(latency_series.name for latency_series in series),
        *(name for pod in pods for name in pod.golden_left_out),
    }


def _inputs(pods: Iterable[Measurements]) -> dict[str, set[str]]:
    """Return the digests of each golden sample's inputs; earlier versions report none."""
    digests: dict[str, set[str]] = {}
    for series in (series for pod in pods for series in pod.latencies):
        if series.source == "golden" and series.inputs:
            digests.setdefault(series.name, set()).add(series.inputs)
    return digests


def _arm(series: LatencySeries, start: float) -> Arm:
    kept = [
        (at, log(seconds)) for at, seconds in series.windows if at >= start and seconds >= _LEAST
    ]
    count = WINDOW * len(kept)
    dropped = series.count >= WINDOW * (len(series.windows) + 1)
    if dropped and len(kept) == len(series.windows) > 1:
        # the earlier ones since `start` are counted as if the rate had been the same
        share = (kept[-1][0] - start) / max(kept[-1][0] - kept[0][0], 1e-9)
        count = int(min(series.count, max(count, count * share)))
    return Arm(kept, count)
