"""Loads each library once in a process of its own, before any process that matters does.

What fails to load mostly does so by ending its process: built for a newer ONNX Runtime, a library
is given no API and follows a null pointer.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import onnxruntime as ort
from enginewright.contract.reasons import Reason
from enginewright.contract.task import Extension

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.isolation import Call, Limits, P
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
        alone(path, load, path)
    return libraries


def alone(library: Path, function: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call what loads a library in a child process, so that the library's end is only the child's.

    Args:
        library: its file.
        function: that loads it.
        args: of the function.
        kwargs: likewise.

    Raises:
        StageFailure: ExtensionFailed, also when the child crashed or hung; others as raised.
    """
    doing = f"loading extension {library.name[:12]}"
    try:
        Call(function, doing, _LIMITS).run(*args, **kwargs)
    except StageFailure as failure:
        if failure.reason not in _ENDS:
            raise
        raise failed(library, failure.cause) from failure


def load(path: Path) -> None:
    """Load one library with operators of ONNX Runtime. Called in a child process."""
    register(ort.SessionOptions(), Libraries(operators=(path,)))
