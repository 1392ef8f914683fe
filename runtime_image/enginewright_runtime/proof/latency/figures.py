"""Computes a benchmark's figures from times of single runs, and when a warm-up is complete. Pure."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np
from enginewright_contract.manifest import Latency
from numpy.typing import NDArray

WINDOW: Final = 5  # runs of a warm-up whose median is compared
_STABLE: Final = 0.1  # largest relative difference between two such medians


def is_warm(times: Sequence[float]) -> bool:
    """Tell whether the medians of the last two windows are about equal."""
    if len(times) < 2 * WINDOW:
        return False
    before, last = (
        float(np.median(times[start : start + WINDOW]))
        for start in (len(times) - 2 * WINDOW, len(times) - WINDOW)
    )
    return abs(before - last) <= _STABLE * last


def rows(feeds: Mapping[str, NDArray[Any]]) -> int:
    """Return the rows of one run: the first dimension of the first input that has two or more."""
    return next((array.shape[0] for array in feeds.values() if array.ndim > 1), 1)


def latency(times: Sequence[float], shapes: str, row_count: int) -> Latency:
    """Return percentiles and throughput of consecutive runs; `times` in seconds."""
    p50, p90, p99 = (float(item) for item in np.percentile(times, [50, 90, 99]))
    return Latency(
        p50=p50,
        p90=p90,
        p99=p99,
        samples=len(times),
        shapes=shapes,
        throughput=row_count * len(times) / sum(times),
    )


def choose_samples(
    shapes: Mapping[str, tuple[tuple[int, ...], ...]], corners: Sequence[str]
) -> list[str]:
    """Return the samples to run, smallest first: those of the corners, else at most three others."""
    first: dict[tuple[tuple[int, ...], ...], str] = {}
    for name, shape in shapes.items():
        first.setdefault(shape, name)
    if corner_samples := [name for name in corners if name in first.values()]:
        return corner_samples
    sizes = {name: sum(map(prod, shapes[name])) for name in first.values()}
    ordered = sorted(sizes, key=lambda name: sizes[name])
    return [ordered[index] for index in sorted({0, len(ordered) // 2, len(ordered) - 1})]
