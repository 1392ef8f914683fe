"""Golden inputs: the user's samples, or values from a seeded generator, the same on every machine."""

import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import numpy as np
from enginewright_contract.manifest import TensorSpec
from enginewright_contract.reasons import Reason
from enginewright_contract.task import ShapeProfile
from numpy.typing import NDArray

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.logs import format_bytes
from enginewright_runtime.graph.shapes import points

Array = NDArray[Any]
Ranges = Mapping[str, tuple[float | None, float | None]]  # lowest and highest value, by input
_SEED: Final = 20240229
LARGEST_INPUTS: Final = 256 << 20  # bytes that one sample may store, except the first
_MOST_DRAWN: Final = 1 << 30  # bytes of the first one, without which nothing is proven
_ELEMENT_BYTES: Final = {"string": 64, "bfloat16": 2}  # approximate: strings are Python objects
_ONE_SAMPLE: Final = "sample"  # name of the only sample of a file with bare input names
_MOST_SAMPLES: Final = 64


@dataclass(frozen=True)
class Sample:
    """One set of inputs, and the expected outputs that are known."""

    name: str  # no "/"
    inputs: Mapping[str, Array]
    expected: Mapping[str, Array]

    @property
    def input_bytes(self) -> int:
        """Return the bytes of all inputs."""
        return sum(array.nbytes for array in self.inputs.values())


class IntegerRange(StrEnum):
    """Ranges of integers without a declared range, tried in this order until the model accepts one."""

    DIGITS = "0 to 9"
    BITS = "0 to 1"
    ZEROS = "0 to 0"
    ONES = "1 to 1"

    @property
    def span(self) -> tuple[int, int]:
        """Return the lowest and the highest value."""
        least, _, most = self.partition(" to ")
        return int(least), int(most)


def generate(
    inputs: Sequence[TensorSpec],
    profiles: Sequence[ShapeProfile],
    integers: IntegerRange = IntegerRange.DIGITS,
) -> list[Sample]:
    """Return one sample each for the min, opt and max shapes of the profiles that are affordable, named so.

    Values are in the profile's range, inclusive; else floats in [0, 1), integers in `integers`.
    Raises StageFailure, before anything is drawn, if the first one is too large.
    """
    ranges = find_ranges(profiles)
    affordable = find_affordable(inputs, profiles)
    if affordable:
        _refuse_too_large(inputs, next(iter(affordable.values())))
    return [draw(inputs, shapes, ranges, integers, corner) for corner, shapes in affordable.items()]


