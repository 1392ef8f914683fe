"""Runs a function in a child process, because native code may crash it.

OpenVINO and ONNX Runtime have crashed with a signal while compiling or running a model: without a Python exception
or a report, the container ends. Here the stage survives and reports the last output.
"""

import json
import logging
import math
import os
import shlex
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Generic, ParamSpec, Self, TypeVar

from enginewright_contract.reasons import Reason

from enginewright_runtime.core import isolated
from enginewright_runtime.core.children import Child, End, name_of
from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.isolated import (
    FROM_FILE,
    ChildAnswer,
    dump_arguments,
    load_result,
)
from enginewright_runtime.core.limits import memory_of_child
from enginewright_runtime.core.ort_messages import is_out_of_memory, plain
from enginewright_runtime.core.time_limit import TimeLimit

P = ParamSpec("P")
Out = TypeVar("Out")

_log: Final = logging.getLogger(__name__)

_LONGEST_ARGUMENT: Final = 100_000  # bytes; Linux's limit is 128 KiB (MAX_ARG_STRLEN)
_STDERR_BYTES: Final = 2000  # bytes of stderr that are kept
_NEARLY: Final = 0.8
_LOOK_SECONDS: Final = 0.1  # interval at which the clocks are checked

_keeping: Final = threading.Lock()
_files: Final[dict[str, Path]] = {}  # with arguments too long for a command, by function


@dataclass(frozen=True)
class Limits:
    """What a child may use; a limit that is not set is the container's."""

    seconds: float | None = None  # elapsed
    # Private memory: heap and anonymous mappings, not mapped files. Allocations above it fail in the child,
    # which reports them; above the container's limit the kernel kills the container without a report.
    memory_bytes: int | None = None
    # of `TimeLimit` with the child's CPU time, which other load does not use up; `seconds` limits a child that hangs
    work_seconds: float | None = None

    @classmethod
    def of_model(cls, seconds: float | None = None, *, on_device: bool = False) -> Self:
        """Return those of a child that loads a model, which may ask for any amount of memory.

        With a device they do not include memory, since CUDA reserves more than it uses.
        """
        return cls(seconds, None if on_device else memory_of_child())


UNLIMITED: Final = Limits()


@dataclass(frozen=True)
class Call(Generic[P, Out]):
    """A function that runs in a child process; arguments and result pass as JSON according to its annotations."""

    function: Callable[P, Out]
    doing: str  # for messages, such as "loading the model on backend cpu"
    limits: Limits = UNLIMITED

    def run(self, *args: P.args, **kwargs: P.kwargs) -> Out:
        """Run the function in a child process and return its result.

        Raises what the function raised, or StageFailure: BackendCrashed if a signal ended the child; OutOfMemory if the
        kernel killed it or an allocation failed; Timeout.
        """
        function = name_of(self.function)
        arguments = dump_arguments(self.function, *args, **kwargs)
        try:
            return self.read(_answer(function, arguments, self.doing, self.limits))
        except (StageFailure, SessionError):
            _log_call(function, json.dumps(arguments))
            raise

    def read(self, result: Any) -> Out:  # noqa: ANN401 - any JSON value
        """Return a result from JSON."""
        read: Out = load_result(self.function, result)
        return read


def log_command(module: ModuleType, *arguments: str, before: Sequence[str] = ()) -> None:
    """Log a command that reproduces a failed child: a module run as a program, fed by `before`."""
    program = shlex.join((sys.executable, "-m", module.__name__, *arguments))
    feed = f"{shlex.join(before)} | " if before else ""
    _log.info("to reproduce: %s%s", feed, program)


def _log_call(function: str, arguments: str) -> None:
    if len(arguments) >= _LONGEST_ARGUMENT:
        try:
            arguments = f"{FROM_FILE}{_keep_arguments(function, arguments)}"
        except OSError as error:
            _log.info(
                "%s cannot be reproduced: its arguments could not be stored: %s", function, error
            )
            return
    log_command(isolated, function, arguments)


