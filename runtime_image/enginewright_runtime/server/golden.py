"""The artefact's golden inputs, and whether the backend that serves gives the golden outputs.

The outputs were computed by ONNX Runtime's CPU provider. Another backend may differ in rounding and
still be right, so the check is loose: it is there for a backend that computes something else.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from enginewright_runtime.server.datatypes import BF16, Datatype
from enginewright_runtime.server.signature import Signature, Tensor

RTOL: Final = 1e-2
_NOISE: Final = 1e-6  # a text detector shown noise answers 1e-8, in float32 arithmetic
_OUTLIER_SHARE: Final = 0.01  # elements that may be outside the tolerance,
_OUTLIER_SIZE: Final = 0.1  # by at most this share of the output's largest value


class GoldenError(ValueError):
    """The golden files do not fit the model."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One golden input and, by output, what it must give."""

    name: str
    feeds: dict[str, NDArray[Any]]
    expected: dict[str, NDArray[Any]]


def read_samples(inputs: Path, outputs: Path, signature: Signature) -> list[Sample]:
    """Read the samples of two .npz files with arrays named `<sample>/<tensor>`.

    Raises:
        OSError, ValueError: a file is missing or no .npz file.
        GoldenError: a sample lacks an input, or there is none.
    """
    feeds = _read(inputs, signature.inputs)
    expected = _read(outputs, signature.outputs)
    for name, arrays in feeds.items():
        if missing := sorted(signature.inputs.keys() - arrays.keys()):
            raise GoldenError(f"golden sample {name!r} has no input {missing[0]!r}")
        if not expected.get(name):
            raise GoldenError(f"golden sample {name!r} has no outputs")
    if not feeds:
        raise GoldenError("there are no golden samples")
    return [Sample(name, arrays, expected[name]) for name, arrays in feeds.items()]


def _read(path: Path, tensors: dict[str, Tensor]) -> dict[str, dict[str, NDArray[Any]]]:
    samples: dict[str, dict[str, NDArray[Any]]] = {}
    with np.load(path, allow_pickle=False) as arrays:
        for key in arrays.files:
            sample, _, name = key.partition("/")
            if tensor := tensors.get(name):
                samples.setdefault(sample, {})[name] = in_memory(arrays[key], tensor.datatype)
    return samples


def in_memory(array: NDArray[Any], datatype: Datatype) -> NDArray[Any]:
    """Return a stored array as the session takes it: strings as objects, BF16 as its bits."""
    if datatype.is_string:
        return array.astype(object)
    if datatype is BF16 and array.dtype.itemsize == 2:
        return array.view(np.uint16)
    return array


def difference(
    expected: NDArray[Any],
    actual: NDArray[Any],
    datatype: Datatype,
    *,
    rtol: float | None = None,
    atol: float | None = None,
) -> str | None:
    """Return how `actual` differs from `expected`, None when it is close enough.

    Numbers: 99% of the elements within 1% of their value plus 1% of the output's largest value,
    which is what dynamic quantisation costs, the others within a tenth of that largest value;
    where one of the tolerances is given, all elements within `rtol * |expected| + atol`.
    Integers, booleans and strings: 99% of the elements equal.
    """
    if actual.shape != expected.shape:
        return f"has shape {list(actual.shape)}, expected {list(expected.shape)}"
    if not expected.size:
        return None
    if expected.dtype.kind == "f" or datatype is BF16:
        return _numeric_difference(_wide(expected, datatype), _wide(actual, datatype), rtol, atol)
    share = float(np.mean(expected != actual))
    return f"differs in {share:.1%} of its elements" if share > _OUTLIER_SHARE else None


def _numeric_difference(
    want: NDArray[np.float64], have: NDArray[np.float64], rtol: float | None, atol: float | None
) -> str | None:
    finite = np.isfinite(want)
    if not np.array_equal(
        np.where(finite, 0.0, want), np.where(np.isfinite(have), 0.0, have), equal_nan=True
    ):
        return "has NaN or infinity in other places than expected"
    want, have = want[finite], have[finite]
    if not want.size:
        return None
    error = np.abs(have - want)
    scale = float(np.abs(want).max())
    if rtol is not None or atol is not None:
        tolerance = (rtol or 0.0) * np.abs(want) + (atol or 0.0)
        failed = bool((error > tolerance).any())
    else:
        tolerance = RTOL * np.abs(want) + max(RTOL * scale, _NOISE)
        failed = bool(
            np.mean(error > tolerance) > _OUTLIER_SHARE
            or (error > tolerance + _OUTLIER_SIZE * scale).any()
        )
    if not failed:
        return None
    return (
        f"is outside the tolerance in {float(np.mean(error > tolerance)):.1%} of its elements"
        f" (largest absolute error {float(error.max()):.3g}, largest value {scale:.3g})"
    )


def _wide(array: NDArray[Any], datatype: Datatype) -> NDArray[np.float64]:
    if datatype is BF16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)
