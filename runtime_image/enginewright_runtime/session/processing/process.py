"""The server's side of a process of steps: starts it, sends it requests, replaces it when it ends or hangs."""

import contextlib
import os
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NoReturn, Self

from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding
from pydantic import TypeAdapter

from enginewright_runtime.core.children import Child
from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.isolation import describe_kill, last_output, tail
from enginewright_runtime.session.arrays import Arrays
from enginewright_runtime.session.processing import frames
from enginewright_runtime.session.processing.frames import StepFacts

_FACTS: Final = TypeAdapter(dict[str, StepFacts])
_START_SECONDS: Final = 120.0
_MOST_OUTPUT: Final = 64 * 1024  # bytes that its libraries may print before they are discarded


class Cause(StrEnum):
    """Why a request failed in a step."""

    VALUES = "values"  # the step refuses them
    MEMORY = "memory"
    TIME = "time"
    ENDED = "ended"  # the step's library has ended the process


class StepFailedError(Exception):
    """A request failed in a step."""

    def __init__(self, cause: Cause, step: str | None, message: str) -> None:
        super().__init__(message)
        self.cause = cause
        self.step = step
        self.message = message


class StepProcess:
    """A process with loaded steps, used by one thread at a time. It is restarted after it has ended."""

    def __init__(
        self, paths: Mapping[str, Path], libraries_of: Path, memory_bytes: int | None
    ) -> None:
        """Start it with .onnx files, by name, and a model's libraries; raises SessionError, or StageFailure."""
        self._paths = {name: str(path) for name, path in paths.items()}
        self._libraries_of = str(libraries_of)
        self._memory_bytes = memory_bytes
        self._open = contextlib.ExitStack()
        self.facts = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it; idempotent."""
        self._open.close()

    def run(
        self,
        steps: Sequence[str],
        feeds: Arrays,
        outputs: Collection[str],
        seconds: float,
        most_bytes: int,
    ) -> Arrays:
        """Run steps one after another on `feeds`; return `outputs`, which may have `most_bytes` together.

        Raises StepFailedError if the steps fail on these values; unless they only refuse them, the next request restarts
        the process, and raises SessionError or StageFailure if that fails.
        """
        if self._child.wait(0) is not None:
            self._start()  # it has ended between two requests
        document = {"steps": list(steps), "outputs": list(outputs), "most_bytes": most_bytes}
        end = time.monotonic() + seconds
        try:
            self._line.settimeout(seconds)
            frames.send(self._line, document, feeds)
            answer, arrays = frames.receive(self._line, end)
        except TimeoutError:
            self._open.close()
            raise StepFailedError(Cause.TIME, None, f"it took longer than {seconds:g} s") from None
        except (frames.EndedError, OSError):
            raise self._describe_end() from None
        self._discard_output()
        if "error" in answer:
            raise StepFailedError(Cause(answer["kind"]), answer["step"], answer["error"])
        return arrays

    def _start(self) -> dict[str, StepFacts]:
        # imports a parser of models, which servers without steps do not need
        from enginewright_runtime.session.processing import child  # noqa: PLC0415 - above

        self._open.close()
        with contextlib.ExitStack() as stack:
            self._output = stack.enter_context(os.fdopen(os.memfd_create("output"), "w+b"))
            self._line, theirs = socket.socketpair()
            stack.enter_context(self._line)
            with theirs:
                started = Child(
                    child.main,
                    self._paths,
                    self._libraries_of,
                    output=self._output.fileno(),
                    descriptors=(theirs.fileno(),),
                    memory_bytes=self._memory_bytes,
                    preload=(child.__name__,),
                )
            self._child = stack.enter_context(started)
            answer = self._first_answer()
            self._open = stack.pop_all()
        return _FACTS.validate_python(answer["facts"])

    def _first_answer(self) -> dict[str, Any]:
        doing = "loading the steps of spec.processing"
        try:
            answer, _ = frames.receive(self._line, time.monotonic() + _START_SECONDS)
        except TimeoutError:
            message = f"{doing} took longer than {_START_SECONDS:.0f} s"
            raise StageFailure(Reason.TIMEOUT, message) from None
        except frames.EndedError:
            self._raise_ended(doing)
        if "failure" in answer:
            raise StageFailure.of(Finding.model_validate(answer["failure"]))
        if "error" in answer:
            raise SessionError(answer["error"])
        return answer

    def _raise_ended(self, doing: str) -> NoReturn:
        end = self._child.wait(None)
        output = tail(self._output)
        if end is not None and end.code < 0:
            raise describe_kill(-end.code, doing, output)
        message = f"{doing}: the process has ended{last_output(output)}"
        raise StageFailure(Reason.BACKEND_CRASHED, message)

    def _describe_end(self) -> StepFailedError:
        message = f"its library has ended the process{last_output(tail(self._output))}"
        self._open.close()
        return StepFailedError(Cause.ENDED, None, message)

    def _discard_output(self) -> None:
        if os.fstat(self._output.fileno()).st_size > _MOST_OUTPUT:
            self._output.truncate(0)
