"""Unit tests start nothing: the guard refuses every way to, and lets event loops be."""

import asyncio
import contextlib
import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable

import onnxruntime as ort
import pytest

from tests.support import purity


def fork() -> None:
    if os.fork() == 0:  # pragma: no cover
        os._exit(1)


def listen() -> None:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))


def connect() -> None:
    with socket.socket() as opened:
        opened.connect(("127.0.0.1", 9))


async def shell() -> None:
    await asyncio.create_subprocess_shell("true")


WAYS: dict[str, Callable[[], object]] = {
    "subprocess": lambda: subprocess.run([sys.executable, "-V"], check=False),
    "asyncio": lambda: asyncio.run(shell()),
    "fork": fork,
    "posix_spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
    "system": lambda: os.system("true"),  # noqa: S605 - refused before it starts
    "exec": lambda: os.execv("/bin/true", ["true"]),  # noqa: S606 - likewise
    "multiprocessing.spawn": lambda: (
        multiprocessing.get_context("spawn").Process(target=print).start()
    ),
    "multiprocessing.fork": lambda: (
        multiprocessing.get_context("fork").Process(target=print).start()
    ),
    "multiprocessing.forkserver": lambda: (
        multiprocessing.get_context("forkserver").Process(target=print).start()
    ),
    "server": listen,
    "connection": connect,
    "session": lambda: ort.InferenceSession(b""),
}


@pytest.mark.parametrize("way", WAYS)
def test_starting_something_is_refused(way: str) -> None:
    with purity.expect_refusal() as caught:
        WAYS[way]()
    assert "move it to tests/integration" in str(caught.value)


def test_a_refusal_that_is_swallowed_fails_the_test_all_the_same() -> None:
    def swallow() -> None:
        with purity.guard_purity(), contextlib.suppress(Exception):
            fork()

    with pytest.raises(purity.ImpureError):
        swallow()


def test_event_loops_threads_and_pairs_of_sockets_are_pure() -> None:
    assert asyncio.run(asyncio.to_thread(lambda: 1)) == 1
    one, other = socket.socketpair()
    with one, other:
        one.send(b"x")
        assert other.recv(1) == b"x"
