"""One further server process: how it is started, and how it has ended."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable
from typing import Final

from enginewright.contract.reasons import Reason

from enginewright_runtime.core.failure import StageFailure

_PROGRAM: Final = ("-m", "enginewright_runtime.serve.server.processes.follower")
_REAP_SECONDS: Final = 0.005


def spawn(
    index: int, sockets: Iterable[socket.socket]
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process; return it and this end of its channel.

    Args:
        index: of its place, from 1.
        sockets: that it gets to listen on.

    Raises:
        StageFailure: the system starts no process.
    """
    ours, theirs = socket.socketpair()
    numbers = [theirs.fileno(), *(each.fileno() for each in sockets)]
    with theirs:
        try:
            process = subprocess.Popen(
                [sys.executable, *_PROGRAM, str(index), *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                pass_fds=numbers,
            )
        except OSError as error:
            ours.close()
            raise StageFailure(
                Reason.OUT_OF_MEMORY,
                f"server process {index + 1} cannot be started: {error.strerror}",
            ) from error
    return process, ours


async def end(process: subprocess.Popen[bytes]) -> int:
    """Kill a process if it still runs; return its exit code, negative for a signal."""
    process.kill()
    # its sockets are closed a moment before it can be waited for
    while (code := process.poll()) is None:  # noqa: ASYNC110 - nothing signals it
        await asyncio.sleep(_REAP_SECONDS)
    return code


def how(code: int) -> str:
    """Return how a process has ended, from its exit code."""
    if code >= 0:
        return f"has ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


def not_proved(index: int, code: int) -> StageFailure:
    """Return why a process has not proved its copy of the model that the first process has proved."""
    cause = f"server process {index + 1} {how(code)} while it was loading or proving the model"
    if code == -signal.SIGKILL:
        remedy = (
            "raise spec.podTemplate.resources.limits.memory, or lower spec.serving.processes:"
            " every process loads the model"
        )
        return StageFailure(Reason.OUT_OF_MEMORY, f"{cause}: usually out of memory", remedy=remedy)
    return StageFailure(Reason.BACKEND_CRASHED, cause)
