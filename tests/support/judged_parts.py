"""One output of several samples: what is expected of its parts, and how a changed one is judged."""

from collections.abc import Callable, Mapping
from typing import Any

from enginewright_runtime.proof.parity.comparison import Comparison, ParityVerdict, scales_of
from enginewright_runtime.proof.parity.part_sums import WHOLE
from enginewright_runtime.proof.parity.parts import Parts
from enginewright_runtime.proof.parity.parts_builder import PartsBuilder
from enginewright_runtime.proof.parity.tolerances import Tolerances
from numpy.typing import NDArray

Array = NDArray[Any]
Change = Callable[[str, Array], Array]  # of a sample's name and array
NAME = "y"
TYPES = {NAME: "float32"}


def build_parts(
    arrays: Mapping[str, Array],
    emulate: Change | None,
    axes: tuple[int, ...] = (WHOLE, 1),
    precision: str = "INT8",
) -> Parts:
    """Return what is expected of the parts; `emulate` is what rounding does, None if it is not known."""
    builder = PartsBuilder({NAME: axes}, TYPES, Tolerances(precision), _find_scales(arrays))
    for name, array in arrays.items():
        builder.add({NAME: array}, {NAME: emulate(name, array)} if emulate else None)
    return builder.build()


def judge_change(
    arrays: Mapping[str, Array], change: Change, parts: Parts, precision: str = "INT8"
) -> ParityVerdict:
    """Compare changed arrays with the expected ones."""
    tolerances = Tolerances(precision)
    comparison = Comparison("source", tolerances, TYPES, _find_scales(arrays), (), parts)
    for name, array in arrays.items():
        comparison.add(name, {NAME: array}, {NAME: change(name, array)})
    return comparison.verdict()


def _find_scales(arrays: Mapping[str, Array]) -> dict[str, float]:
    return scales_of({name: {NAME: array} for name, array in arrays.items()}, TYPES)
