"""Forks children out of a process that has imported what they need, and has done nothing else.

A child that starts Python afresh spends half a second on its imports, which for most models is longer than
what it is started for. A fork is safe only in a process without threads, without sessions and without
what a model has left behind: so not the stage forks, but this server, which does nothing but import.
The idea is that of Python's `multiprocessing.forkserver`, whose children cannot be held to a limit of
memory before they begin, and whose peak of memory nobody is given.

An order is a message with descriptors: a socket of its own for what becomes of the child, a file with
the order itself, standard input, the file for all that the child prints, and those that the function is
called with. Whoever closes the order's socket, or ends, ends the child.
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
from enginewright_runtime.core.children import Begun, End, ForkOrder

_PACKAGE: Final = "enginewright_runtime."
_MOST_DESCRIPTORS: Final = 8
_PR_SET_PDEATHSIG: Final = 1  # prctl(2)
_PR_SET_NAME: Final = 15
_FAILED: Final = 1  # exit code of a child whose function raised


@dataclass(frozen=True)
class _Child:
    """A child under way."""

    pid: int
    descriptor: int  # of the process: pidfd_open(2)
    line: socket.socket  # where its end is reported
    owner: socket.socket  # whose order it was
    client: socket.socket  # by which it gives orders itself


class _ForkServer:
    """Waits for orders, and for the ends of children."""

    def __init__(self, orders: socket.socket) -> None:
        self._first = orders
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, _Child] = {}
        self._clients: set[socket.socket] = set()
        self._done = False
        self._frozen = False
        self._admit(orders)

    def serve(self) -> None:
        """Serve until the first client has gone."""
        while not self._done:
            for key, _ in self._selector.select():
                # what one event closes, a later one of the same turn may be about
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
            self._begin(descriptors, client)
            return
        self._selector.unregister(client)
        self._clients.discard(client)
        client.close()
        self._done = client is self._first

    def _begin(self, descriptors: Sequence[int], owner: socket.socket) -> None:
        line_number, order_file, *streams = descriptors
        line = socket.socket(fileno=line_number)
        with open(order_file, "rb") as file:
            order = ForkOrder(**json.load(file))
        _preload(order.preload)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if not self._frozen:
            gc.collect()
            self._frozen = True
        gc.freeze()  # else the collector of each child copies all pages
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            line.send(_message(Begun(error=error.errno)))
            for end in (line, ours, theirs):
                end.close()
        else:
            if pid == 0:
                ours.close()
                line.close()
                self._forget()
                _run(order, streams, theirs, server)
            theirs.close()
            self._watch(_Child(pid, os.pidfd_open(pid), line, owner, ours))
        for each in streams:
            os.close(each)

    def _watch(self, child: _Child) -> None:
        self._children[child.pid] = child
        self._admit(child.client)
        self._selector.register(child.descriptor, selectors.EVENT_READ, lambda: self._reap(child))
        self._selector.register(child.line, selectors.EVENT_READ, lambda: self._kill(child))
        with contextlib.suppress(OSError):  # nobody wants to know any more
            socket.send_fds(child.line, [_message(Begun(pid=child.pid))], [child.descriptor])

    def _kill(self, child: _Child) -> None:
        """End a child whose order's socket was closed."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.line)
        signal.pidfd_send_signal(child.descriptor, signal.SIGKILL)

    def _reap(self, child: _Child) -> None:
        """Report how a child ended, once what it has begun itself has ended too."""
        if child.pid not in self._children:
            return
        _, status, usage = os.wait4(child.pid, 0)
        del self._children[child.pid]
        self._selector.unregister(child.descriptor)
        os.close(child.descriptor)
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.line)
        for each in [each for each in self._children.values() if each.owner is child.client]:
            self._kill(each)
            self._reap(each)
        end = End(os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024)
        with child.line, contextlib.suppress(OSError):
            child.line.send(_message(end))

    def _forget(self) -> None:
        """Close, in a child, what is the server's."""
        self._selector.close()
        for client in self._clients:
            client.close()
        for child in self._children.values():
            child.line.close()
            os.close(child.descriptor)


def _message(answer: Begun | End) -> bytes:
    return json.dumps(vars(answer)).encode()


def _preload(modules: Iterable[str]) -> None:
    """Import what children will use."""
    for module in modules:
        # others' may do anything; whatever is wrong with ours, the child meets it too, and reports
        if module.startswith(_PACKAGE):
            with contextlib.suppress(Exception):
                importlib.import_module(module)


def _run(order: ForkOrder, streams: Sequence[int], server: socket.socket, parent: int) -> None:
    """Be the child; never returns."""
    code = _FAILED
    try:
        stdin, output, *given = streams
        _settle(order, parent)
        os.dup2(stdin, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(stdin)
        os.close(output)
        children.adopt(server)
        module, _, name = order.call.partition(":")
        function: Callable[..., int] = getattr(importlib.import_module(module), name)
        code = function(*order.arguments, *given)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else _FAILED
    except BaseException:  # noqa: BLE001 - the end of a process
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        # what native libraries do at a regular exit takes time, and may crash after all is done
        os._exit(code)


def _settle(order: ForkOrder, parent: int) -> None:
    """Be as a process is that was started for this alone."""
    library = ctypes.CDLL(None)
    library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    library.prctl(_PR_SET_NAME, order.title.encode(), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(_FAILED)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(order.environment)
    os.chdir(order.folder)
    tempfile.tempdir = None  # to be found again, by this environment
    if (limit := order.memory_bytes) is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def main(descriptor: int, preload: Sequence[str] = ()) -> int:
    """Serve whoever holds the other end of a socket; modules are imported before."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's, which is for the client
    gc.disable()  # what is imported stays, and looking through it again and again takes a tenth of the time
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
