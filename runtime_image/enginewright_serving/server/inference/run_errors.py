"""Whether a failed run was caused by the client's input, or by this server or its device.

ONNX Runtime does not distinguish them: incompatible sizes in Add, Concat, MatMul or Reshape are FAIL, as a lost GPU
is; in Gemm they are INVALID_ARGUMENT, and OpenVINO raises FAIL for nearly everything. So it is tested: a request that
fails twice while known-valid inputs still run fails because of its input. A message alone never decides, since some
quote the client's input. Pure: `diagnosis` runs the model.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import numpy as np
from enginewright_runtime.core.ort_messages import is_out_of_memory, status
from numpy.typing import NDArray

_LARGEST_OF_SIZES: Final = 16  # elements of a tensor that may hold sizes: shapes, scales, pads, k
_OF_THE_DEVICE: Final = re.compile(
    r"CUDA (?:failure|error|driver error) (?!2\b)\d+|cudaError(?!MemoryAllocation)\w+"
    r"|illegal memory access|unspecified launch failure|device-side assert|misaligned address"
    r"|uncorrectable ECC|\bXid\b|CUDNN_STATUS_(?!ALLOC_FAILED)\w+|CUBLAS_STATUS_(?!ALLOC_FAILED)\w+"
    r"|CL_DEVICE_NOT_AVAILABLE|CL_OUT_OF_RESOURCES|ZE_RESULT_ERROR_DEVICE_LOST|[Dd]evice lost"
)
_REQUESTED: Final = re.compile(
    r"requested buffer of size (\d+)|[Ff]ailed to allocate (\d+) bytes|requested bytes of (\d+)"
    r"|Requested size was (\d+) bytes|Memory allocation failed\. Size=(\d+)"
)


class Fault(StrEnum):
    """Who caused a failed run."""

    CLIENT = "client"  # the model rejects this input: 400
    SERVER = "server"  # 500


def fault_from_error(error: Exception, *, ran_before: bool) -> Fault | None:
    """Return who caused `error` if that is certain without a rerun of the request.

    `ran_before`: inputs with the same sizes and indices ran before, and known-valid values in these shapes no
    longer do.
    """
    if ran_before:
        return Fault.SERVER
    text = str(error)
    if status(text) == "INVALID_ARGUMENT" and not _names_resources(text):
        return Fault.CLIENT
    return None


def fault_from_rerun(
    error: Exception,
    control: Exception | None,
    repeated: Exception | None,
    *,
    memory: int | None = None,
) -> Fault:
    """Return who caused `error`, from the errors of a rerun of known-valid inputs (`control`) and of the request."""
    text = str(error)
    if control is not None or repeated is None:
        return Fault.SERVER
    if memory is not None and _read_requested_bytes(text) > memory:
        return Fault.CLIENT
    return Fault.SERVER if _names_resources(text) else Fault.CLIENT


def fingerprint(feeds: Mapping[str, NDArray[Any]]) -> int:
    """Return a hash of every shape, and of values that may be sizes or indices: an operator may reject these."""
    return hash(
        tuple(
            (name, array.shape, _values(array) if may_hold_sizes(array) else None)
            for name, array in sorted(feeds.items())
        )
    )


def only_shapes_matter(feeds: Mapping[str, NDArray[Any]]) -> bool:
    """Return whether no tensor's values may be sizes or indices."""
    return not any(may_hold_sizes(array) for array in feeds.values())


def may_hold_sizes(array: NDArray[Any]) -> bool:
    """Return whether values may be sizes or indices; large 8- or 16-bit integers are data."""
    data = array.dtype != object and (
        np.issubdtype(array.dtype, np.floating)
        or (np.issubdtype(array.dtype, np.integer) and array.dtype.itemsize <= 2)
    )
    return not data or array.size <= _LARGEST_OF_SIZES


def _values(array: NDArray[Any]) -> object:
    return tuple(array.flat) if array.dtype == object else array.tobytes()


def _names_resources(text: str) -> bool:
    """Return whether an error names the device or its memory, which the client does not control."""
    return is_out_of_memory(text) or _OF_THE_DEVICE.search(text) is not None


def _read_requested_bytes(text: str) -> int:
    match = _REQUESTED.search(text)
    return int(next(filter(None, match.groups()))) if match else 0
