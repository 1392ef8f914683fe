"""Keeps the unit layer pure: processes, connections and engines are refused while one of its tests runs.

A pure test takes milliseconds and depends on nothing but the code, so the layer stays quick enough to run after every
edit. What starts something belongs in tests/integration.
"""

import _posixsubprocess
import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import onnxruntime as ort
import pytest

_REFUSED = {  # audit event -> what it is
    "os.exec": "a program",
    "os.fork": "a process",
    "os.forkpty": "a process",
    "os.posix_spawn": "a process",
    "os.system": "a process",
    "subprocess.Popen": "a process",
    "socket.bind": "a server",  # pairs of sockets, which event loops need, bind nothing
    "socket.connect": "a connection",
}


class ImpureError(Exception):
    """A unit test started something."""


class _Guard:
    active = False
    violation: ImpureError | None = None  # kept, as the code under test may handle any exception

    def refuse(self, what: str, how: str) -> None:
        if self.active:
            self.violation = ImpureError(
                f"a unit test started {what} ({how}): move it to tests/integration, or test the pure part"
            )
            raise self.violation


_guard = _Guard()


def _audit(event: str, _: tuple[Any, ...]) -> None:
    if what := _REFUSED.get(event):
        _guard.refuse(what, event)


def install() -> None:
    """Install the guard for the rest of this process; it refuses nothing outside `guarded`."""
    sys.addaudithook(_audit)
    original_fork_exec = _posixsubprocess.fork_exec
    original_session = ort.InferenceSession.__init__

    def fork_exec(*given: Any) -> Any:  # multiprocessing calls it without an audit event
        _guard.refuse("a process", "fork_exec")
        return original_fork_exec(*given)

    def session(*given: Any, **named: Any) -> None:
        _guard.refuse("an engine", "onnxruntime.InferenceSession")
        original_session(*given, **named)

    _posixsubprocess.fork_exec = fork_exec
    ort.InferenceSession.__init__ = session


@contextlib.contextmanager
def guard_purity() -> Iterator[None]:
    """Refuse whatever starts something; fail afterwards where the refusal was swallowed."""
    _guard.active, _guard.violation = True, None
    try:
        yield
    finally:
        _guard.active = False
    violation, _guard.violation = _guard.violation, None
    if violation is not None:
        raise violation


@contextlib.contextmanager
def expect_refusal() -> Iterator[pytest.ExceptionInfo[ImpureError]]:
    """Expect the guard to raise for the code inside."""
    with pytest.raises(ImpureError) as caught:
        yield caught
    _guard.violation = None
