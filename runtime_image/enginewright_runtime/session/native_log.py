"""Captures what native libraries write to standard output and error while a session is created.

ONNX Runtime reports only there why a provider could not be created: it raises no exception and has no
logging callback in Python. `tee`, a separate process, also forwards the output, so that a crash loses
none of it and the library never waits for a lock of this process.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_KEPT: Final = 64 * 1024  # bytes of the end
_SECONDS: Final = 5.0  # for tee to end; a child that inherited the pipe may hold it open
_DESCRIPTORS: Final = (1, 2)


class NativeLog:
    """The captured text, set when the capture has ended."""

    text: str = ""


@contextmanager
def capture() -> Iterator[NativeLog]:
    """Copy descriptors 1 and 2 of this process into the log, and forward them to 2; not thread-safe."""
    log = NativeLog()
    memory = os.memfd_create("native-log")
    saved = [(number, os.dup(number)) for number in _DESCRIPTORS]
    try:
        _flush()
        tee = subprocess.Popen(
            ["tee", "--ignore-interrupts", f"/proc/self/fd/{memory}"],
            stdin=subprocess.PIPE,
            stdout=saved[-1][1],
            pass_fds=(memory,),
            start_new_session=True,  # a signal to this process group must not end it first
        )
        assert tee.stdin is not None  # noqa: S101 - a pipe was asked for
        try:
            for number in _DESCRIPTORS:
                os.dup2(tee.stdin.fileno(), number)
            tee.stdin.close()
            yield log
        finally:
            _flush()
            for number, copy in saved:
                os.dup2(copy, number)
            _end(tee)
            log.text = _tail(memory)
    finally:
        for _, copy in saved:
            os.close(copy)
        os.close(memory)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def _end(tee: "subprocess.Popen[bytes]") -> None:
    try:
        tee.wait(_SECONDS)
    except subprocess.TimeoutExpired:
        tee.kill()
        tee.wait()


def _tail(memory: int) -> str:
    size = os.fstat(memory).st_size
    return os.pread(memory, _KEPT, max(0, size - _KEPT)).decode(errors="replace")
