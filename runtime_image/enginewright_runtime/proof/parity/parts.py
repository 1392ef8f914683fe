"""What is expected of an output as a whole, and of each index of an axis that names things: the file beside golden samples.

`parts_builder` measures it over the golden samples, `parts_judge` compares an artefact with it.
"""

import zipfile
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from enginewright_runtime.proof.parity.part_sums import WHOLE, Floats
from enginewright_runtime.proof.parity.quiet_samples import QuietSamples
from enginewright_runtime.proof.parity.rounding_figures import RoundingFigures
from enginewright_runtime.session.arrays import read_arrays, write_arrays

PARTS: Final = "parts.npz"  # beside the golden samples
_ROWS: Final = ("magnitude", "spread", "error", "count", "names", "bound")  # in files


@dataclass(frozen=True, slots=True)
class AxisParts:
    """What is expected of each index along one axis of an output: arrays of [size of the axis], float32 in files.

    Axis `WHOLE` stands for the output as a whole, of which all elements are one part.
    """

    axis: int
    magnitude: Floats  # RMS of the expected values; 1 of names
    spread: Floats  # what the samples move them by, see `_find_spread`; 0 if they do not
    error: Floats  # RMS error that rounding to the precision makes; inf if it is not known
    count: Floats  # effective number of values, see `part_sums.count_effective`; of names, all
    names: NDArray[np.bool_]  # whether the values are names, of which each is right or wrong
    bound: NDArray[
        np.bool_
    ]  # whether the spread may be that of positions alone: what agrees is unjudged
    # Of the whole: what rounding costs at least half of the samples, by the own scales of their rows. Not
    # finite if it is not known, and of names
    own_share: float = float("inf")
    figures: RoundingFigures | None = None  # of the whole, if rounding could be emulated
    quiet: QuietSamples | None = None  # of parts of an axis, if any has some


Parts = Mapping[str, tuple[AxisParts, ...]]  # by output


def write_parts(path: Path, parts: Parts) -> None:
    """Write arrays AXIS/OUTPUT, float32 of [6, size of the axis], the fields in `_ROWS`.

    Of the whole, its own share follows, and the fields of `RoundingFigures`, if they are known; of others,
    those of `QuietSamples`, if there are any.
    """
    by_axis: dict[str, dict[str, NDArray[Any]]] = {}
    for output, items in parts.items():
        for item in items:
            rows = np.stack([getattr(item, name) for name in _ROWS])
            if item.axis == WHOLE:
                further = (item.own_share, *(astuple(item.figures) if item.figures else ()))
                rows = np.concatenate((rows, np.array(further)[:, None]))
            elif item.quiet is not None:
                rows = np.concatenate((rows, astuple(item.quiet)))
            by_axis.setdefault(str(item.axis), {})[output] = rows.astype(np.float32)
    write_arrays(path, by_axis)


def read_parts(path: Path) -> Parts:
    """Read what `write_parts` wrote; raises OSError, or ValueError if the file is damaged."""
    parts: dict[str, tuple[AxisParts, ...]] = {}
    try:
        for axis, arrays in read_arrays(path).items():
            for output, rows in arrays.items():
                magnitude, spread, error, count, names, bound, *further = rows
                item = AxisParts(int(axis), magnitude, spread, error, count, names > 0, bound > 0)
                if further and item.axis == WHOLE:
                    own_share, *figures = [float(row[0]) for row in further]
                    rounding = RoundingFigures(*figures) if figures else None
                    item = replace(item, own_share=own_share, figures=rounding)
                elif further:
                    item = replace(item, quiet=QuietSamples(*further))
                parts[output] = (*parts.get(output, ()), item)
    except (zipfile.BadZipFile, EOFError, TypeError) as error:
        raise ValueError(f"{path.name} is damaged: {error}") from error
    return parts
