"""The parent's end of a worker: orders and answers, with an end to every wait."""

import contextlib
import json
import os
import select
import tempfile
import time
from types import TracebackType
from typing import Any, Final, Self

from enginewright.contract.reasons import Reason

from enginewright_runtime.core.children import Child
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.isolation import killed, said, tail

_WORKER: Final = "enginewright_runtime.proof.latency.worker:main"
_PIECE: Final = 1 << 16


class WorkerProcess:
    """A child process that measures one candidate."""

    def __init__(self, doing: str, seconds: float) -> None:
        """Start it.

        Args:
            doing: for messages, such as "measuring the model on backend cpu".
            seconds: that one order may take.
        """
        self._doing = doing
        self._seconds = seconds
        self._pending = b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._answers, theirs = os.pipe()
        stdin, self._orders = os.pipe()
        try:
            self._child = Child(
                _WORKER,
                stdin=stdin,
                output=self._errors.fileno(),
                descriptors=(theirs,),
                preload=(_WORKER.partition(":")[0],),
            )
        finally:
            os.close(theirs)
            os.close(stdin)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._child.__exit__(kind, error, trace)
        os.close(self._orders)
        os.close(self._answers)
        self._errors.close()

    def ask(self, order: str, **arguments: Any) -> Any:  # noqa: ANN401 - any JSON value
        """Give an order and return what came of it.

        Raises:
            StageFailure: as the worker raised it; BackendCrashed, OutOfMemory or Timeout.
        """
        line = json.dumps({"order": order, **arguments}).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):  # what ended it is told below
            os.write(self._orders, line)
        answer: dict[str, Any] = json.loads(self._line(time.monotonic() + self._seconds))
        if failure := answer.get("failure"):
            message = f"{self._doing}: {failure['message']}"
            raise StageFailure(Reason(failure["reason"]), message, remedy="")
        return answer["result"]

    def _line(self, end: float) -> bytes:
        while b"\n" not in self._pending:
            left = end - time.monotonic()
            ready, _, _ = select.select([self._answers], [], [], max(0.0, left))
            if not ready:
                raise StageFailure(
                    Reason.TIMEOUT, f"{self._doing} took longer than {self._seconds:.0f} s"
                )
            piece = os.read(self._answers, _PIECE)
            if not piece:
                raise self._ended()
            self._pending += piece
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _ended(self) -> StageFailure:
        """Return why there is no worker any more."""
        end = self._child.wait(None)
        code = end.code if end else 0
        last_words = tail(self._errors)
        if code < 0:
            return killed(-code, self._doing, last_words)
        return StageFailure(
            Reason.BACKEND_CRASHED,
            f"{self._doing} ended its process with code {code}{said(last_words)}",
        )
