"""Runs a function of ours in a process of its own, because native code may kill that process.

Compiling or first running a model has crashed OpenVINO and ONNX Runtime with a signal: no Python
error, no report, only a dead container. Here the stage outlives it and tells the last words.
"""

import json
import os
import signal
import tempfile
from dataclasses import dataclass
from typing import Any, Final

from enginewright.contract.reasons import Reason

from enginewright_runtime.core.children import Child
from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.ort_messages import is_out_of_memory, plain

_LAST_WORDS: Final = 2000  # bytes of stderr that are kept
_NEARLY: Final = 0.8
_CHILD: Final = "enginewright_runtime.core.isolated:main"


@dataclass(frozen=True)
class Limits:
    """What a child may use; None: as much as the container."""

    seconds: float | None = None
    # Of memory of its own: heap and anonymous mappings, not files that it maps. Allocations past it
    # fail in the child, which tells; past the container's limit the kernel ends all of it, untold.
    memory_bytes: int | None = None


UNLIMITED: Final = Limits()


def run_isolated(
    function: str,
    doing: str,
    *,
    limits: Limits = UNLIMITED,
    **arguments: Any,  # noqa: ANN401 - any JSON value
) -> Any:  # noqa: ANN401 - any JSON value
    """Run `function` ("module:name" of this package) in a child process and return its result.

    Args:
        function: takes and returns what JSON can hold.
        doing: for messages, such as "loading the model on backend cpu".
        limits: of the child.
        arguments: of the function, by keyword.

    Raises:
        StageFailure: as the function raised it; BackendCrashed when a signal ended the child;
            OutOfMemory when the kernel did, or an allocation failed; Timeout past its limit.
        SessionError: as the function raised it.
    """
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as results:
        with Child(
            _CHILD,
            function,
            arguments,
            output=errors.fileno(),
            descriptors=(results.fileno(),),
            memory_bytes=limits.memory_bytes,
            preload=(function.partition(":")[0],),
        ) as child:
            end = child.wait(limits.seconds)
        if end is None:
            raise StageFailure(Reason.TIMEOUT, f"{doing} took longer than {limits.seconds:.0f} s")
        results.seek(0)
        answer = results.read()
        last_words = tail(errors)
    if (end.code < 0 or not answer) and _wanted_more(end.peak_bytes, limits):
        raise StageFailure(
            Reason.OUT_OF_MEMORY, f"{doing} came to the end of the memory that it may use"
        )
    if end.code < 0:
        raise killed(-end.code, doing, last_words)
    if not answer:
        raise StageFailure(
            Reason.BACKEND_CRASHED,
            f"{doing} ended its process with code {end.code}{said(last_words)}",
        )
    return _result(json.loads(answer), doing, last_words)


def _wanted_more(peak: int, limits: Limits) -> bool:
    """Tell whether a child that died had used nearly all that it may: not all native code checks."""
    return limits.memory_bytes is not None and peak > _NEARLY * limits.memory_bytes


def tail(file: Any) -> str:  # noqa: ANN401 - a binary temporary file
    """Return the end of what a child wrote."""
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - _LAST_WORDS))
    text: str = file.read().decode(errors="replace")
    return text.strip()


def said(last_words: str) -> str:
    """Return a child's last words as the end of a message."""
    return f"; its last words: {plain(last_words)}" if last_words else ""


def killed(number: int, doing: str, last_words: str) -> StageFailure:
    """Return the failure of a child that a signal ended."""
    if number == signal.SIGKILL or is_out_of_memory(last_words):
        return StageFailure(Reason.OUT_OF_MEMORY, f"{doing} was killed: out of memory")
    name = signal.Signals(number).name
    return StageFailure(Reason.BACKEND_CRASHED, f"{doing} crashed with {name}{said(last_words)}")


def _result(answer: dict[str, Any], doing: str, last_words: str) -> Any:  # noqa: ANN401
    match answer:
        case {"result": result}:
            return result
        case {"failure": {"reason": reason, "message": message, "nodes": nodes}}:
            raise StageFailure(
                Reason(reason), message + said(last_words), nodes=tuple(nodes), remedy=""
            )
        case {"session_error": text}:
            raise SessionError(text)
        case {"memory": _}:
            raise StageFailure(Reason.OUT_OF_MEMORY, f"{doing} ran out of memory")
        case _:
            raise StageFailure(Reason.INTERNAL_ERROR, f"{doing} failed: {answer.get('error')}")
