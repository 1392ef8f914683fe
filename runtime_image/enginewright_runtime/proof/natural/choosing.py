"""Runs the natural samples, and finds the range of pictures that a model takes: the one in which its outputs move.

A model that takes 0 to 255 sees darkness in 0 to 1, and the more contrast the more it shows. One that takes 0 to 1 shows
about as much in ranges of that size, and saturates far beyond: so 0 to 255 needs more evidence than the others.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from enginewright_runtime.core.time_limit import TimeLimit
from enginewright_runtime.proof.natural.scaling import ColorRange, scale
from enginewright_runtime.session.arrays import Arrays

Array = NDArray[Any]
_Floats = NDArray[np.float64]
_log: Final = logging.getLogger(__name__)
_SECONDS: Final = 30.0  # of `TimeLimit`, for all runs: a slow model has fewer natural samples
_TRIED: Final = 2  # samples that run in all ranges
_LARGEST: Final = 64 << 20  # bytes of one sample's outputs
_LOOKED_AT: Final = 1 << 20  # elements of one output, evenly spaced
_PROBABLE: Final = 1.01  # outputs up to it may be probabilities
_MOVES: Final = 0.05  # standard deviation of a probability that moves
_MOVES_RELATIVELY: Final = 0.3  # of other values, by their root mean square
_STILL: Final = 1e-5  # of what moves
_MORE: Final = (
    0.1  # decades by which outputs must move more than in a smaller range, else that is taken
)
_RISES: Final = (
    0.3  # decades from the least to four times the contrast, where a model takes more than both
)
_NUMBERS: Final = "fiub"  # kinds of arrays

Run = Callable[[Arrays], Arrays]


@dataclass(frozen=True)
class NaturalInputs:
    """Which of the golden samples are natural, and the inputs with pictures from 0 to 1."""

    names: tuple[str, ...]
    images: Mapping[str, int]  # axis of the colours, by input


NO_NATURAL: Final = NaturalInputs((), {})


@dataclass(frozen=True)
class NaturalRun:
    """Natural samples as they ran."""

    inputs: dict[str, Arrays]
    outputs: dict[str, Arrays]


def run_natural(run: Run, samples: Mapping[str, Arrays], images: Mapping[str, int]) -> NaturalRun:
    """Run the samples in the best range; those that the model refuses, or that show nothing, are left out."""
    if not samples:
        return NaturalRun({}, {})
    limit = TimeLimit(_SECONDS)
    ranges = tuple(ColorRange) if images else (ColorRange.UNIT,)
    trials = {
        colors: _run_all(run, dict(islice(samples.items(), _TRIED)), images, colors, limit)
        for colors in ranges
    }
    chosen = ColorRange.UNIT
    if images:
        chosen = _choose({colors: list(trial.outputs.values()) for colors, trial in trials.items()})
        _log.info("outputs move most with pictures from %s", chosen)
    rest = _run_all(run, dict(islice(samples.items(), _TRIED, None)), images, chosen, limit)
    first = trials[chosen]
    return NaturalRun(first.inputs | rest.inputs, first.outputs | rest.outputs)


def _run_all(
    run: Run,
    samples: Mapping[str, Arrays],
    images: Mapping[str, int],
    colors: ColorRange,
    limit: TimeLimit,
) -> NaturalRun:
    done = NaturalRun({}, {})
    for name, arrays in samples.items():
        if limit.over():
            _log.info("the model is slow: the natural sample %s is left out", name)
            break
        feeds = {
            key: scale(array, colors, images[key]) if key in images else array
            for key, array in arrays.items()
        }
        try:
            outputs = run(feeds)
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's exceptions have no common class
            _log.info("the model refuses the natural sample %s: %s", name, error)
            continue
        if _shows_numbers(outputs) and sum(item.nbytes for item in outputs.values()) <= _LARGEST:
            done.inputs[name], done.outputs[name] = feeds, outputs
    return done


def _shows_numbers(outputs: Arrays) -> bool:
    """Return whether any output has an element, and not only NaN and infinities."""
    return any(
        array.size > 0 and (array.dtype.kind != "f" or bool(np.isfinite(array).any()))
        for array in outputs.values()
    )


@dataclass(frozen=True)
class _Parts:
    """How much the parts of an output along one axis move: its channels, columns or classes."""

    deviation: _Floats
    size: _Floats  # root mean square
    largest: _Floats  # magnitude


_Axes = list[_Parts]  # of one output; of an empty one there are none


def _choose(trials: Mapping[ColorRange, Sequence[Arrays]]) -> ColorRange:
    measured = {
        colors: {
            name: _measure([item[name] for item in outputs])
            for name, array in outputs[0].items()
            if array.dtype.kind in _NUMBERS
        }
        for colors, outputs in trials.items()
        if outputs
    }
    scores = {
        colors: float(
            np.mean(
                [_score(own[name], [trial[name] for trial in measured.values()]) for name in own]
            )
        )
        for colors, own in measured.items()
        if own
    }
    return _take(scores)


def _take(scores: Mapping[ColorRange, float]) -> ColorRange:
    """Return the range with the best score; that of bytes only where more contrast has more effect all the way."""
    least, most = (scores.get(item, -np.inf) for item in (ColorRange.UNIT, ColorRange.IMAGENET))
    chosen, best = ColorRange.UNIT, -np.inf
    for colors, score in scores.items():
        allowed = colors is not ColorRange.BYTES or best == -np.inf or most - least > _RISES
        if allowed and score > best + _MORE:
            chosen, best = colors, score
    return chosen


def _score(axes: _Axes, trials: Sequence[_Axes]) -> float:
    """Return by how many decades an output moves less than what counts as moving, along the axis that moves least.

    Columns move little where no detector finds anything, while positions differ by their coordinates anyway.
    """
    scores = [
        _score_axis(parts, [trial[index] for trial in trials if len(trial) == len(axes)])
        for index, parts in enumerate(axes)
    ]
    return min(scores, default=float(np.log10(_STILL)))


def _score_axis(parts: _Parts, trials: Sequence[_Parts]) -> float:
    alike = [item.largest for item in trials if item.largest.size == parts.largest.size]
    is_probable = np.max(alike, axis=0) <= _PROBABLE
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.nan_to_num(parts.deviation / parts.size) / _MOVES_RELATIVELY
    moved = np.where(is_probable, parts.deviation / _MOVES, relative)
    return float(np.mean(np.log10(np.clip(moved, _STILL, 1))))


def _measure(arrays: Sequence[Array]) -> _Axes:
    """Measure along the second and the last axis, where all samples have as many parts, else the whole."""
    shapes = [array.shape for array in arrays]
    rank = len(shapes[0])
    alike = [
        axis
        for axis in sorted({1, rank - 1} & set(range(1, rank)))
        if len({shape[axis] for shape in shapes}) == 1 and shapes[0][axis] > 1
    ]
    has_rows = rank > 0 and len(set(shapes)) == 1 and arrays[0].size > 0
    moves = _subtract_mean(arrays) if has_rows else arrays
    axes: list[int | None] = [*alike] or [None]
    joined = [(_join(arrays, axis), _join(moves, axis)) for axis in axes]
    return [_describe(values, moved) for values, moved in joined if values.size]


def _subtract_mean(arrays: Sequence[Array]) -> list[Array]:
    """Return how rows differ from their mean: what all have, such as an anchor's size, does not move."""
    with np.errstate(invalid="ignore", over="ignore"):  # of infinities
        mean = np.concatenate(arrays).mean(axis=0)
        return [array - mean for array in arrays]


