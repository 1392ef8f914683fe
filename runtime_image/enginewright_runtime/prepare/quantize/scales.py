"""Scales and zero points, and quantization with them. Pure arithmetic, on NumPy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from enginewright_runtime.prepare.quantize.forms import Grid
from enginewright_runtime.proof.rounding.half_rules import Half

Array = NDArray[Any]
# Kernels flush a subnormal scale to zero, and then divide by it.
_SMALLEST: Final = float(np.finfo(np.float32).tiny)
_NEAR: Final = 1.125  # times a scale: a larger one leaves fewer than 8 of 9 steps of the range


@dataclass(frozen=True)
class Quantizer:
    """One scale and zero point for all elements."""

    scale: float
    zero_point: int


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight on a grid, `values * scales` along the axis, or with one scale for all."""

    values: Array
    scales: NDArray[np.float32]  # [] or [channels]
    axis: int | None


def quantizer(
    low: float, high: float, grid: Grid, *, symmetric: bool, half: Half | None = None
) -> Quantizer:
    """Return the scale and zero point for values between two limits; 0.0 is always representable.

    A symmetric scale is a number of `half` where that has one near it.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    if symmetric:
        scale = max(max(-low, high) / grid.high, _SMALLEST)
        if half is not None:
            scale = float(round_up(np.asarray(scale, np.float32), half))
        return Quantizer(scale, 0)
    scale = max((high - low) / (grid.high - grid.low), _SMALLEST)
    zero_point = round(grid.low - low / scale)
    return Quantizer(scale, int(min(max(zero_point, grid.low), grid.high)))


def quantize_weight(
    array: Array, grid: Grid, axis: int | None, half: Half | None = None
) -> QuantizedWeight:
    """Quantize a weight symmetrically, with a scale for each index along `axis` or one for all.

    Scales are numbers of `half` where that has some near them.
    """
    exact = array.astype(np.float32)
    others = tuple(index for index in range(exact.ndim) if index != axis)
    largest = np.abs(exact).max(axis=others if axis is not None else None, initial=0.0)
    # for a channel of zeros any scale is valid
    scales = np.where(largest > 0, largest / np.float32(grid.high), 1.0).astype(np.float32)
    scales = np.maximum(scales, np.float32(_SMALLEST))
    if half is not None:
        scales = round_up(scales, half)
    shape = [1] * exact.ndim
    if axis is not None:
        shape[axis] = -1
    scaled = exact / scales.reshape(shape)
    if np.issubdtype(np.dtype(grid.dtype), np.integer):
        scaled = np.rint(scaled)
    values = np.clip(scaled, grid.low, grid.high).astype(grid.dtype)
    return QuantizedWeight(values, scales, axis)


def round_up(scales: NDArray[np.float32], half: Half) -> NDArray[np.float32]:
    """Return the next numbers of a format, so that ranges stay covered; the same scales if one has none near it.

    Each is judged by itself: beside a channel with large weights, others would lose all theirs.
    """
    with np.errstate(over="ignore"):  # what overflows is infinite, and not near
        rounded = scales.astype(half.dtype)
        following = np.nextafter(rounded, half.dtype(np.inf))
    less = rounded.astype(np.float32) < scales
    numbers = np.where(less, following, rounded).astype(np.float32)
    return numbers if (numbers <= _NEAR * scales).all() else scales


def has_numbers(half: Half, scales: NDArray[np.float32]) -> bool:
    """Tell whether a format has exactly these numbers."""
    with np.errstate(over="ignore"):
        return bool((scales.astype(half.dtype).astype(np.float32) == scales).all())


def quantize_bias(array: Array, scales: NDArray[np.float64]) -> NDArray[np.int32] | None:
    """Return a bias as 32-bit integers, or None if it overflows."""
    scaled = np.rint(array.astype(np.float64) / scales)
    limits = np.iinfo(np.int32)
    fits = np.isfinite(scaled).all() and (np.abs(scaled) <= limits.max).all()
    return scaled.astype(np.int32) if fits else None


def channel_axis(operator: str, rank: int, *, transposed: bool) -> int | None:
    """Return the axis of a weight's output channels, if there is one."""
    if operator == "Conv":
        return 0
    if operator == "Gemm":
        return 0 if transposed else 1
    return 1 if rank == 2 else None  # batched matrices share no axis of channels


def entropy_limit(counts: Sequence[int] | NDArray[np.int64], largest: float) -> float:
    """Return the limit at which values are best clipped: `counts` are of absolute values up to `largest`.

    The calibration of S. Migacz, "8-bit Inference with TensorRT" (GTC 2017): the limit for which
    the distribution in 128 levels has the smallest Kullback-Leibler divergence from the true one.
    """
    histogram = np.asarray(counts, np.float64).copy()
    # Zeros, half of all values after a Relu, lose nothing at any limit, so they must not count
    # (NVIDIA's pytorch-quantization, calib/histogram.py, does the same).
    histogram[0] = histogram[1]
    if histogram.sum() == 0:
        return largest
    smallest, best_edge = float("inf"), len(histogram)
    for edge in range(_LEVELS, len(histogram) + 1, _STEP):
        inside = histogram[:edge]
        true = inside.copy()
        true[-1] += histogram[edge:].sum()
        starts = np.arange(_LEVELS) * edge // _LEVELS
        sums = np.add.reduceat(inside, starts)
        filled = np.add.reduceat((inside > 0).astype(np.float64), starts)
        sizes = np.diff(np.append(starts, edge))
        means = np.divide(sums, filled, out=np.zeros_like(sums), where=filled > 0)
        coarse = np.where(inside > 0, np.repeat(means, sizes), 0.0)
        divergence = _divergence(true, coarse)
        if divergence < smallest:
            smallest, best_edge = divergence, edge
    return largest * best_edge / len(histogram)


_LEVELS: Final = 128
_STEP: Final = 8  # bins; each candidate costs a pass over the histogram


def _divergence(true: NDArray[np.float64], coarse: NDArray[np.float64]) -> float:
    if not coarse.sum():
        return float("inf")
    p = true / true.sum()
    q = coarse / coarse.sum()
    there = p > 0
    # levels that the coarse distribution lost count as a small probability
    q = np.where(there & (q <= 0), 1e-9, q)
    return float((p[there] * np.log(p[there] / q[there])).sum())


def percentile_limits(
    counts: Sequence[int] | NDArray[np.int64], low: float, high: float, share: float
) -> tuple[float, float]:
    """Return the limits that contain this share of the values, clipping both ends equally."""
    cumulated = np.cumsum(np.asarray(counts, np.float64))
    if not cumulated[-1]:
        return low, high
    cumulated /= cumulated[-1]
    outside = (1.0 - share) / 2
    edges = np.linspace(low, high, len(cumulated) + 1)
    first = int(np.searchsorted(cumulated, outside, side="right"))
    last = int(np.searchsorted(cumulated, 1.0 - outside, side="left"))
    return float(edges[first]), float(edges[min(last, len(cumulated) - 1) + 1])
