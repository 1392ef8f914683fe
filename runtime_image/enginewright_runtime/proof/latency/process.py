"""The parent's side of a worker: sends commands and waits for results, with a timeout."""

import contextlib
import json
import os
import select
import tempfile
import time
from math import inf
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from enginewright_contract.reasons import Reason
from pydantic import TypeAdapter

from enginewright_runtime.core.children import Child
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.isolation import describe_kill, last_output, log_command, tail
from enginewright_runtime.proof.latency import worker
from enginewright_runtime.proof.latency.worker import Loaded, Warm, WorkerAnswer

_T = TypeVar("_T")
_PIECE: Final = 1 << 16


class WorkerProcess:
    """A child process that measures one candidate."""

    def __init__(
        self, doing: str, seconds: float, total: float = inf, memory_bytes: int | None = None
    ) -> None:
        """Start it; `seconds` is the timeout of one command, `total` that of all together; memory as of `Limits`."""
        self._doing = doing
        self._seconds = seconds
        self._total = total
        self._end = time.monotonic() + total
        self._pending = b""
        self._sent: list[str] = []  # commands
        with contextlib.ExitStack() as stack:
            self._errors = stack.enter_context(tempfile.TemporaryFile())
            self._answers, theirs = os.pipe()
            stack.callback(os.close, self._answers)
            stdin, self._commands = os.pipe()
            stack.callback(os.close, self._commands)
            with contextlib.ExitStack() as given:
                given.callback(os.close, theirs)
                given.callback(os.close, stdin)
                child = Child(
                    worker.main,
                    stdin=stdin,
                    output=self._errors.fileno(),
                    descriptors=(theirs,),
                    preload=(worker.__name__,),
                    memory_bytes=memory_bytes,
                )
            self._child = stack.enter_context(child)
            self._open = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    # all raise StageFailure: that of the worker; BackendCrashed, OutOfMemory or Timeout

    def load(self, model: Path, backend: str, inputs: Path) -> Loaded:
        """Load the model and its golden inputs."""
        return self._ask(Loaded, "load", model=str(model), backend=backend, inputs=str(inputs))

    def warm_up(self, sample: str, seconds: float) -> Warm:
        """Run a sample until its time is stable, or for `seconds`."""
        return self._ask(Warm, "warm_up", sample=sample, seconds=seconds)

    def run(self, sample: str, runs: int) -> list[float]:
        """Run a sample `runs` times; return the seconds of each."""
        return self._ask(list[float], "run", sample=sample, runs=runs)

    def _ask(self, kind: type[_T], command: str, **arguments: str | float) -> _T:
        self._sent.append(json.dumps({"command": command, **arguments}))
        try:
            return TypeAdapter(kind).validate_python(self._answer(self._sent[-1]))
        except StageFailure:
            log_command(worker, before=("printf", r"%s\n", *self._sent))
            raise

    def _answer(self, command: str) -> Any:  # noqa: ANN401 - any JSON value
        with contextlib.suppress(BrokenPipeError):  # reported below
            os.write(self._commands, f"{command}\n".encode())
        answer = WorkerAnswer.decode(self._line())
        if finding := answer.failure:
            cause = f"{self._doing}: {finding.cause}"
            raise StageFailure.of(finding.model_copy(update={"cause": cause}))
        return answer.result

    def _line(self) -> bytes:
        end = min(time.monotonic() + self._seconds, self._end)
        while b"\n" not in self._pending:
            left = end - time.monotonic()
            ready, _, _ = select.select([self._answers], [], [], max(0.0, left))
            if not ready:
                limit = self._total if end == self._end else self._seconds
                raise StageFailure(Reason.TIMEOUT, f"{self._doing} took longer than {limit:.0f} s")
            piece = os.read(self._answers, _PIECE)
            if not piece:
                raise self._describe_end()
            self._pending += piece
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _describe_end(self) -> StageFailure:
        end = self._child.wait(None)
        code = end.code if end else 0
        stderr = tail(self._errors)
        if code < 0:
            return describe_kill(-code, self._doing, stderr)
        return StageFailure(
            Reason.BACKEND_CRASHED,
            f"{self._doing}: the process exited with code {code}{last_output(stderr)}",
        )
