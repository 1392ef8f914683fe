"""What to do about operators that the library does not compute as they are: their bodies instead.

ONNX defines Attention and others by bodies of older operators, which the library builds where it has
nothing for the whole: TensorRT-RTX 1.7 parses an Attention of any size, and builds those of some; it
parses a HardSwish in single and half precision, and not in BF16.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from onnx import ModelProto

from enginewright_runtime.core.isolation import Limits, run_isolated
from enginewright_runtime.prepare.convert.planning import operators_with_bodies
from enginewright_runtime.tensorrt.words import Answer

_EXPAND: Final = "enginewright_runtime.prepare.convert.changing:expand"
_SECONDS: Final = 900.0


def refused(model: ModelProto, answer: Answer) -> list[str]:
    """Return the operators whose bodies may help: those that the parser refuses, or errors name.

    None, if the parser refuses one that has no body: the whole model cannot be built then.
    """
    bodied = operators_with_bodies(model)
    unparsed = {error.operator for error in answer.parser}
    if not unparsed <= bodied:
        return []
    words = "\n".join(answer.errors)
    named = {each for each in bodied if re.search(rf"\b{re.escape(each)}\b", words)}
    return sorted(unparsed | named)


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
