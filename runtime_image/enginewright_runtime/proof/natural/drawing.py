"""Draws natural golden samples: pictures, speech and texts for the inputs that look like them.

They have the opt shapes with the least batch: the corners prove the sizes, these prove the outputs.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from enginewright_contract.manifest import TensorSpec
from enginewright_contract.task import ShapeProfile
from numpy.typing import NDArray

from enginewright_runtime.graph.shapes import opt_sample
from enginewright_runtime.proof.golden_inputs import (
    IntegerRange,
    Ranges,
    Sample,
    draw,
    find_affordable,
    find_ranges,
)
from enginewright_runtime.proof.natural.images import PICTURES, draw_image
from enginewright_runtime.proof.natural.kinds import (
    LEADING,
    InputKind,
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
# what is taken from noise from 0 to 1, and multiplies the rest: activations have both signs, and several sizes
_NOISES: Final = ((0.0, 0.3), (0.5, 2.0), (0.5, 6.0))
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
    """Return natural samples; none if no input looks like a picture, speech or text.

    `vocabularies` are the rows of the tables that inputs index; other inputs are drawn as in `generate`.
    """
    opt = {profile.input: profile.opt for profile in profiles}
    kinds = find_kinds(inputs, opt, vocabularies)
    leading = next((spec for spec in inputs if kinds.get(spec.name) in LEADING), None)
    if leading is None:
        return NO_SAMPLES
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
        if kinds.get(spec.name) is InputKind.IMAGE
        and spec.dtype != "uint8"
        and ranges.get(spec.name, _FREE) == _FREE
        and (channels := find_channels(spec, shapes[spec.name])) is not None
    }
    return NaturalSamples(tuple(samples), images)


def add_noise(
    natural: NaturalSamples,
    inputs: Sequence[TensorSpec],
    profiles: Sequence[ShapeProfile],
    integers: IntegerRange,
) -> NaturalSamples:
    """Add noise of several strengths and of the opt sizes if it takes that to move outputs: rows of other sizes, or one sample, do not."""
    corners = find_affordable(inputs, profiles)
    shapes = [*corners.values()]
    shapes += [
        {name: array.shape for name, array in sample.inputs.items()} for sample in natural.samples
    ]
    if len(shapes) > 1 and _have_one_size(shapes):
        return natural
    noise = _draw_noise(inputs, corners[opt_sample([*corners])], find_ranges(profiles), integers)
    return replace(natural, samples=(*natural.samples, *noise))


def _have_one_size(samples: Sequence[Mapping[str, Shape]]) -> bool:
    """Return whether any two rows have one size, of a batch or of two samples."""
    rows = [
        (max((shape[0] for shape in shapes.values() if shape), default=1), _drop_batch(shapes))
        for shapes in samples
    ]
    return any(count > 1 for count, _ in rows) or len({size for _, size in rows}) < len(rows)


def _drop_batch(shapes: Mapping[str, Shape]) -> tuple[tuple[str, Shape], ...]:
    return tuple((name, shape[1:]) for name, shape in sorted(shapes.items()))


def _draw_noise(
    inputs: Sequence[TensorSpec],
    shapes: Mapping[str, Shape],
    ranges: Ranges,
    integers: IntegerRange,
) -> Iterator[Sample]:
    for number, (center, size) in enumerate(_NOISES, 1):
        plain = draw(inputs, shapes, ranges, integers, f"noise-{number}")
        if number > 1 and plain.input_bytes * number > LARGEST:
            break
        scaled = {
            spec.name: ((plain.inputs[spec.name] - center) * size).astype(spec.dtype)
            for spec in inputs
            if spec.dtype in _SCALED and ranges.get(spec.name, _FREE) == _FREE
        }
        yield replace(plain, inputs={**plain.inputs, **scaled})


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


def _count_rows(kind: InputKind, shape: Shape) -> int:
    is_batched = len(shape) > (3 if kind is InputKind.IMAGE else 1)
    return shape[0] if is_batched else 1


def _draw(
    kind: InputKind,
    spec: TensorSpec,
    shape: Shape,
    span: tuple[float | None, float | None],
    rows: int,
    number: int,
) -> Array | None:
    """Return values of a kind, or None where those of the declared range are kept."""
    if kind is InputKind.IMAGE:
        channels = find_channels(spec, shape)
        if channels is None:
            return None
        image = _stretch(draw_image(shape, channels, number), span, spec.dtype)
        return np.round(image) if spec.dtype == "uint8" else image
    return _VALUES[kind](shape, rows, number) if span == _FREE else None


# of an input's shape, the rows of the table that it indexes, and the sample's number
_VALUES: Final[Mapping[InputKind, Callable[[Shape, int, int], Array]]] = {
    InputKind.SOUND: lambda shape, _, number: _draw_sounds(shape, number),
    InputKind.TOKENS: draw_tokens,
    InputKind.MASK: lambda shape, _, number: draw_mask(shape, number),
    InputKind.SEGMENTS: draw_segments,
    InputKind.POSITIONS: lambda shape, rows, _: draw_positions(shape, rows),
    InputKind.RATE: lambda shape, *_: np.full(shape, RATE),
    InputKind.LOWEST: lambda shape, *_: np.full(shape, HEARD[0]),
    InputKind.HIGHEST: lambda shape, *_: np.full(shape, HEARD[1]),
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