def find_affordable(
    inputs: Sequence[TensorSpec], profiles: Sequence[ShapeProfile]
) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the input shapes of the corners that are small enough to store, and of the first."""
    corners = points(profiles)
    first = next(iter(corners), None)
    return {
        corner: shapes
        for corner, shapes in corners.items()
        if corner == first or sum_bytes(inputs, shapes) <= LARGEST_INPUTS
    }


def sum_bytes(inputs: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]]) -> int:
    """Return the bytes of all inputs in these shapes."""
    return sum(_count_bytes(spec, shapes[spec.name]) for spec in inputs)


def _count_bytes(spec: TensorSpec, shape: Sequence[int]) -> int:
    size = _ELEMENT_BYTES.get(spec.dtype) or int(np.dtype(spec.dtype).itemsize)
    return math.prod(shape) * size


def _refuse_too_large(inputs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]]) -> None:
    size = sum_bytes(inputs, shapes)
    if size <= _MOST_DRAWN:
        return
    largest = max(inputs, key=lambda spec: _count_bytes(spec, shapes[spec.name]))
    least = [dimension if isinstance(dimension, int) else 1 for dimension in largest.shape]
    is_fixed = _count_bytes(largest, least) > _MOST_DRAWN
    smaller = (
        "export the model with smaller or dynamic dimensions"
        if is_fixed
        else "declare smaller min sizes in spec.shapes"
    )
    raise StageFailure(
        Reason.PARITY_FAILED,
        f"input {largest.name!r} of shape {list(shapes[largest.name])} is too large to draw: the smallest"
        f" golden inputs take {format_bytes(size)}, more than {format_bytes(_MOST_DRAWN)}",
        remedy=f"{smaller}, or provide inputs in spec.parity.samples",
    )


def find_ranges(profiles: Sequence[ShapeProfile]) -> Ranges:
    """Return the declared ranges of values."""
    return {profile.input: (profile.low, profile.high) for profile in profiles}


def draw(
    inputs: Sequence[TensorSpec],
    shapes: Mapping[str, tuple[int, ...]],
    ranges: Ranges,
    integers: IntegerRange,
    corner: str,
) -> Sample:
    """Return a sample of these shapes, named `corner`; values as for `generate`."""
    return Sample(
        name=corner,
        inputs={
            spec.name: _draw(spec, shapes[spec.name], ranges.get(spec.name), integers, corner)
            for spec in inputs
        },
        expected={},
    )


def _draw(
    spec: TensorSpec,
    shape: tuple[int, ...],
    span: tuple[float | None, float | None] | None,
    integers: IntegerRange,
    corner: str,
) -> Array:
    seed = [_SEED, *spec.name.encode(), *corner.encode()]
    generator = np.random.default_rng(seed)
    low, high = span or (None, None)
    if spec.dtype == "string":
        return np.full(shape, "enginewright", dtype=np.str_)
    if spec.dtype == "bool":
        least, most = (int(bool(low)), int(bool(high))) if low is not None else (0, 1)
        return generator.integers(least, most + 1, shape).astype(np.bool_)
    if spec.dtype == "bfloat16":
        # the upper half of float32's bits, since NumPy has no bfloat16
        bits = _floats(generator, shape, low, high).astype(np.float32).view(np.uint32) >> 16
        return bits.astype(np.uint16)
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "f":
        return _floats(generator, shape, low, high).astype(dtype)
    least, most = integers.span
    if low is not None:
        least = int(np.ceil(low))
        most = max(least, most)
    if high is not None:
        most = int(np.floor(high))
    limits = np.iinfo(dtype)
    least, most = max(least, int(limits.min)), min(most, int(limits.max))
    return generator.integers(least, max(least, most), shape, dtype=np.int64, endpoint=True).astype(
        dtype
    )


def _floats(
    generator: np.random.Generator, shape: tuple[int, ...], low: float | None, high: float | None
) -> NDArray[np.float64]:
    least = 0.0 if low is None else low
    most = max(least, 1.0) if high is None else high
    return generator.uniform(least, most, shape)


def read_samples(
    path: Path, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> list[Sample]:
    """Read an .npz of arrays SAMPLE/INPUT or SAMPLE/OUTPUT, or of bare names, one sample; raises ParityFailed."""
    specs = {spec.name: spec for spec in (*inputs, *outputs)}
    groups: dict[str, dict[str, Array]] = {}
    for key, array in _arrays(path):
        sample, name = (_ONE_SAMPLE, key) if key in specs else key.partition("/")[::2]
        if name not in specs:
            raise _invalid(
                f"the name of array {key!r} matches no input or output; the model has"
                f" {', '.join(specs)}, so use for example SAMPLE/{next(iter(specs))}"
            )
        groups.setdefault(sample, {})[name] = _fitting(key, array, specs[name])
    if not groups:
        raise _invalid("the file contains no arrays")
    if len(groups) > _MOST_SAMPLES:
        raise _invalid(f"the file contains {len(groups)} samples, more than {_MOST_SAMPLES}")
    input_names = {spec.name for spec in inputs}
    return [_sample(name, arrays, input_names) for name, arrays in groups.items()]


def _sample(name: str, arrays: dict[str, Array], input_names: set[str]) -> Sample:
    if missing := sorted(input_names - arrays.keys()):
        raise _invalid(f"sample {name!r} lacks input {missing[0]!r}")
    return Sample(
        name,
        {key: array for key, array in arrays.items() if key in input_names},
        {key: array for key, array in arrays.items() if key not in input_names},
    )


def _arrays(path: Path) -> Iterator[tuple[str, Array]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise _invalid(
                    "the file is a single .npy array; use numpy.savez with names of inputs"
                )
            for key in file.files:
                yield key, file[key]
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        cause = "it contains Python objects" if "pickle" in str(error) else str(error)
        raise _invalid(f"the file is not an .npz file of plain arrays: {cause}") from error


def _fitting(key: str, array: Array, spec: TensorSpec) -> Array:
    if spec.dtype == "string":
        fits = array.dtype.kind in "US"
    elif spec.dtype == "bfloat16":
        fits = array.dtype.itemsize == 2
    else:
        fits = array.dtype == np.dtype(spec.dtype)
    if not fits:
        raise _invalid(f"array {key!r} has type {array.dtype}, the model expects {spec.dtype}")
    wrong_rank = bool(spec.shape) and len(spec.shape) != array.ndim
    if wrong_rank or any(
        isinstance(size, int) and size != have
        for size, have in zip(spec.shape, array.shape, strict=False)
    ):
        raise _invalid(
            f"array {key!r} has shape {list(array.shape)}, the model has {list(spec.shape)}"
        )
    return array


def _invalid(cause: str) -> StageFailure:
    return StageFailure(
        Reason.PARITY_FAILED,
        f"the samples of spec.parity.samples are invalid: {cause}",
        remedy="write them with numpy.savez, arrays named SAMPLE/INPUT and SAMPLE/OUTPUT",
    )
