"""The access log: a line for a share of the requests, and for failed ones as long as they are few.

The event loop puts requests into a queue. A thread formats and writes them, since a write to a full pipe blocks:
then the queue fills, and further lines are dropped and counted. It writes to standard output, so that the server's
own log, on standard error, is not blocked with it.

A line contains no part of a body, no header but the request's ID, and no token.
"""

import os
import random
import threading
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

from enginewright_contract.serving_options import AccessLogTask
from enginewright_runtime.core import logs

from enginewright_serving.transport.answered import Answered

_STDOUT: Final = 1
_WAITING_LINES: Final = 2000  # about half a megabyte
_ATOMIC_BYTES: Final = 4096  # PIPE_BUF: up to this size writes are not mixed with other lines
_FAILURES_PER_SECOND: Final = 10
_FAILURES_AT_ONCE: Final = 100
_FIRST_FAILED: Final = {"None": 1000, "ServerErrors": 500, "All": 400}  # status always logged from

_Line = tuple[Answered, float, int]  # the clock's time, and failures that were not logged before it


def _write_out(text: bytes) -> None:
    while text:
        text = text[os.write(_STDOUT, text) :]


class AccessLogWriter:
    """Chooses requests, and writes them in its thread."""

    def __init__(self, options: AccessLogTask) -> None:
        self._dropped = 0  # by the event loop
        self._unwritten = 0  # by the thread
        self._share = options.share
        self._first_failed = _FIRST_FAILED[options.failed]
        self._failures = float(_FAILURES_AT_ONCE)  # that may be logged now
        self._refilled = time.monotonic()
        self._suppressed = 0  # failures since the last one that was logged
        self._lines: SimpleQueue[_Line | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
        self._thread.start()

    def add(self, answered: Answered) -> None:
        """Log a request if it is chosen."""
        if random.random() >= self._share and not self._logs_failure(answered):  # noqa: S311 - a sample
            return
        if self._lines.qsize() >= _WAITING_LINES:
            self._dropped += 1
            return
        self._lines.put((answered, time.time(), self._suppressed))
        self._suppressed = 0

    @property
    def dropped(self) -> int:
        """Lines that should have been written, and were not."""
        return self._dropped + self._unwritten

    def close(self, seconds: float) -> None:
        """Write waiting lines, for up to `seconds`."""
        self._lines.put(None)
        self._thread.join(seconds)

    def _logs_failure(self, answered: Answered) -> bool:
        if answered.status < self._first_failed:
            return False
        passed = answered.ended - self._refilled
        self._refilled = answered.ended
        self._failures = min(_FAILURES_AT_ONCE, self._failures + passed * _FAILURES_PER_SECOND)
        if self._failures < 1:
            self._dropped += 1
            self._suppressed += 1
            return False
        self._failures -= 1
        return True

    # In the thread.

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            text, ends = _text(*line), False
            with suppress(Empty):
                while len(text) < _ATOMIC_BYTES // 2:
                    if (another := self._lines.get_nowait()) is None:
                        ends = True
                        break
                    text += _text(*another)
            try:
                _write_out(text)
            except OSError:  # its reader has ended
                self._unwritten += text.count(b"\n")
            if ends:
                return


def _text(answered: Answered, now: float, suppressed: int) -> bytes:
    context = answered.context
    fields = {
        "protocol": answered.protocol,
        "method": answered.method,
        "code": str(answered.status),
        "grpc_code": answered.grpc_status,
        "request_bytes": str(answered.received),
        "response_bytes": str(answered.sent),
        "total_ms": _milliseconds(answered.began, answered.ended),
        "queue_ms": _milliseconds(context.queued, context.started),
        "compute_ms": _milliseconds(context.started, context.finished),
        "request_id": context.request_id.decode(),
        "trace_id": context.parent.trace_id.decode() if context.parent else "",
        "client": answered.client,
        "not_logged": str(suppressed) if suppressed else "",
    }
    shown = "".join(f" {name}={value}" for name, value in fields.items() if value)
    return f"{logs.line(now, 'info', 'serve', 'request')}{shown}\n".encode()


def _milliseconds(begin: float, end: float) -> str:
    return f"{(end - begin) * 1e3:.3f}" if begin and end else ""
