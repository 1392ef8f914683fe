"""Runs a session on NumPy arrays, and on BF16, which NumPy does not have."""

import ctypes
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from enginewright_runtime.session.datatypes import BF16, BYTES
from enginewright_runtime.session.signature import Signature

_BFLOAT16: Final = 16  # onnx.TensorProto.BFLOAT16; servers load no onnx


class Runner:
    """A session that one thread at a time runs, unless it is shared."""

    def __init__(
        self, session: ort.InferenceSession, signature: Signature, *, shared: bool = False
    ) -> None:
        """Create it, `shared` if the session's provider allows several runs at a time."""
        self._session = session
        self._turn: AbstractContextManager[object] = nullcontext() if shared else threading.Lock()
        tensors = (*signature.inputs.values(), *signature.outputs.values())
        self._half = {tensor.name for tensor in tensors if tensor.datatype is BF16}
        self._has_strings = any(input_.datatype is BYTES for input_ in signature.inputs.values())

    def run(self, outputs: list[str], feeds: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Return `outputs` for `feeds`; BF16 tensors are uint16 arrays of their bits."""
        with self._turn:
            if self._half:
                return self._run_values(outputs, feeds)
            arrays: list[NDArray[Any]] = self._session.run(outputs, feeds)
            return arrays

    def _run_values(self, outputs: list[str], feeds: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Run on OrtValues, since ONNX Runtime's NumPy conversion does not support BF16."""
        halves = {
            name: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, _BFLOAT16)
            for name, array in feeds.items()
            if name in self._half
        }
        # strings cannot be OrtValues; the signature then has no outputs of BF16
        if self._has_strings:
            arrays: list[NDArray[Any]] = self._session.run(outputs, feeds | halves)
            return arrays
        values = {
            name: halves.get(name) or ort.OrtValue.ortvalue_from_numpy(array)
            for name, array in feeds.items()
        }
        results = self._session.run_with_ort_values(outputs, values)
        return [
            _bits(value) if name in self._half else value.numpy()
            for name, value in zip(outputs, results, strict=True)
        ]


def _bits(value: ort.OrtValue) -> NDArray[np.uint16]:
    shape = value.shape()
    size = int(np.prod(shape, dtype=np.int64)) * 2
    return np.frombuffer(ctypes.string_at(value.data_ptr(), size), np.uint16).reshape(shape)
