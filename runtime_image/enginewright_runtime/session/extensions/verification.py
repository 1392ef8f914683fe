"""Loads each library once in a child process, before the stage or the server does.

A library that cannot be loaded often crashes its process: one built for a newer ONNX Runtime gets no API
and dereferences a null pointer.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import onnxruntime as ort
from enginewright_contract.reasons import Reason
from enginewright_contract.task import Extension

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.isolation import Call, Limits, P
from enginewright_runtime.session.extensions.libraries import (
    Libraries,
    check_listed,
    describe_failure,
    register,
)

_LIMITS: Final = Limits(seconds=60.0)
_ENDS: Final = frozenset({Reason.BACKEND_CRASHED, Reason.TIMEOUT, Reason.INTERNAL_ERROR})


def verify_libraries(model: Path, listed: tuple[Extension, ...]) -> Libraries:
    """Check the libraries of a model, and test-load ONNX Runtime's; raises StageFailure: ExtensionFailed, OutOfMemory."""
    libraries = check_listed(model, listed)
    for path in libraries.operators:
        run_isolated(path, load, path)
    return libraries


def run_isolated(
    library: Path, function: Callable[P, None], *args: P.args, **kwargs: P.kwargs
) -> None:
    """Call a function that loads a library in a child process; raises ExtensionFailed if that crashes or hangs."""
    doing = f"loading extension {library.name[:12]}"
    try:
        Call(function, doing, _LIMITS).run(*args, **kwargs)
    except StageFailure as failure:
        if failure.reason not in _ENDS:
            raise
        raise describe_failure(library, failure.cause) from failure


def load(path: Path) -> None:
    """Load one library with operators of ONNX Runtime. Called in a child process."""
    register(ort.SessionOptions(), Libraries(operators=(path,)))
