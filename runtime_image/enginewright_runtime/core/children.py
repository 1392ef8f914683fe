"""Child processes of stages: begun by the fork server, waited for, and ended with who began them."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

_SERVER: Final = "enginewright_runtime.core.forkserver"
_MESSAGE: Final = 4096  # bytes at most of what the server says
_PROCESS_CLOCK: Final = (
    2  # CPUCLOCK_SCHED of Linux, as clock_getcpuclockid(3) makes clocks of processes
)
_TITLE: Final = 15  # bytes of a process's name, prctl(2)


@dataclass(frozen=True)
class End:
    """How a child ended."""

    code: int  # negative: the signal that ended it
    peak_bytes: int  # most memory that it had resident


@dataclass(frozen=True)
class ForkOrder:
    """What the fork server is to begin, beside the descriptors that come with it."""

    call: str  # "module:name" of a function that returns an exit code
    arguments: Sequence[Any]  # JSON values
    memory_bytes: int | None
    environment: Mapping[str, str]
    folder: str
    preload: Sequence[str]
    title: str


@dataclass(frozen=True)
class Begun:
    """What the fork server answers to an order."""

    pid: int | None = None
    error: int | None = None  # errno of a fork that failed


class ForkServerEndedError(OSError):
    """There is no fork server any more: it was killed, or could not begin."""


class ForkServer:
    """A fork server, as those see it who give it orders."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self._lock = threading.Lock()

    def close(self) -> None:
        """Have it end, if it was started here."""
        self._orders.close()

    def order(self, content: bytes, descriptors: Sequence[int]) -> socket.socket:
        """Give an order; return the socket of its own on which the server answers."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        file = os.memfd_create("order")
        try:
            os.write(file, content)
            os.lseek(file, 0, os.SEEK_SET)
            with self._lock:
                socket.send_fds(self._orders, [b"order"], [theirs.fileno(), file, *descriptors])
        except OSError as error:
            ours.close()
            raise ForkServerEndedError(*error.args) from error
        finally:
            theirs.close()
            os.close(file)
        return ours


def start(
    errors: int | None = None, *, session: bool = False, preload: Sequence[str] = ()
) -> "tuple[ForkServer, subprocess.Popen[bytes]]":
    """Start a fork server, which ends when the returned server's socket is closed.

    Args:
        errors: descriptor for what it prints; None: this process's standard error.
        session: whether it and all its children are a session, and a process group, of their own.
        preload: modules that it imports before it serves.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", _SERVER, str(theirs.fileno()), *preload],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            pass_fds=(theirs.fileno(),),
            start_new_session=session,
        )
    return ForkServer(ours), process


_lock: Final = threading.Lock()
_known: list[ForkServer] = []  # the server of this process, once there is one
_processes: list["subprocess.Popen[bytes]"] = []  # kept, so that it is no zombie's handle


def adopt(orders: socket.socket) -> None:
    """Take the server that has forked this process for its own."""
    _known[:] = [ForkServer(orders)]
    _processes.clear()


def _server() -> ForkServer:
    """Return this process's server, which is started when it is first needed."""
    with _lock:
        if _processes and _processes[0].poll() is not None:
            _known.clear()  # it was killed: the next one may live longer
        if not _known:
            server, process = start()
            _known[:], _processes[:] = [server], [process]
        return _known[0]


def name_of(function: Callable[..., Any]) -> str:
    """Return the "module:name" by which a child finds a function."""
    return f"{function.__module__}:{function.__qualname__}"


def _title(call: str) -> str:
    """Return what `ps` and `top` call a child: all have the server's command line."""
    module = call.partition(":")[0].removesuffix(".__main__")
    return module.rpartition(".")[2][:_TITLE]


class Child:
    """A function that runs in a process of its own; leaving the context ends it."""

    def __init__(
        self,
        call: str | Callable[..., int],
        *arguments: Any,  # noqa: ANN401 - any JSON value
        output: int,
        stdin: int | None = None,
        descriptors: Sequence[int] = (),
        memory_bytes: int | None = None,
        environment: Mapping[str, str] | None = None,
        preload: Sequence[str] = (),
        server: ForkServer | None = None,
    ) -> None:
        """Begin it.

        Args:
            call: a function that returns an exit code; who does not import it gives "module:name".
            arguments: it is called with these, and with `descriptors` after them.
            output: descriptor for all that it prints.
            stdin: descriptor that it reads; None: nothing.
            descriptors: further ones that it has.
            memory_bytes: that it may map for itself (RLIMIT_DATA); None: without limit.
            environment: its variables; None: this process's.
            preload: modules that the server imports first, for this child and those that follow.
            server: to ask; None: this process's own.

        Raises:
            OSError: it cannot be begun.
        """
        name = call if isinstance(call, str) else name_of(call)
        order = ForkOrder(
            call=name,
            arguments=arguments,
            memory_bytes=memory_bytes,
            environment=dict(os.environ if environment is None else environment),
            folder=os.getcwd(),
            preload=[*preload],
            title=_title(name),
        )
        self._end: End | None = None
        self._descriptor: int | None = None
        content = json.dumps(vars(order)).encode()
        with open(os.devnull, "rb") as nothing:
            streams = (nothing.fileno() if stdin is None else stdin, output, *descriptors)
            self._line = (server or _server()).order(content, streams)
        try:
            message, received, _, _ = socket.recv_fds(self._line, _MESSAGE, 1)
        except ConnectionError:
            message, received = b"", []
        if not message:
            self._line.close()
            raise ForkServerEndedError("the fork server has ended")
        begun = Begun(**json.loads(message))
        if begun.pid is None:
            self._line.close()
            number = begun.error or 0
            raise OSError(number, os.strerror(number))
        self.pid: int = begun.pid
        (self._descriptor,) = received

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait(None)
        self._line.close()
        if self._descriptor is not None:
            os.close(self._descriptor)

    def wait(self, seconds: float | None) -> End | None:
        """Wait so long; return how it ended, None: it has not."""
        if self._end is None:
            ready = select.poll()
            ready.register(self._line, select.POLLIN)
            if not ready.poll(None if seconds is None else seconds * 1000):
                return None
            try:
                message = self._line.recv(_MESSAGE)
            except ConnectionError:
                message = b""
            # a server that was killed has taken its children with it
            self._end = End(**json.loads(message)) if message else End(-signal.SIGKILL, 0)
        return self._end

    def processor_seconds(self) -> float:
        """Return the processor time of all its threads; 0 once it has ended."""
        try:
            return time.clock_gettime((~self.pid << 3) | _PROCESS_CLOCK)
        except OSError:
            return 0.0

    def send_signal(self, number: signal.Signals) -> None:
        """Signal it, if it has not ended."""
        if self._end is None and self._descriptor is not None:
            try:
                signal.pidfd_send_signal(self._descriptor, number)
            except ProcessLookupError:
                return

    def kill(self) -> None:
        """Kill it, if it has not ended."""
        self.send_signal(signal.SIGKILL)
