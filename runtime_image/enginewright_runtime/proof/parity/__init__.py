"""Whether two models, or one model on two backends, give the same outputs, and by how much they do not.

One comparison for every proof: the stages', the server's at start and the sidecar's in production.
This package's face is NumPy alone: neither ONNX nor ONNX Runtime is imported, for a sidecar has no
memory for them. What runs models lies in `parity.drift`, which is imported by name.
"""

from enginewright_runtime.proof.parity.comparison import (
    ComparedWith,
    Comparison,
    ParityFailure,
    ParityVerdict,
    difference,
    scales_of,
    varying,
)
from enginewright_runtime.proof.parity.tolerances import DEFAULTS, Tolerance, Tolerances
from enginewright_runtime.proof.parity.variation import VaryingOutputs

__all__ = [
    "DEFAULTS",
    "ComparedWith",
    "Comparison",
    "ParityFailure",
    "ParityVerdict",
    "Tolerance",
    "Tolerances",
    "VaryingOutputs",
    "difference",
    "scales_of",
    "varying",
]
