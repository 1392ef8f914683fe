"""Draws natural golden samples: pictures, speech and texts for the inputs that look like them.

They have the opt shapes with the least batch: the corners prove the sizes, these prove the outputs.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from enginewright_contract.manifest import TensorSpec
from enginewright_contract.task import ShapeProfile
from numpy.typing import NDArray

from enginewright_runtime.graph.shapes import points
from enginewright_runtime.proof.golden_inputs import (
    IntegerRange,
    Ranges,
    Sample,
    draw,
    find_ranges,
)
from enginewright_runtime.proof.natural.images import PICTURES, draw_image
from enginewright_runtime.proof.natural.kinds import (
    LEADING,
    Kind,
    Shape,
    find_channels,
    find_kinds,
    is_mask,
)
from enginewright_runtime.proof.natural.sound import HEARD, RATE, draw_sound
from enginewright_runtime.proof.natural.text import (
    draw_mask,
    draw_positions,
    draw_segments,
    draw_tokens,
)

Array = NDArray[Any]
LARGEST: Final = 64 << 20  # bytes of the inputs of all natural samples
PIECES: Final = len(PICTURES)  # pictures, pieces of speech or texts
_FREE: Final = (None, None)
_NOISES: Final = 3
_SCALED: Final = frozenset({"float16", "float32", "float64"})


@dataclass(frozen=True)
class NaturalSamples:
    """Natural samples, and the inputs with pictures from 0 to 1, whose range a run has yet to find."""

    samples: tuple[Sample, ...] = ()
    images: Mapping[str, int] = field(default_factory=dict)  # axis of the colours, by input


NO_SAMPLES: Final = NaturalSamples()


def draw_natural(
    inputs: Sequence[TensorSpec],
    profiles: Sequence[ShapeProfile],
    vocabularies: Mapping[str, int],
    integers: IntegerRange,
) -> NaturalSamples:
    """Return natural samples; more noise if no input looks like a picture, speech or text, and there is one shape only.

    `vocabularies` are the rows of the tables that inputs index; other inputs are drawn as in `generate`.
    """
    opt = {profile.input: profile.opt for profile in profiles}
    kinds = find_kinds(inputs, opt, vocabularies)
    leading = next((spec for spec in inputs if kinds.get(spec.name) in LEADING), None)
    if leading is None:
        return NaturalSamples(_draw_noise(inputs, profiles, integers))
    shapes = _with_least_batch(inputs, profiles, leading)
    ranges = find_ranges(profiles)
    kind = kinds[leading.name]
    samples: list[Sample] = []
    for number in range(math.ceil(PIECES / _count_rows(kind, shapes[leading.name]))):
        plain = draw(inputs, shapes, ranges, integers, f"{kind}-{number + 1}")
        if plain.input_bytes * (number + 1) > LARGEST:
            break
        samples.append(fill_naturally(plain, inputs, ranges, vocabularies, number))
    images = {
        spec.name: channels
        for spec in inputs
        if kinds.get(spec.name) is Kind.IMAGE
        and spec.dtype != "uint8"
        and ranges.get(spec.name, _FREE) == _FREE
        and (channels := find_channels(spec, shapes[spec.name])) is not None
    }
    return NaturalSamples(tuple(samples), images)


def _draw_noise(
    inputs: Sequence[TensorSpec], profiles: Sequence[ShapeProfile], integers: IntegerRange
) -> tuple[Sample, ...]:
    """Return noise of several sizes beside the only corner: one sample moves no part of an output."""
    corners = points(profiles)
    if len(corners) > 1:
        return ()
    ranges = find_ranges(profiles)
    (shapes,) = corners.values()
    samples: list[Sample] = []
    for number in range(1, _NOISES + 1):
        plain = draw(inputs, shapes, ranges, integers, f"noise-{number}")
        if plain.input_bytes * number > LARGEST:
            break
        scaled = {
            spec.name: (plain.inputs[spec.name] * (number / 2)).astype(spec.dtype)
            for spec in inputs
            if spec.dtype in _SCALED and ranges.get(spec.name, _FREE) == _FREE
        }
        samples.append(replace(plain, inputs={**plain.inputs, **scaled}))
    return tuple(samples)


def fill_naturally(
    sample: Sample,
    inputs: Sequence[TensorSpec],
    ranges: Ranges,
    vocabularies: Mapping[str, int],
    number: int,
) -> Sample:
    """Return the sample with pictures, speech and texts from `number` on, in the inputs that look like them."""
    shapes = {name: array.shape for name, array in sample.inputs.items()}
    kinds = find_kinds(inputs, shapes, vocabularies)
    specs = {spec.name: spec for spec in inputs}
    natural = {
        name: array.astype(sample.inputs[name].dtype)
        for name, kind in kinds.items()
        if (
            array := _draw(
                kind,
                specs[name],
                shapes[name],
                ranges.get(name, _FREE),
                vocabularies.get(name, 0),
                number,
            )
        )
        is not None
    }
    return replace(sample, inputs={**sample.inputs, **natural})


def set_masks(
    sample: Sample,
    inputs: Sequence[TensorSpec],
    ranges: Ranges,
    number: int,
    *,
    every: bool = False,
) -> Sample:
    """Return the sample with the masks of texts from `number` on; `every`: in all integers and truth values."""
    masks = {
        spec.name: draw_mask(array.shape, number).astype(array.dtype)
        for spec in inputs
        if (array := sample.inputs[spec.name]).ndim
        and array.size
        and ranges.get(spec.name, _FREE) == _FREE
        and (is_mask(spec) or (every and array.dtype.kind in "iub" and spec.dtype != "bfloat16"))
    }
    return replace(sample, inputs={**sample.inputs, **masks})


def _with_least_batch(
    inputs: Sequence[TensorSpec], profiles: Sequence[ShapeProfile], leading: TensorSpec
) -> dict[str, Shape]:
    """Return the opt shapes with the least size of the leading input's first dimension, wherever it is."""
    batch = leading.shape[0] if leading.shape else None
    by_name = {profile.input: profile for profile in profiles}
    shapes: dict[str, Shape] = {}
    for spec in inputs:
        profile = by_name[spec.name]
        shapes[spec.name] = tuple(
            least if size == batch and (isinstance(size, str) or axis == 0) else opt
            for axis, (size, least, opt) in enumerate(
                zip(spec.shape or profile.opt, profile.min, profile.opt, strict=True)
            )
        )
    return shapes