def _join(arrays: Sequence[Array], axis: int | None) -> _Floats:
    """Return some of the values of each part, a row each."""
    step = max(1, sum(array.size for array in arrays) // _LOOKED_AT)
    rows = [
        array.reshape(1, -1)
        if axis is None
        else np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
        for array in arrays
    ]
    return np.concatenate([row[:, ::step] for row in rows], axis=1).astype(np.float64)


def _describe(values: _Floats, moves: _Floats) -> _Parts:
    magnitudes = np.where(np.isfinite(values), np.abs(values), 0.0)
    return _Parts(_spread(moves), _root_mean_square(magnitudes), magnitudes.max(axis=1))


def _spread(values: _Floats) -> _Floats:
    is_finite = np.isfinite(values)
    count = np.maximum(1, is_finite.sum(axis=1, keepdims=True))
    finite = np.where(is_finite, values, 0.0)
    around = np.where(is_finite, finite - finite.sum(axis=1, keepdims=True) / count, 0.0)
    return _root_mean_square(around)


def _root_mean_square(values: _Floats) -> _Floats:
    largest = np.abs(values).max(axis=1, keepdims=True)
    unit = np.where(largest > 0, largest, 1.0)  # so that squares do not overflow
    root: _Floats = np.sqrt(np.mean((values / unit) ** 2, axis=1)) * unit[:, 0]
    return root
