"""Begins what runs in the place of pods: all of it out of one process that has imported what is needed.

Every container of a pod is a process of its own, and so is every stage here; but on one machine they need
not start Python and read the same libraries each time.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import subprocess

    from enginewright_runtime.core.children import ForkServer

JOB_SECONDS: Final = 3600  # that the stages of one Job may take, as in a cluster
_STOP_SECONDS: Final = 10.0  # that a stage has to end its children
_LOOK_SECONDS: Final = 0.05  # between two looks at how far a Job is
_TAIL_BYTES: Final = 2000
# What stages and their children use, so that it is imported once.
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
        "engine.publish_engine",
    )
)


def tail(descriptor: int) -> str:
    """Return the end of what was written to an open file."""
    end = os.lseek(descriptor, 0, os.SEEK_END)
    return os.pread(descriptor, _TAIL_BYTES, max(0, end - _TAIL_BYTES)).decode(errors="replace")


class InstallationError(Exception):
    """The runtime package is not there, or says nothing that can be read."""


class Stages:
    """The processes of one command."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._errors = os.memfd_create("errors")
        self._begun: tuple[ForkServer, subprocess.Popen[bytes]] | None = None

    def begin(self) -> None:
        """Begin the process out of which all others are, which takes a while, without waiting for it."""
        self._server()

    def call(
        self,
        call: tuple[Any, ...],
        environment: Mapping[str, str],
        output: int,
        look: Callable[[], None],
    ) -> int:
        """Call a function of the runtime in a process of its own.

        Args:
            call: "module:name", and arguments that JSON can hold.
            environment: of the process.
            output: descriptor for all that it prints.
            look: is called while it runs; what it raises ends the process, and is raised.

        Returns:
            Its exit code; negative: the signal that ended it.
        """
        from enginewright_runtime.core.children import Child, ForkServerEndedError  # noqa: PLC0415 - lazily

        try:
            child = Child(
                *call,
                output=output,
                environment=environment,
                server=self._server(),
            )
        except ForkServerEndedError:
            return -signal.SIGKILL
        with child:
            try:
                while (end := child.wait(_LOOK_SECONDS)) is None:
                    look()
            except BaseException:
                child.send_signal(signal.SIGTERM)  # it kills its own children
                child.wait(_STOP_SECONDS)
                raise
        return end.code

    def last_words(self) -> str:
        """Return what the process said that begins the others, such as why it cannot."""
        return tail(self._errors)

    def close(self) -> None:
        """End all of them."""
        if self._begun is not None:
            server, process = self._begun
            server.close()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # not reaped yet: the group is still its own
            process.wait()
        os.close(self._errors)

    def _server(self) -> "ForkServer":
        from enginewright_runtime.core.children import start  # noqa: PLC0415 - loaded lazily

        with self._lock:
            if self._begun is None:
                # an interrupt is ours to pass on, once: hence a session of its own
                self._begun = start(self._errors, session=True, preload=_PRELOAD)
            return self._begun[0]


@contextmanager
def begun() -> Iterator[Stages]:
    """Give what begins stages, and leave no process behind."""
    stages = Stages()
    try:
        yield stages
    finally:
        stages.close()
