"""The tensor types of the Open Inference Protocol with their names in ONNX Runtime and NumPy."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np


@dataclass(frozen=True, slots=True)
class Datatype:
    """One type; `dtype` is the representation of its elements in memory."""

    name: str  # in the protocol
    onnx: str  # as ONNX Runtime spells it in NodeArg.type
    dtype: np.dtype[Any]
    low: int = 0  # of integers
    high: int = 0

    @property
    def is_string(self) -> bool:
        """Whether elements are strings, which have no fixed size."""
        return self.name == "BYTES"


def _integer(name: str, onnx: str) -> Datatype:
    limits = np.iinfo(onnx)
    return Datatype(name, f"tensor({onnx})", np.dtype(onnx), int(limits.min), int(limits.max))


BF16: Final = Datatype("BF16", "tensor(bfloat16)", np.dtype(np.uint16))  # NumPy has no such type
BYTES: Final = Datatype("BYTES", "tensor(string)", np.dtype(object))
BOOL: Final = Datatype("BOOL", "tensor(bool)", np.dtype(np.bool_))

DATATYPES: Final = (
    BOOL,
    *(_integer(f"UINT{bits}", f"uint{bits}") for bits in (8, 16, 32, 64)),
    *(_integer(f"INT{bits}", f"int{bits}") for bits in (8, 16, 32, 64)),
    Datatype("FP16", "tensor(float16)", np.dtype(np.float16)),
    Datatype("FP32", "tensor(float)", np.dtype(np.float32)),
    Datatype("FP64", "tensor(double)", np.dtype(np.float64)),
    BF16,
    BYTES,
)
BY_ONNX: Final = {datatype.onnx: datatype for datatype in DATATYPES}
