"""Runs a session on inputs in host memory of ONNX Runtime, from which the device reads without another copy."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

Allocate = Callable[[Sequence[int], Any], ort.OrtValue]  # a tensor of this shape and NumPy type
_Key = tuple[str, tuple[int, ...], str]
_MOST_BYTES: Final = 256 << 20  # that are kept; page-locked memory cannot be swapped


class DirectInputs:
    """A session for `StoppableSession`; its tensors are kept for later runs of the same sizes."""

    def __init__(
        self, session: ort.InferenceSession, allocate: Allocate, *, most: int = _MOST_BYTES
    ) -> None:
        """Wrap `session`; keep at most `most` bytes of tensors."""
        self._session = session
        self._allocate = allocate
        self._most = most
        self._kept: dict[_Key, ort.OrtValue] = {}

    def run(self, outputs: list[str], feeds: dict[str, NDArray[Any]], options: Any = None) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
        """Return `outputs` for `feeds`, as the session's `run`; strings and empty tensors use that."""
        sizes = [array.nbytes for array in feeds.values()]
        if sum(sizes) > self._most or not all(sizes) or any(map(_is_text, feeds.values())):
            return self._session.run(outputs, feeds, options)
        taken: dict[_Key, ort.OrtValue] = {}
        values: dict[str, ort.OrtValue] = {}
        for name, array in feeds.items():
            key = name, array.shape, array.dtype.str
            # taken out, so that another thread's run at the same time has its own
            value = self._kept.pop(key, None) or self._allocate(array.shape, array.dtype.type)
            np.copyto(value.numpy(), array)
            taken[key] = values[name] = value
        try:
            results = self._session.run_with_ort_values(outputs, values, options)
        finally:
            self._keep(taken)
        return [result.numpy() for result in results]

    def run_with_ort_values(self, *arguments: Any) -> Any:  # noqa: ANN401 - likewise
        """Run the session on OrtValues as they are."""
        return self._session.run_with_ort_values(*arguments)

    def _keep(self, values: dict[_Key, ort.OrtValue]) -> None:
        self._kept |= values
        if sum(map(_bytes, list(self._kept))) > self._most:
            self._kept = dict(values)  # those of other sizes are allocated again when needed


def _is_text(array: NDArray[Any]) -> bool:
    return array.dtype.kind in "OSU"


def _bytes(key: _Key) -> int:
    return math.prod(key[1]) * np.dtype(key[2]).itemsize
