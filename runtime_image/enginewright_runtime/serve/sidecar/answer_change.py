"""How answers differ from another revision's golden outputs. Pure.

Tolerances do not apply: a new revision may differ on purpose, and its owner decides by how much.
"""

import math
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
from enginewright.contract.base import TEXT_LENGTH
from enginewright.contract.manifest import Manifest, TensorSpec
from enginewright.contract.measurements import OUTPUTS, OutputChange
from numpy.typing import NDArray

from enginewright_runtime.proof.parity.measuring import form_fault, largest_of, measure, pieces
from enginewright_runtime.proof.parity.tolerances import Tolerance
from enginewright_runtime.proof.parity.values import dtype_of, kind_of

_EXACT: Final = Tolerance(
    *(0.0, 0.0, 0.0, 0.0, 0.0, 0.0), all_numbers=True, label="comparison of revisions"
)
_CLASS_AXES: Final = 2  # of class scores: [batch, classes]


def incompatibility(new: Manifest, stable: Manifest) -> str:
    """Return why the golden samples of `stable` cannot be compared; "": inputs and outputs agree."""
    found = (
        *_differences("input", new.inputs, stable.inputs),
        *_differences("output", new.outputs, stable.outputs),
    )
    if found:
        return found[0]
    known = {each.name for each in stable.inputs}
    if more := [each.name for each in new.inputs if each.name not in known]:
        return f"the new revision has an input {more[0]!r} that the stable revision does not have"
    return ""


def _differences(
    what: str, new: Iterable[TensorSpec], stable: Iterable[TensorSpec]
) -> Iterable[str]:
    named = {each.name: each for each in new}
    for old in stable:
        now = named.get(old.name)
        if now is None:
            yield f"the new revision has no {what} {old.name!r}"
        elif now.dtype != old.dtype:
            yield f"{what} {old.name!r} is {now.dtype}, in the stable revision {old.dtype}"


def change(name: str, want: NDArray[Any], have: NDArray[Any], dtype: str) -> OutputChange:
    """Return how the output `name` of one sample differs.

    Args:
        name: of the output.
        want: what the stable revision returns.
        have: what the new one returns.
        dtype: as both declare it, NumPy's name.
    """
    label = name[:TEXT_LENGTH]
    if fault := form_fault(want, have, dtype):
        return OutputChange(name=label, form=fault.description[:TEXT_LENGTH])
    figures = measure(want, have, _EXACT, dtype)
    if not figures.numeric:
        different = _share(figures.outside, want.size)
        return OutputChange(name=label, unequal=different, relative=None if different else 0.0)
    nonfinite = figures.nan + figures.inf + figures.finite
    classes = kind_of(want, dtype) == "float" and want.ndim == _CLASS_AXES and figures.rows
    return OutputChange(
        name=label,
        unequal=_share(figures.outside + nonfinite, want.size),
        max_abs=min(figures.max_abs_error, sys.float_info.max),
        relative=None if nonfinite else _relative(want, have, dtype),
        top1=figures.rows_agreeing / figures.rows if classes else None,
        nonfinite=nonfinite,
    )


def worst(first: OutputChange, second: OutputChange) -> OutputChange:
    """Return the larger change in each figure of two samples of one output; unknown is the largest."""
    if form := first.form or second.form:
        return OutputChange(name=first.name, form=form)
    known = first.relative is not None and second.relative is not None
    return OutputChange(
        name=first.name,
        unequal=_either(max, first.unequal, second.unequal),
        max_abs=_either(max, first.max_abs, second.max_abs),
        relative=_either(max, first.relative, second.relative) if known else None,
        top1=_either(min, first.top1, second.top1),
        nonfinite=max(first.nonfinite, second.nonfinite),
    )


def most_changed(changes: Iterable[OutputChange]) -> tuple[OutputChange, ...]:
    """Return all that a message holds, in their order; of more, those that changed most."""
    found = list(changes)

    def rank(index: int) -> tuple[bool, float]:
        each = found[index]
        return each.relative is None, each.relative or 0.0

    chosen = sorted(range(len(found)), key=rank, reverse=True)[:OUTPUTS]
    return tuple(found[index] for index in sorted(chosen))


def _either(
    choose: Callable[[float, float], float], first: float | None, second: float | None
) -> float | None:
    if first is None or second is None:
        return second if first is None else first
    return choose(first, second)


def _share(part: int, whole: int) -> float:
    return min(1.0, part / whole) if whole else 0.0


def _relative(want: NDArray[Any], have: NDArray[Any], dtype: str) -> float | None:
    """Return the norm of the difference relative to that of `want`, over what is finite in both.

    None: `want` is zero, and `have` is not.
    """
    kind = dtype_of(want, dtype)
    largest = largest_of(want, dtype)
    if not largest:
        return None if largest_of(have, dtype) else 0.0
    difference = norm = 0.0
    for first, second in zip(pieces(want, kind), pieces(have, kind), strict=True):
        both = np.isfinite(first) & np.isfinite(second)
        # in units of the largest, so that squares do not overflow
        one, other = first[both] / largest, second[both] / largest
        difference += float((other - one) @ (other - one))
        norm += float(one @ one)
    return min(math.sqrt(difference / norm), sys.float_info.max)
