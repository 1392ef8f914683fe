"""Finds the axes of outputs that name things, such as columns, channels and classes, and do not hold positions. Pure."""

from collections.abc import Mapping, Sequence

import numpy as np
from enginewright_contract.manifest import TensorSpec

from enginewright_runtime.graph.raw.graphs import PLACEHOLDER_DIMENSIONS
from enginewright_runtime.proof.parity.axis_sums import MOST_NAMES
from enginewright_runtime.proof.parity.part_sums import WHOLE
from enginewright_runtime.proof.parity.values import Array, kind_of

Arrays = Mapping[str, Array]
_IMAGE_RANK = 4  # of inputs with images or maps of features
_MAP_RANK = 3  # the smallest of outputs that may be maps of them
_LEAST_SIDE = 8  # of a map: smaller ones may be matrices, which have names
_LEAST_SIDE_ALONE = 100  # likewise without an axis for names: queries by classes are square too
_LARGEST_STRIDE = 32  # of usual networks
_MOST_PARTS = 300_000  # longer axes hold positions, such as those of sound
_LEAST_NAMES = 32  # in each part of integers: fewer say nothing that the whole does not


def select_axes(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    feeds: Mapping[str, Array],
    expected: Mapping[str, Arrays],
) -> dict[str, tuple[int, ...]]:
    """Return `WHOLE` and the naming axes of every output of numbers, booleans or strings; `feeds` are the inputs of the first sample, `expected` the golden outputs by sample.

    Axes that are named as an input's, that have different sizes in the samples, or that follow height and
    width of an image hold positions, and those of size 1 nothing. All others count as naming.
    """
    sizes = {
        (name, size)
        for spec in inputs
        if spec.name in feeds and len(spec.shape) == feeds[spec.name].ndim
        for name, size in zip(spec.shape, feeds[spec.name].shape, strict=True)
        if isinstance(name, str) and name not in PLACEHOLDER_DIMENSIONS
    }
    images = [image for array in feeds.values() for image in _list_images(array.shape)]
    axes = {}
    for spec in outputs:
        arrays = [sample[spec.name] for sample in expected.values() if spec.name in sample]
        kinds = {kind_of(array, spec.dtype) for array in arrays}
        if len(arrays) == len(expected) and "other" not in kinds:
            # an output may name another axis like an input's: it holds positions if it has the size too
            shared = zip(spec.shape, arrays[0].shape, strict=False) if arrays else ()
            symbols = frozenset(
                name for name, size in shared if isinstance(name, str) and (name, size) in sizes
            )
            named = find_axes(spec, [array.shape for array in arrays], symbols)
            shape = arrays[0].shape if arrays else ()
            positions = _find_map(shape, images)
            if kinds - {"float"}:
                named = tuple(axis for axis in named if _hold_names(arrays, axis))
            axes[spec.name] = (WHOLE, *(axis for axis in named if axis not in positions))
    return axes


def find_axes(
    spec: TensorSpec, shapes: Sequence[tuple[int, ...]], symbols: frozenset[str]
) -> tuple[int, ...]:
    """Return the axes of an output that have one size above 1 and no name of an input's dimension.

    `shapes` are of all samples, `symbols` the names of the inputs' dynamic dimensions.
    """
    if not shapes or len({len(shape) for shape in shapes}) > 1:
        return ()
    declared = spec.shape if len(spec.shape) == len(shapes[0]) else (None,) * len(shapes[0])
    return tuple(
        axis
        for axis, (size, *sizes) in enumerate(zip(declared, *shapes, strict=True))
        if size not in symbols and len(set(sizes)) == 1 and 1 < sizes[0] <= _MOST_PARTS
    )


def _hold_names(arrays: Sequence[Array], axis: int) -> bool:
    """Return whether each part of integers along an axis has enough of them, and can be counted by itself."""
    size = arrays[0].shape[axis]
    return bool(size <= MOST_NAMES and sum(map(np.size, arrays)) >= _LEAST_NAMES * size)


def _list_images(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return height and width that an input may have: of NCHW and of NHWC."""
    if len(shape) != _IMAGE_RANK:
        return []
    _, first, second, third = shape
    return [(second, third), (first, second)]


def _find_map(shape: Sequence[int], images: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Return the axes of an output with an image's height and width, or both by the same stride."""
    if len(shape) < _MAP_RANK:
        return ()
    least = _LEAST_SIDE_ALONE if len(shape) == _MAP_RANK else _LEAST_SIDE
    for axes in ((len(shape) - 2, len(shape) - 1), (len(shape) - 3, len(shape) - 2)):
        down, across = (shape[axis] for axis in axes)
        for height, width in images:
            if (
                min(down, across) >= least
                and height % down == 0
                and height // down <= _LARGEST_STRIDE
                and height * across == width * down
            ):
                return axes
    return ()
