"""Runs the natural samples, and finds the range of pictures that a model takes: the one in which its outputs move.

A model that takes 0 to 255 sees darkness in 0 to 1, and one that takes 0 to 1 saturates, so the smaller ranges come
first: the largest is taken only where it shows several times as much.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from enginewright_runtime.proof.natural.scaling import ColorRange, scale
from enginewright_runtime.session.arrays import Arrays

Array = NDArray[Any]
_Floats = NDArray[np.float64]
_log: Final = logging.getLogger(__name__)
_TRIED: Final = 2  # samples that run in all ranges
_LARGEST: Final = 64 << 20  # bytes of one sample's outputs
_LOOKED_AT: Final = 1 << 20  # elements of one output, evenly spaced
_PROBABLE: Final = 1.01  # outputs up to it may be probabilities
_MOVES: Final = 0.05  # standard deviation of a probability that moves
_MOVES_RELATIVELY: Final = 0.3  # of other values, by their root mean square
_STILL: Final = 1e-5  # of what moves
_MORE: Final = 0.5  # decades by which outputs must move more in the largest range
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
    ranges = tuple(ColorRange) if images else (ColorRange.UNIT,)
    trials = {
        colors: _run_all(run, dict(islice(samples.items(), _TRIED)), images, colors)
        for colors in ranges
    }
    chosen = _choose({colors: list(trial.outputs.values()) for colors, trial in trials.items()})
    if images:
        _log.info("outputs move most with pictures from %s", chosen)
    rest = _run_all(run, dict(islice(samples.items(), _TRIED, None)), images, chosen)
    first = trials[chosen]
    return NaturalRun(first.inputs | rest.inputs, first.outputs | rest.outputs)


def _run_all(
    run: Run, samples: Mapping[str, Arrays], images: Mapping[str, int], colors: ColorRange
) -> NaturalRun:
    done = NaturalRun({}, {})
    for name, arrays in samples.items():
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
    """How much the parts of one output move: its channels, columns or classes."""

    deviation: _Floats
    size: _Floats  # root mean square
    largest: _Floats  # magnitude


def _choose(trials: Mapping[ColorRange, Sequence[Arrays]]) -> ColorRange:
    parts = {
        colors: {
            name: _measure([item[name] for item in outputs])
            for name, array in outputs[0].items()
            if array.dtype.kind in _NUMBERS
        }
        for colors, outputs in trials.items()
        if outputs
    }
    scores = {
        colors: float(np.mean([_score(name, item, parts.values()) for name, item in own.items()]))
        for colors, own in parts.items()
        if own
    }
    smaller = [colors for colors in scores if colors is not ColorRange.BYTES]
    best = max(smaller, key=scores.__getitem__, default=ColorRange.UNIT)
    more = scores.get(ColorRange.BYTES, -np.inf) - scores.get(best, -np.inf)
    return ColorRange.BYTES if more > _MORE else best


def _score(name: str, parts: _Parts, trials: Iterable[Mapping[str, _Parts]]) -> float:
    """Return by how many decades the parts of an output move less than what counts as moving, on average."""
    if not parts.deviation.size:
        return float(np.log10(_STILL))
    alike = [item[name].largest for item in trials if item[name].largest.size == parts.largest.size]
    probable = np.max(alike, axis=0) <= _PROBABLE
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.nan_to_num(parts.deviation / parts.size) / _MOVES_RELATIVELY
    moved = np.where(probable, parts.deviation / _MOVES, relative)
    return float(np.mean(np.log10(np.clip(moved, _STILL, 1))))


def _measure(arrays: Sequence[Array]) -> _Parts:
    """Measure the parts along the second and the last axis, where all samples have the same ones, else the whole."""
    shapes = [array.shape for array in arrays]
    rank = len(shapes[0])
    alike = [
        axis
        for axis in sorted({1, rank - 1} & set(range(1, rank)))
        if len({shape[axis] for shape in shapes}) == 1 and shapes[0][axis] > 1
    ]
    joined = [_join(arrays, axis) for axis in alike] or [_join(arrays, None)]
    described = [_describe(values) for values in joined if values.size]
    if not described:
        return _Parts(*[np.zeros(0)] * 3)
    return _Parts(*(np.concatenate(column) for column in zip(*described, strict=True)))


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


def _describe(values: _Floats) -> tuple[_Floats, _Floats, _Floats]:
    is_finite = np.isfinite(values)
    count = np.maximum(1, is_finite.sum(axis=1))
    finite = np.where(is_finite, values, 0.0)
    largest = np.abs(finite).max(axis=1)
    unit = np.where(largest > 0, largest, 1.0)  # so that squares do not overflow
    scaled = finite / unit[:, np.newaxis]
    mean = scaled.sum(axis=1) / count
    deviation = np.sqrt(
        (np.where(is_finite, scaled - mean[:, np.newaxis], 0.0) ** 2).sum(axis=1) / count
    )
    size = np.sqrt((scaled**2).sum(axis=1) / count)
    return deviation * unit, size * unit, largest
