"""How far ONNX Runtime rewrites a graph before it runs it, and what is done when that goes wrong.

Its graph optimisations can make a session that fails or computes something else. What keeps is
found when a model is prepared and recorded in the manifest as a level. The optimised graph itself is
not kept: at ALL it holds layouts of the CPU that wrote it (com.microsoft.nchwc), at EXTENDED fused
nodes under other names than placements and costs know, and neither loads noticeably quicker
(docs/measurements.md has the figures).
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


def below(level: str) -> Iterator[str]:
    """Yield the levels below `level`, highest first."""
    names = list(LEVELS)
    yield from names[names.index(level) + 1 :]
