"""ONNX Runtime's levels of graph optimization.

Optimizations can make a session fail or compute wrong outputs, so preparation records in the manifest the
level at which outputs agree. The optimized graph itself is not stored: at ALL it has layouts for the CPU
that wrote it (com.microsoft.nchwc), at EXTENDED fused nodes with other names than in placements and costs,
and neither loads noticeably faster (docs/measurements.md has the figures).
"""

from collections.abc import Iterator
from typing import Final

import onnxruntime as ort

HIGHEST: Final = "ALL"
LEVELS: Final = {  # highest first
    HIGHEST: ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    "EXTENDED": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "BASIC": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "DISABLE": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
LOWEST: Final = "DISABLE"


def above(level: str) -> Iterator[str]:
    """Yield the levels above `level`, highest first."""
    names = list(LEVELS)
    yield from names[: names.index(level)]


def below(level: str) -> Iterator[str]:
    """Yield the levels below `level`, highest first."""
    names = list(LEVELS)
    yield from names[names.index(level) + 1 :]
