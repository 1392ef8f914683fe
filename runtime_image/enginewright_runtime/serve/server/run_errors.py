"""Whose fault a failed run is: the client's input, or this server's and its device's.

ONNX Runtime does not say. Sizes that clash in Add, Concat, MatMul or Reshape are FAIL, as a lost
GPU is; the same clash in Gemm is INVALID_ARGUMENT, and OpenVINO raises FAIL for nearly everything.
So it is decided by trial: what fails although inputs that are known to be good still run, and fails
again when it is tried again, fails for what the client sent. Messages decide nothing alone, for
some repeat what the client wrote. Pure: `diagnosis` makes the trial.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from enginewright_runtime.core.ort_messages import is_out_of_memory, status

_LARGEST_OF_SIZES: Final = 16  # elements of a tensor that may give sizes: shapes, scales, pads, k
_OF_THE_DEVICE: Final = re.compile(
    r"CUDA (?:failure|error|driver error) (?!2\b)\d+|cudaError(?!MemoryAllocation)\w+"
    r"|illegal memory access|unspecified launch failure|device-side assert|misaligned address"
    r"|uncorrectable ECC|\bXid\b|CUDNN_STATUS_(?!ALLOC_FAILED)\w+|CUBLAS_STATUS_(?!ALLOC_FAILED)\w+"
    r"|CL_DEVICE_NOT_AVAILABLE|CL_OUT_OF_RESOURCES|ZE_RESULT_ERROR_DEVICE_LOST|[Dd]evice lost"
)
_REQUESTED: Final = re.compile(
    r"requested buffer of size (\d+)|[Ff]ailed to allocate (\d+) bytes|requested bytes of (\d+)"
)


class Fault(StrEnum):
    """Whose fault a failed run is."""

    CLIENT = "client"  # the model does not take this input: 400
    SERVER = "server"  # 500


@dataclass(frozen=True, slots=True)
class Rerun:
    """What the session did with inputs that are known to be good, and with the same request again."""

    control: Exception | None  # None: they still run
    repeated: Exception | None  # None: the request ran the second time


def at_once(error: Exception, *, ran_before: bool) -> Fault | None:
    """Return whose fault `error` is where it shows although known-good inputs run, else None.

    Args:
        error: what the run raised.
        ran_before: whether an input that cannot be distinguished from this one by sizes or indices has run,
            and known-good values in these shapes no longer do.
    """
    if ran_before:
        return Fault.SERVER
    text = str(error)
    if status(text) == "INVALID_ARGUMENT" and not _names_resources(text):
        return Fault.CLIENT
    return None


def by_trial(error: Exception, trial: Rerun, *, memory: int | None = None) -> Fault:
    """Return whose fault `error` is.

    Args:
        error: what the run raised.
        trial: what was tried after it.
        memory: bytes that the backend can have at most; None: unknown.
    """
    text = str(error)
    if trial.control is not None:
        return Fault.SERVER
    if trial.repeated is None:
        return Fault.SERVER
    if memory is not None and _requested_bytes(text) > memory:
        return Fault.CLIENT
    return Fault.SERVER if _names_resources(text) else Fault.CLIENT


def fingerprint(feeds: Mapping[str, NDArray[Any]]) -> int:
    """Return a hash of all by which an operator may find that `feeds` clash.

    That is every shape, and the values of those tensors whose values may be sizes or indices.
    """
    return hash(
        tuple(
            (name, array.shape, _values(array) if may_hold_sizes(array) else None)
            for name, array in sorted(feeds.items())
        )
    )


def only_shapes_matter(feeds: Mapping[str, NDArray[Any]]) -> bool:
    """Tell whether no tensor's values may be sizes or indices."""
    return not any(may_hold_sizes(array) for array in feeds.values())


def may_hold_sizes(array: NDArray[Any]) -> bool:
    """Tell whether values may be sizes or indices without a Cast: of 8 or 16 bits they are data."""
    data = array.dtype != object and (
        np.issubdtype(array.dtype, np.floating)
        or (np.issubdtype(array.dtype, np.integer) and array.dtype.itemsize <= 2)
    )
    return not data or array.size <= _LARGEST_OF_SIZES


def _values(array: NDArray[Any]) -> object:
    return tuple(array.flat) if array.dtype == object else array.tobytes()


def _names_resources(text: str) -> bool:
    """Tell whether an error names the device or its memory, neither of which the client sent."""
    return is_out_of_memory(text) or _OF_THE_DEVICE.search(text) is not None


def _requested_bytes(text: str) -> int:
    found = _REQUESTED.search(text)
    return int(next(filter(None, found.groups()))) if found else 0
