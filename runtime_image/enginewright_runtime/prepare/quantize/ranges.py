"""Calibrates the ranges of values from calibration data, by the requested method."""

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Final, Literal, TypeAlias

import numpy as np

from enginewright_runtime.prepare.quantize.calibration import CalibrationData
from enginewright_runtime.prepare.quantize.observing import (
    ValueHistogram,
    ValueLimits,
    histograms,
    limits,
)
from enginewright_runtime.prepare.quantize.scales import entropy_limit, percentile_limits

Method: TypeAlias = Literal["MinMax", "Entropy", "Percentile"]
Ranges: TypeAlias = dict[str, tuple[float, float]]
_PERCENTILE: Final = 0.9999  # of the values; the default of TensorRT's calibrators and toolkits


def calibrate(
    model: Path,
    names: Sequence[str],
    data: CalibrationData,
    method: Method,
    report: Callable[[float], None] = lambda _: None,
) -> Ranges:
    """Return the minimum and maximum of each value that was ever finite, by name.

    MinMax clips nothing; Percentile clips outliers; Entropy loses least information. `report` gets
    the completed share, 0 to 1. Raises SessionError if ONNX Runtime refuses a sample.
    """
    runs = max(1, data.samples * (1 if method == "MinMax" else 2))
    done = count(1)

    def after_sample() -> None:
        # histograms may need more passes, so the share stays below 1
        report(min(0.99, next(done) / runs))

    observed = limits(model, names, data, after_sample)
    finite = {name: value_limits for name, value_limits in observed.items() if value_limits.seen}
    if method == "MinMax":
        return {
            name: (value_limits.low, value_limits.high) for name, value_limits in finite.items()
        }
    counted = histograms(model, finite, lambda: data, after_sample)
    return {
        name: _range(value_limits, counted.get(name), method)
        for name, value_limits in finite.items()
    }


def _range(
    limits_: ValueLimits, histogram: ValueHistogram | None, method: Method
) -> tuple[float, float]:
    if histogram is None:  # one value
        return limits_.low, limits_.high
    if method == "Percentile":
        return percentile_limits(histogram.counts, histogram.low, histogram.high, _PERCENTILE)
    largest = entropy_limit(fold(histogram), limits_.largest)
    return max(limits_.low, -largest), min(limits_.high, largest)


def fold(histogram: ValueHistogram) -> Sequence[int]:
    """Return the histogram of absolute values, on which entropy is computed."""
    counts = histogram.counts
    edges = np.linspace(histogram.low, histogram.high, len(counts) + 1)
    centres = np.abs((edges[:-1] + edges[1:]) / 2)
    largest = max(abs(histogram.low), abs(histogram.high))
    result, _ = np.histogram(centres, len(counts), (0.0, largest), weights=counts)
    return [int(item) for item in result]
