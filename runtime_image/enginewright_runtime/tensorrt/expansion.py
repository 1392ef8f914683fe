"""What to do about operators that the parser takes and no kernel computes: their bodies instead.

ONNX defines Attention and others by bodies of older operators, which the library builds where it has
no kernel for the whole: TensorRT-RTX 1.7 parses an Attention of any size, and builds those of some.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from onnx import ModelProto

from enginewright_runtime.conversion.planning import operators_with_bodies
from enginewright_runtime.isolation import Limits, run_isolated

_EXPAND: Final = "enginewright_runtime.conversion.changing:expand"
_SECONDS: Final = 900.0


def named(model: ModelProto, errors: Sequence[str]) -> list[str]:
    """Return the operators that have bodies, and that the library's errors name."""
    words = "\n".join(errors)
    bodied = operators_with_bodies(model)
    return sorted(each for each in bodied if re.search(rf"\b{re.escape(each)}\b", words))


def expand(source: Path, operators: Sequence[str], out: Path) -> tuple[str, ...]:
    """Write the model with bodies in the place of such nodes; return their labels, none if it cannot be.

    Args:
        source: the model's file.
        operators: of ai.onnx.
        out: beside it, for the external data is not copied.

    Raises:
        StageFailure: as `run_isolated`.
    """
    answer = run_isolated(
        _EXPAND,
        "expanding operators",
        limits=Limits(seconds=_SECONDS),
        source=str(source),
        out=str(out),
        operators=operators,
    )
    return () if answer is None else tuple(answer["changes"][0]["nodes"])