def _keep_arguments(function: str, arguments: str) -> Path:
    """Write the arguments of a function's last failure to its file, as callers may go on after many failures."""
    with _keeping:
        if function not in _files:
            descriptor, name = tempfile.mkstemp(prefix="arguments-")
            os.close(descriptor)
            _files[function] = Path(name)
        _files[function].write_text(arguments)
        return _files[function]


def _answer(function: str, arguments: dict[str, Any], doing: str, limits: Limits) -> Any:  # noqa: ANN401 - any JSON value
    # results in memory, so that a child can report a full disk
    memory = os.memfd_create("results")
    with tempfile.TemporaryFile() as errors, os.fdopen(memory, "w+b") as results:
        with Child(
            isolated.main,
            function,
            arguments,
            output=errors.fileno(),
            descriptors=(results.fileno(),),
            memory_bytes=limits.memory_bytes,
            preload=(function.partition(":")[0],),
        ) as child:
            end = _wait(child, limits)
        if end is None:
            seconds = limits.seconds if limits.work_seconds is None else limits.work_seconds
            raise StageFailure(Reason.TIMEOUT, f"{doing} took longer than {seconds:.0f} s")
        results.seek(0)
        answer = _parse(results.read())
        stderr = tail(errors)
    if (end.code < 0 or answer is None) and _was_near_limit(end.peak_bytes, limits):
        raise StageFailure(Reason.OUT_OF_MEMORY, f"{doing} reached its memory limit")
    if end.code < 0:
        raise describe_kill(-end.code, doing, stderr)
    if answer is None:
        raise StageFailure(
            Reason.BACKEND_CRASHED,
            f"{doing}: the process exited with code {end.code}{last_output(stderr)}",
        )
    return _result(answer, doing, stderr)


def _wait(child: Child, limits: Limits) -> End | None:
    if limits.work_seconds is None:
        return child.wait(limits.seconds)
    work = TimeLimit(limits.work_seconds, (child.processor_seconds, time.monotonic))
    latest = math.inf if limits.seconds is None else time.monotonic() + limits.seconds
    while (end := child.wait(_LOOK_SECONDS)) is None:
        if work.over() or time.monotonic() > latest:
            return None
    return end


def _parse(answer: bytes) -> ChildAnswer | None:
    try:
        return ChildAnswer.decode(answer)
    except ValueError:
        return None


def _was_near_limit(peak: int, limits: Limits) -> bool:
    """Return whether a child that crashed was near its limit: not all native code checks allocations."""
    return limits.memory_bytes is not None and peak > _NEARLY * limits.memory_bytes


def tail(file: Any) -> str:  # noqa: ANN401 - a binary temporary file
    """Return the end of a child's output."""
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - _STDERR_BYTES))
    text: str = file.read().decode(errors="replace")
    return text.strip()


def last_output(stderr: str) -> str:
    """Return the end of a child's stderr, to be appended to a message."""
    return f"; last output: {plain(stderr)}" if stderr else ""


def describe_kill(number: int, doing: str, stderr: str) -> StageFailure:
    """Return the failure of a child that a signal ended."""
    if number == signal.SIGKILL or is_out_of_memory(stderr):
        return StageFailure(Reason.OUT_OF_MEMORY, f"{doing} was killed: out of memory")
    name = signal.Signals(number).name
    return StageFailure(Reason.BACKEND_CRASHED, f"{doing} crashed with {name}{last_output(stderr)}")


def _result(answer: ChildAnswer, doing: str, stderr: str) -> Any:  # noqa: ANN401 - any JSON value
    if finding := answer.failure:
        cause = finding.cause + last_output(stderr)
        raise StageFailure.of(finding.model_copy(update={"cause": cause}))
    match answer.outcome:
        case "session-error":
            raise SessionError(answer.text)
        case "memory":
            raise StageFailure(Reason.OUT_OF_MEMORY, f"{doing} ran out of memory")
        case "disk-full":
            raise StageFailure(Reason.STORAGE_FULL, f"{doing} ran out of disk space")
        case "error":
            raise StageFailure(Reason.INTERNAL_ERROR, f"{doing} failed: {answer.text}")
        case _:
            return answer.result
