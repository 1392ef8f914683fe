"""Converts arrays from sessions and .npz files into a form in which they can be compared.

NumPy has neither bfloat16 nor float8: depending on the source of the array they are bits (uint16,
uint8), void elements (from an .npz file), or types of ml_dtypes.
"""

import hashlib
from collections.abc import Iterator
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Kind = Literal["float", "integer", "bool", "string", "other"]
_RAW: Final = "uV"  # kinds of arrays that may hold the bits of another type
_NARROW: Final = ("bfloat16", "float8", "float4", "float6")
_INTEGERS: Final = "iu"
_PIECE: Final = 1 << 18  # elements that are converted at a time
_HASH_BYTES: Final = 6  # what float64 holds exactly


def kind_of(array: Array, dtype: str | None) -> Kind:
    """Return what `array` holds; `dtype` is as the model declares it, if known."""
    if dtype == "string" or array.dtype.kind in "OSU":
        return "string"
    if _is_narrow(dtype) or array.dtype.kind == "f" or array.dtype.name.startswith(_NARROW):
        return "float"
    if array.dtype.kind in _INTEGERS or array.dtype.name.startswith(("int", "uint")):
        return "integer"
    return "bool" if array.dtype.kind == "b" else "other"


def dtype_of(array: Array, dtype: str | None) -> str:
    """Return the name of the elements' type: the declared one if `array` holds its bits."""
    if kind_of(array, dtype) == "string":
        return "string"
    if dtype is not None and array.dtype.kind in _RAW and _fits(array, dtype):
        return dtype
    return array.dtype.name


def wide(array: Array, dtype: str) -> NDArray[np.float64]:
    """Return numbers as float64, and for strings numbers that are equal if they are; `dtype` is as `dtype_of` returns it."""
    if dtype == "string":
        return np.array([_hash(item) for item in array.reshape(-1)], float).reshape(array.shape)
    if dtype == "bfloat16" and array.dtype.itemsize == 2 and array.dtype.name != dtype:
        bits = array.view(np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).astype(np.float64)
    if array.dtype.kind in _RAW and array.dtype.name != dtype:
        array = array.view(_narrow_type(dtype))
    return array.astype(np.float64)


def pieces(array: Array, dtype: str) -> Iterator[NDArray[np.float64]]:
    """Yield the numbers as float64, flat, in pieces."""
    flat = array.reshape(-1)
    for start in range(0, flat.size, _PIECE):
        yield wide(flat[start : start + _PIECE], dtype)


def text_of(element: object) -> str:
    """Return an element of an array of strings; trailing NULs are ignored, since .npz files do not store them."""
    text = element.decode(errors="backslashreplace") if isinstance(element, bytes) else str(element)
    return text.rstrip("\0")


def _hash(element: object) -> int:
    encoded = text_of(element).encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=_HASH_BYTES).digest())


def _is_narrow(dtype: str | None) -> bool:
    return dtype is not None and dtype.startswith(_NARROW)


def _fits(array: Array, dtype: str) -> bool:
    return _is_narrow(dtype) and array.dtype.itemsize == (2 if dtype == "bfloat16" else 1)


def _narrow_type(dtype: str) -> np.dtype[Any]:
    import ml_dtypes  # noqa: PLC0415 - large for a sidecar, which rarely needs these types

    narrow: np.dtype[Any] = np.dtype(getattr(ml_dtypes, dtype))
    return narrow
