"""Runs stages as forks of one process that has imported the libraries, in place of pods' containers.

Like a container of a pod, every stage is a separate process; but on one machine it need not start Python
and import the same libraries each time.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from enginewright_cli.reporting import CommandError

if TYPE_CHECKING:
    import subprocess

    from enginewright_runtime.core.children import ForkServer

JOB_SECONDS: Final = 3600  # time limit for the stages of one Job, as in a cluster
_STOP_SECONDS: Final = 10.0  # for a stage to end its children
_POLL_SECONDS: Final = 0.05  # between two checks of a Job's progress
_TAIL_BYTES: Final = 2000
# modules that stages and their children use, imported once
_PRELOAD: Final = tuple(
    f"enginewright_runtime.{name}"
    for name in (
        "__main__",
        "proof.latency.worker",
        "proof.costs",
        "prepare.fetch.stage",
        "prepare.validate.stage",
        "prepare.validate.inspection",
        "prepare.validate.trial",
        "prepare.convert.stage",
        "prepare.golden.stage",
        "prepare.quantize.stage",
        "prepare.publish",
        "engine.build",
        "engine.verify",
        "engine.benchmark",
        "engine.parse",
        "engine.publish_engine",
    )
)


def tail(descriptor: int) -> str:
    """Return the last bytes of an open file, as text."""
    end = os.lseek(descriptor, 0, os.SEEK_END)
    return os.pread(descriptor, _TAIL_BYTES, max(0, end - _TAIL_BYTES)).decode(errors="replace")


class InstallationError(CommandError):
    """The runtime package is not installed or does not work; the message states the remedy."""


class Stages:
    """The fork server of one command, and the stages that it runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._errors = os.memfd_create("errors")
        self._started: tuple[ForkServer, subprocess.Popen[bytes]] | None = None

    def start(self) -> None:
        """Start the fork server, which takes a while, without waiting for it."""
        self._server()

    def call(
        self,
        call: tuple[Any, ...],
        environment: Mapping[str, str],
        output: int,
        poll: Callable[[], None],
    ) -> int:
        """Call a function of the runtime package in a separate process; return its exit code, negative for a signal.

        `call` is "module:name" and arguments that JSON can hold, `output` a descriptor. An exception of
        `poll` ends the process and is reraised.
        """
        from enginewright_runtime.core.children import Child, ForkServerEndedError  # noqa: PLC0415 - lazily

        try:
            child = Child(*call, output=output, environment=environment, server=self._server())
        except ForkServerEndedError:
            return -signal.SIGKILL
        with child:
            try:
                while (end := child.wait(_POLL_SECONDS)) is None:
                    poll()
            except BaseException:
                child.send_signal(signal.SIGTERM)  # it kills its own children
                child.wait(_STOP_SECONDS)
                raise
        return end.code

    def server_output(self) -> str:
        """Return the last output of the fork server, such as why it cannot start."""
        return tail(self._errors)

    def close(self) -> None:
        """End the fork server and all stages."""
        if self._started is not None:
            server, process = self._started
            server.close()
            with suppress(ProcessLookupError):
                # not reaped yet, so the group ID is still valid
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(self._errors)

    def _server(self) -> "ForkServer":
        from enginewright_runtime.core.children import start  # noqa: PLC0415 - loaded lazily

        with self._lock:
            if self._started is None:
                # a separate session: this process forwards an interrupt, once
                self._started = start(self._errors, session=True, preload=_PRELOAD)
            return self._started[0]


@contextmanager
def running_stages() -> Iterator[Stages]:
    """Yield the stages' fork server; end all its processes on exit."""
    stages = Stages()
    try:
        yield stages
    finally:
        stages.close()
