"""Child processes of stages, started by the fork server; they end with the process that started them."""

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
_MESSAGE: Final = 4096  # largest message of the server, in bytes
# CPUCLOCK_SCHED of Linux, with which clock_getcpuclockid(3) derives a process's clock
_PROCESS_CLOCK: Final = 2
_TITLE: Final = 15  # bytes of a process's name, prctl(2)


@dataclass(frozen=True)
class End:
    """How a child ended."""

    code: int  # negative: the signal that ended it
    peak_bytes: int  # most memory that it had resident


@dataclass(frozen=True)
class ForkRequest:
    """What the fork server starts, in addition to the descriptors of the message."""

    call: str  # "module:name" of a function that returns an exit code
    arguments: Sequence[Any]  # JSON values
    memory_bytes: int | None
    environment: Mapping[str, str]
    folder: str
    preload: Sequence[str]
    title: str


@dataclass(frozen=True)
class Started:
    """The fork server's response to a request."""

    pid: int | None = None
    error: int | None = None  # errno of a fork that failed


class ForkServerEndedError(OSError):
    """The fork server has ended: it was killed, or could not start."""


class ForkServer:
    """A client of a fork server."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._lock = threading.Lock()

    def close(self) -> None:
        """Let it end, if it was started here."""
        self._requests.close()

    def request(self, content: bytes, descriptors: Sequence[int]) -> socket.socket:
        """Send a request; return the socket on which the server responds to it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        file = os.memfd_create("request")
        try:
            os.write(file, content)
            os.lseek(file, 0, os.SEEK_SET)
            with self._lock:
                socket.send_fds(self._requests, [b"request"], [theirs.fileno(), file, *descriptors])
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
    """Start a fork server, which ends when the returned server's socket is closed, and first imports `preload`.

    `errors` is the descriptor of its output, standard error by default; with `session`, it and its children get a new
    session and process group.
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
_current: list[ForkServer] = []  # the server of this process, once it is started
_processes: list["subprocess.Popen[bytes]"] = []  # kept, so that the process can be reaped


def adopt(requests: socket.socket) -> None:
    """Use the server that forked this process."""
    _current[:] = [ForkServer(requests)]
    _processes.clear()


def _server() -> ForkServer:
    with _lock:
        if _processes and _processes[0].poll() is not None:
            _current.clear()  # it was killed: start another one
        if not _current:
            server, process = start()
            _current[:], _processes[:] = [server], [process]
        return _current[0]


def name_of(function: Callable[..., Any]) -> str:
    """Return the "module:name" by which a child finds a function."""
    return f"{function.__module__}:{function.__qualname__}"


def _title(call: str) -> str:
    """Return the name of a child in `ps` and `top`, since all have the server's command line."""
    module = call.partition(":")[0].removesuffix(".__main__")
    return module.rpartition(".")[2][:_TITLE]


class Child:
    """A function that runs in a child process; leaving the context kills it."""

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
        """Start it; raises OSError if that fails.

        `call` returns an exit code, or is the "module:name" of what does, to avoid importing it; it gets the
        `arguments` and the `descriptors`. `memory_bytes` is its RLIMIT_DATA; the server imports `preload` first, for
        this child and later ones. `stdin` is /dev/null by default, `environment` and `server` are this process's.
        """
        name = call if isinstance(call, str) else name_of(call)
        request = ForkRequest(
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
        content = json.dumps(vars(request)).encode()
        with open(os.devnull, "rb") as nothing:
            streams = (nothing.fileno() if stdin is None else stdin, output, *descriptors)
            self._line = (server or _server()).request(content, streams)
        try:
            message, received, _, _ = socket.recv_fds(self._line, _MESSAGE, 1)
        except ConnectionError:
            message, received = b"", []
        if not message:
            self._line.close()
            raise ForkServerEndedError("the fork server has ended")
        started = Started(**json.loads(message))
        if started.pid is None:
            self._line.close()
            number = started.error or 0
            raise OSError(number, os.strerror(number))
        self.pid: int = started.pid
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
        """Wait for up to `seconds`; return how it ended, or None if it is still running."""
        if self._end is None:
            ready = select.poll()
            ready.register(self._line, select.POLLIN)
            if not ready.poll(None if seconds is None else seconds * 1000):
                return None
            try:
                message = self._line.recv(_MESSAGE)
            except ConnectionError:
                message = b""
            # the children of a server that was killed are killed too
            self._end = End(**json.loads(message)) if message else End(-signal.SIGKILL, 0)
        return self._end

    def processor_seconds(self) -> float:
        """Return the CPU time of all its threads; 0 once it has ended."""
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
