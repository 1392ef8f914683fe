"""The artefact's golden samples as feeds of a session, with the outputs of ONNX Runtime's CPU provider."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from enginewright_runtime.session.arrays import Arrays, read_arrays
from enginewright_runtime.session.datatypes import BF16, Datatype
from enginewright_runtime.session.signature import Signature, Tensor


class GoldenError(ValueError):
    """The golden files do not match the model."""


@dataclass(frozen=True, slots=True)
class GoldenSample:
    """One golden sample: inputs and expected outputs, by name."""

    name: str
    feeds: dict[str, NDArray[Any]]
    expected: dict[str, NDArray[Any]]


def read_samples(inputs: Path, outputs: Path, signature: Signature) -> list[GoldenSample]:
    """Read samples of two .npz files of arrays `<sample>/<tensor>`; raises GoldenError, OSError, ValueError."""
    feeds = _read(inputs, signature.inputs)
    expected = _read(outputs, signature.outputs)
    for name, arrays in feeds.items():
        if missing := sorted(signature.inputs.keys() - arrays.keys()):
            raise GoldenError(f"golden sample {name!r} has no input {missing[0]!r}")
        if not expected.get(name):
            raise GoldenError(f"golden sample {name!r} has no outputs")
    if not feeds:
        raise GoldenError("there are no golden samples")
    return [GoldenSample(name, arrays, expected[name]) for name, arrays in feeds.items()]


def _read(path: Path, tensors: dict[str, Tensor]) -> dict[str, Arrays]:
    return {
        sample: {
            name: in_memory(array, tensors[name].datatype)
            for name, array in arrays.items()
            if name in tensors
        }
        for sample, arrays in read_arrays(path).items()
    }


def in_memory(array: NDArray[Any], datatype: Datatype) -> NDArray[Any]:
    """Return a stored array as the session expects it: strings as objects, BF16 as bits."""
    if datatype.is_string:
        return array.astype(object)
    if datatype is BF16 and array.dtype.itemsize == 2:
        return array.view(np.uint16)
    return array


def type_name(datatype: Datatype) -> str:
    """Return NumPy's name of the elements' type, as used by `TensorSpec` and `parity`."""
    if datatype.is_string:
        return "string"
    return "bfloat16" if datatype is BF16 else str(datatype.dtype.name)
