"""Forks children from a process that has only imported the modules that they need.

A new interpreter spends half a second on imports, for most models longer than the actual work. Only a
process without threads, sessions or other state of a model can fork safely: this server, not the stage.
Python's `multiprocessing.forkserver` can neither limit a child's memory before it starts nor report its
peak memory.

A request is a message with descriptors: a socket for the responses about the child, a file with the
request, standard input, the child's output, and those that the function is called with. When the client
closes that socket or ends, the child is killed.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import selectors
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from enginewright_runtime.core import children
from enginewright_runtime.core.children import End, ForkRequest, Started

_OURS: Final = "enginewright_"  # how the names of our packages begin
_MOST_DESCRIPTORS: Final = 8
_PR_SET_NAME: Final = 15  # prctl(2)
_FAILED: Final = 1  # exit code of a child whose function raised
_PR_SET_PDEATHSIG: Final = 1  # prctl(2)


@dataclass(frozen=True)
class _Child:
    pid: int
    descriptor: int  # of the process: pidfd_open(2)
    line: socket.socket  # where its end is reported
    owner: socket.socket  # the client that requested it
    client: socket.socket  # on which the child itself sends requests


class _ForkServer:
    def __init__(self, requests: socket.socket) -> None:
        self._first = requests
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, _Child] = {}
        self._clients: set[socket.socket] = set()
        self._done = False
        self._frozen = False
        self._admit(requests)

    def serve(self) -> None:
        while not self._done:
            for key, _ in self._selector.select():
                # an earlier event of this iteration may have closed the descriptor of a later one
                if self._selector.get_map().get(key.fd) is key:
                    key.data()
        while self._children:
            child = next(iter(self._children.values()))
            self._kill(child)
            self._reap(child)

    def _admit(self, client: socket.socket) -> None:
        self._clients.add(client)
        self._selector.register(client, selectors.EVENT_READ, lambda: self._receive(client))

    def _receive(self, client: socket.socket) -> None:
        try:
            message, descriptors, _, _ = socket.recv_fds(client, 16, _MOST_DESCRIPTORS)
        except ConnectionError:
            message, descriptors = b"", []
        if message:
            self._start(descriptors, client)
            return
        self._selector.unregister(client)
        self._clients.discard(client)
        client.close()
        self._done = client is self._first

    def _start(self, descriptors: Sequence[int], owner: socket.socket) -> None:
        line_number, request_file, *streams = descriptors
        line = socket.socket(fileno=line_number)
        with open(request_file, "rb") as file:
            request = ForkRequest(**json.load(file))
        _preload(request.preload)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if not self._frozen:
            gc.collect()
            self._frozen = True
        gc.freeze()  # otherwise the garbage collector of each child copies all pages
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            line.send(_message(Started(error=error.errno)))
            for end in (line, ours, theirs):
                end.close()
        else:
            if pid == 0:
                ours.close()
                line.close()
                self._forget()
                _run(request, streams, theirs, server)
            theirs.close()
            self._watch(_Child(pid, os.pidfd_open(pid), line, owner, ours))
        for stream in streams:
            os.close(stream)

    def _watch(self, child: _Child) -> None:
        self._children[child.pid] = child
        self._admit(child.client)
        self._selector.register(child.descriptor, selectors.EVENT_READ, lambda: self._reap(child))
        self._selector.register(child.line, selectors.EVENT_READ, lambda: self._kill(child))
        with contextlib.suppress(OSError):  # the client has gone
            socket.send_fds(child.line, [_message(Started(pid=child.pid))], [child.descriptor])

    def _kill(self, child: _Child) -> None:
        """Kill a child whose request's socket was closed."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.line)
        signal.pidfd_send_signal(child.descriptor, signal.SIGKILL)

    def _reap(self, child: _Child) -> None:
        """Report how a child ended, once its own children have ended too."""
        if child.pid not in self._children:
            return
        _, status, usage = os.wait4(child.pid, 0)
        del self._children[child.pid]
        self._selector.unregister(child.descriptor)
        os.close(child.descriptor)
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.line)
        for item in [entry for entry in self._children.values() if entry.owner is child.client]:
            self._kill(item)
            self._reap(item)
        end = End(os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024)
        with child.line, contextlib.suppress(OSError):
            child.line.send(_message(end))

    def _forget(self) -> None:
        """Close, in a child, the server's descriptors."""
        self._selector.close()
        for client in self._clients:
            client.close()
        for child in self._children.values():
            child.line.close()
            os.close(child.descriptor)


def _message(answer: Started | End) -> bytes:
    return json.dumps(vars(answer)).encode()


def _preload(modules: Iterable[str]) -> None:
    for module in modules:
        # only our own modules, which have no side effects; the child reports an import error
        if module.startswith(_OURS):
            with contextlib.suppress(Exception):
                importlib.import_module(module)


def _run(request: ForkRequest, streams: Sequence[int], server: socket.socket, parent: int) -> None:
    """Run the child; never returns."""
    code = _FAILED
    try:
        stdin, output, *descriptors = streams
        _settle(request, parent)
        os.dup2(stdin, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(stdin)
        os.close(output)
        children.adopt(server)
        module, _, name = request.call.partition(":")
        function: Callable[..., int] = getattr(importlib.import_module(module), name)
        code = function(*request.arguments, *descriptors)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else _FAILED
    except BaseException:  # noqa: BLE001 - the boundary of the process
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        # native libraries' exit handlers take time and may crash after the work is done
        os._exit(code)


def _settle(request: ForkRequest, parent: int) -> None:
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # when the thread that started it ends
    prctl(_PR_SET_NAME, request.title.encode(), 0, 0, 0)
    if os.getppid() != parent:  # it had ended before
        os._exit(_FAILED)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    tempfile.tempdir = None  # determined again from this environment
    if (limit := request.memory_bytes) is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def main(descriptor: int, preload: Sequence[str] = ()) -> int:
    """Import the modules, then serve the clients of a socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the client
    gc.disable()  # imported modules stay, and collections during imports cost a tenth of the time
    _preload(preload)
    gc.enable()
    _ForkServer(socket.socket(fileno=descriptor)).serve()
    return 0


if __name__ == "__main__":
    # the module that children import must be this one, not a second one called __main__
    sys.exit(
        importlib.import_module("enginewright_runtime.core.forkserver").main(
            int(sys.argv[1]), sys.argv[2:]
        )
    )
