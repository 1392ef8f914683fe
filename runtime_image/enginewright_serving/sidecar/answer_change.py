"""How answers differ from another revision's golden outputs. Pure.

Tolerances do not apply: a new revision may differ on purpose. As in parity, a difference is relative to at
least 1% of the output's largest value over all samples, so that noise in an output of zeros is not infinite,
and a size that depends on data, such as a number of detections, is not a difference of values.
"""

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
from enginewright_contract.base import TEXT_LENGTH
from enginewright_contract.manifest import Manifest, TensorSpec
from enginewright_contract.measurements import OUTPUTS, OutputChange
from enginewright_runtime.proof.parity.fills import NUMERICALLY_ZERO, find_fill
from enginewright_runtime.proof.parity.measuring import form_fault, measure
from enginewright_runtime.proof.parity.tolerances import DEFAULTS, Tolerance
from enginewright_runtime.proof.parity.values import dtype_of, kind_of, pieces
from numpy.typing import NDArray

_EXACT: Final = Tolerance(
    *(0.0, 0.0, 0.0, 0.0, 0.0, 0.0), all_numbers=True, label="comparison of revisions"
)
_SCALE: Final = DEFAULTS["FP32"].scale  # of the largest value
_ZERO: Final = DEFAULTS["FP16"].zero_atol  # of an output that is zero; precisions may differ
_CLASS_AXES: Final = 2  # of class scores: [batch, classes]


def incompatibility(new: Manifest, stable: Manifest) -> str:
    """Return why the golden samples of `stable` cannot be compared, or "" if they can."""
    stable_inputs = {input_.name for input_ in stable.inputs}
    reasons = (
        *_differences("input", new.inputs, stable.inputs),
        *_differences("output", new.outputs, stable.outputs),
        *(
            f"the new revision has an input {input_.name!r} that the stable revision does not have"
            for input_ in new.inputs
            if input_.name not in stable_inputs
        ),
    )
    return next(iter(reasons), "")


def _differences(
    what: str, new: Iterable[TensorSpec], stable: Iterable[TensorSpec]
) -> Iterable[str]:
    named = {spec.name: spec for spec in new}
    for old in stable:
        now = named.get(old.name)
        if now is None:
            yield f"the new revision has no {what} {old.name!r}"
        elif now.dtype != old.dtype:
            yield f"{what} {old.name!r} is {now.dtype}, in the stable revision {old.dtype}"


def free_axes(manifest: Manifest) -> dict[str, tuple[bool, ...]]:
    """Return for each axis of each output whether its size may depend on data: it is neither fixed nor an input's."""
    of_inputs = {
        size for input_ in manifest.inputs for size in input_.shape if isinstance(size, str)
    }
    return {
        output.name: tuple(
            not isinstance(size, int) and size not in of_inputs for size in output.shape
        )
        for output in manifest.outputs
    }


def change(
    name: str,
    want: NDArray[Any],
    have: NDArray[Any],
    dtype: str,
    *,
    free: Sequence[bool] = (),
    largest: float = 0.0,
) -> OutputChange:
    """Return how output `name` of one sample differs between the stable revision (`want`) and the new one (`have`).

    `dtype` is NumPy's name of the declared type, `free` as in `free_axes`, `largest` the largest magnitude that
    the stable revision returns over all samples.
    """
    label = name[:TEXT_LENGTH]
    shape: tuple[int | None, ...] = want.shape
    if len(free) == want.ndim:
        shape = tuple(None if item else size for item, size in zip(free, want.shape, strict=True))
    if fault := form_fault(want, have, dtype, shape):
        return OutputChange(name=label, form=fault.description[:TEXT_LENGTH])
    if want.shape != have.shape:
        return OutputChange(name=label, resized=1)
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
        relative=None if nonfinite else _relative(want, have, dtype, largest),
        top1=figures.rows_agreeing / figures.rows if classes else None,
        nonfinite=nonfinite,
    )


def worst(first: OutputChange, second: OutputChange) -> OutputChange:
    """Return the larger change in each figure of two samples of one output; an unknown one is the largest."""
    if form := first.form or second.form:
        return OutputChange(name=first.name, form=form)
    resized = first.resized + second.resized
    for one, other in ((first, second), (second, first)):
        if not _has_values(one):
            return other.model_copy(update={"resized": resized})
    comparable = first.relative is not None and second.relative is not None
    return OutputChange(
        name=first.name,
        unequal=_either(max, first.unequal, second.unequal),
        max_abs=_either(max, first.max_abs, second.max_abs),
        relative=_either(max, first.relative, second.relative) if comparable else None,
        top1=_either(min, first.top1, second.top1),
        nonfinite=max(first.nonfinite, second.nonfinite),
        resized=resized,
    )


def most_changed(changes: Iterable[OutputChange]) -> tuple[OutputChange, ...]:
    """Return the `OUTPUTS` changes, the limit of a message, that changed most, in their order."""
    outputs = list(changes)

    def rank(index: int) -> tuple[bool, float]:
        change = outputs[index]
        return change.relative is None and _has_values(change), change.relative or 0.0

    chosen = sorted(range(len(outputs)), key=rank, reverse=True)[:OUTPUTS]
    return tuple(outputs[index] for index in sorted(chosen))


def _has_values(output: OutputChange) -> bool:
    return not output.resized or output.unequal is not None


def _either(
    choose: Callable[[float, float], float], first: float | None, second: float | None
) -> float | None:
    if first is None or second is None:
        return second if first is None else first
    return choose(first, second)


def _share(part: int, whole: int) -> float:
    return min(1.0, part / whole) if whole else 0.0


def _relative(want: NDArray[Any], have: NDArray[Any], dtype: str, largest: float) -> float:
    """Return the norm of the difference, over what is finite in both and no fill, relative to that of `want`, or to the least that matters."""
    kind = dtype_of(want, dtype)
    fill = find_fill(want, dtype)
    own = fill.largest
    largest = max(largest, own)
    least = _SCALE * largest if largest > NUMERICALLY_ZERO else _ZERO
    unit = max(own, least)  # so that squares do not overflow
    difference = norm = 0.0
    count = 0
    for pair in zip(pieces(want, kind), pieces(have, kind), strict=True):
        first, second = fill.hide_both(*pair)
        both = np.isfinite(first) & np.isfinite(second)
        with np.errstate(over="ignore"):  # infinite, and limited below
            one, other = first[both] / unit, second[both] / unit
            difference += float((other - one) @ (other - one))
        norm += float(one @ one)
        count += one.size
    norm = max(norm, count * (least / unit) ** 2)
    return min(math.sqrt(difference / norm), sys.float_info.max) if difference else 0.0