def _count_rows(kind: Kind, shape: Shape) -> int:
    is_batched = len(shape) > (3 if kind is Kind.IMAGE else 1)
    return shape[0] if is_batched else 1


def _draw(
    kind: Kind,
    spec: TensorSpec,
    shape: Shape,
    span: tuple[float | None, float | None],
    rows: int,
    number: int,
) -> Array | None:
    """Return values of a kind, or None where those of the declared range are kept."""
    if kind is Kind.IMAGE:
        channels = find_channels(spec, shape)
        if channels is None:
            return None
        image = _stretch(draw_image(shape, channels, number), span, spec.dtype)
        return np.round(image) if spec.dtype == "uint8" else image
    return _VALUES[kind](shape, rows, number) if span == _FREE else None


# of an input's shape, the rows of the table that it indexes, and the sample's number
_VALUES: Final[Mapping[Kind, Callable[[Shape, int, int], Array]]] = {
    Kind.SOUND: lambda shape, _, number: _draw_sounds(shape, number),
    Kind.TOKENS: draw_tokens,
    Kind.MASK: lambda shape, _, number: draw_mask(shape, number),
    Kind.SEGMENTS: draw_segments,
    Kind.POSITIONS: lambda shape, rows, _: draw_positions(shape, rows),
    Kind.RATE: lambda shape, *_: np.full(shape, RATE),
    Kind.LOWEST: lambda shape, *_: np.full(shape, HEARD[0]),
    Kind.HIGHEST: lambda shape, *_: np.full(shape, HEARD[1]),
}


def _draw_sounds(shape: Shape, number: int) -> Array:
    rows = math.prod(shape[:-1])
    sounds = [draw_sound(shape[-1], number * rows + row) for row in range(rows)]
    return np.stack(sounds).reshape(shape)


def _stretch(image: Array, span: tuple[float | None, float | None], dtype: str) -> Array:
    """Return an image from 0 to 1 in the declared range, else in that of bytes if it has bytes."""
    low, high = span
    least = 0.0 if low is None else low
    most = (255.0 if dtype == "uint8" else max(least, 1.0)) if high is None else high
    return least + image * (most - least)
