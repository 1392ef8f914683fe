"""Loads each library once in a process of its own, before any process that matters does.

What fails to load mostly does so by ending its process: built for a newer ONNX Runtime, a library
is given no API and follows a null pointer.
"""

from pathlib import Path
from typing import Any, Final

import onnxruntime as ort
from enginewright.contract.reasons import REMEDIES, Reason
from enginewright.contract.task import Extension

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.isolation import Limits, run_isolated
from enginewright_runtime.session.extensions.libraries import (
    Libraries,
    check_listed,
    failed,
    register,
)

_LIMITS: Final = Limits(seconds=60.0)
_ENDS: Final = frozenset({Reason.BACKEND_CRASHED, Reason.TIMEOUT, Reason.INTERNAL_ERROR})


def prove(model: Path, listed: tuple[Extension, ...]) -> Libraries:
    """Check the libraries of a model and load those of ONNX Runtime; TensorRT's need TensorRT.

    Args:
        model: the .onnx file.
        listed: what its recipe lists.

    Raises:
        StageFailure: ExtensionFailed; OutOfMemory.
    """
    libraries = check_listed(model, listed)
    for path in libraries.operators:
        alone(path, f"{__name__}:load", path=str(path))
    return libraries


def alone(library: Path, function: str, **arguments: Any) -> None:  # noqa: ANN401 - any JSON value
    """Call what loads a library in a child process, so that the library's end is only the child's.

    Args:
        library: its file.
        function: as `run_isolated` takes it, with its arguments.
        arguments: likewise.

    Raises:
        StageFailure: ExtensionFailed, also when the child crashed or hung; others as raised.
    """
    doing = f"loading extension {library.name[:12]}"
    try:
        run_isolated(function, doing, limits=_LIMITS, **arguments)
    except StageFailure as failure:
        if failure.reason not in _ENDS:
            raise
        words = failure.message.removesuffix(f"; {REMEDIES[failure.reason]}")
        raise failed(library, words) from failure


def load(path: str) -> None:
    """Load one library with operators of ONNX Runtime. Called in a child process."""
    register(ort.SessionOptions(), Libraries(operators=(Path(path),)))
