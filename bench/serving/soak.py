"""Our server at saturation for minutes: errors, and whether memory, threads or open files grow.

Both protocols are saturated at once. In turn, that is beside clients that disconnect during a request or before its
answer and a few hostile clients of alternating kinds; and beside a mixture of clients over both protocols, with
deadlines, priorities, cancellations, copies, and requests of many lengths, which run together, padded. Of these
every answer is compared with its request, and the server's counts with what all clients have sent.
"""

import contextlib
import json
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Final

from bench.serving import cases, cores, load, processes
from bench.serving.cases import Case
from bench.serving.exchange import BINARY, MODEL, Request, WrongAnswerError, check, request
from bench.serving.load import Figures, LoadError
from bench.serving.repeating import repeat
from bench.serving.run import listens
from bench.serving.servers import GRPC_PORT, HTTP_PORT, Server, port_of, running
from tests.support.floods import GRPC, HTTP, flood_with
from tests.support.tally import Counts, Tally

_SEGMENT_SECONDS: Final = 12.0  # between two samples of what the server holds
_SETTLE_SECONDS: Final = 5.0  # in which it has closed the connections of clients that are gone
_CONNECTIONS: Final = 32  # of each protocol
_HOSTILE: Final = 32  # connections; more would take the load generators' core
_LEAVE_SECONDS: Final = 0.005  # between two clients that leave
_KINDS: Final = (
    (HTTP, "slow heads"),
    (GRPC, "slow messages"),
    (HTTP, "slow bodies"),
    (GRPC, "begun"),
    (HTTP, "refused"),
    (GRPC, "unread calls"),
    (HTTP, "storm"),
    (GRPC, "storm"),
)
_MIXTURE: Final = ("a", "mixture")
_MIXED: Final = 8  # clients
_MIXTURE_SECONDS: Final = 120.0  # that their last acts may take
_NONE_LEFT_SECONDS: Final = 10.0  # until the server has ended what they left
_IN_FLIGHT: Final = "enginewright_requests_in_flight{"
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets the connection


class MixtureError(Exception):
    """An answer was not its request's, or the server counted other requests than there were."""


@dataclass(frozen=True)
class Held:
    """What the server holds while it has no clients."""

    memory_mb: float
    threads: int
    files: int

    @classmethod
    def now(cls, process: int) -> "Held":
        """Read it, of all the server's processes."""
        pids = processes.tree(process)
        return cls(
            processes.resident_mb(process), *(_entries(pids, name) for name in ("task", "fd"))
        )


# that the second half may add to the first
_ALLOWED: Final = Held(memory_mb=5.0, threads=0, files=2)


def soak(server: Server, folder: Path, minutes: float) -> int:
    """Print rates and what the server holds over time; return an exit code: 1 for errors or growth."""
    case = cases.read(folder / "lengths")
    held: list[Held] = []
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as work, running(server, case, Path(work)) as process:
        transports = [transport for transport in server.transports if listens(port_of(transport))]
        requests = {transport: request(transport, case, server.path) for transport in transports}
        sizes = {
            transport: check(requests[transport], case, port_of(transport))
            for transport in transports
        }
        rates = "".join(f" {transport}/s | p99, µs |" for transport in transports)
        print(f"| minute | hostile |{rates} RSS MB | threads | files |")
        print(f"|{'---|' * (5 + 2 * len(transports))}")
        idle = Held.now(process)
        began = time.monotonic()
        for hostile in cycle(turn for kind in _KINDS for turn in (_MIXTURE, kind)):
            if time.monotonic() - began >= minutes * 60:
                break
            try:
                if hostile == _MIXTURE:
                    rates_now = _mix(requests, sizes, process, case)
                else:
                    rates_now = _segment(requests, sizes, process, hostile)
                for transport in transports:
                    check(requests[transport], case, port_of(transport))
            except (LoadError, WrongAnswerError, MixtureError, OSError) as error:
                failures.append(f"beside {' '.join(hostile)}: {error}")
                print(f"FAILED {failures[-1]}", file=sys.stderr)
                time.sleep(1)
                continue
            held.append(_settle(process, idle))
            figures = "".join(
                f" {item.per_second:,.0f} | {item.p99_us:,.0f} |" for item in rates_now
            )
            now = held[-1]
            print(
                f"| {(time.monotonic() - began) / 60:.1f} | {' '.join(hostile)} |{figures}"
                f" {now.memory_mb:.1f} | {now.threads} | {now.files} |",
                flush=True,
            )
    grown = growth_of(held)
    print(f"{len(failures)} failures; from half to half grew: {grown or 'nothing'}")
    return int(bool(failures or grown or not held))


def growth(values: Sequence[float]) -> float:
    """Return by how much the largest value of the second half exceeds that of the first."""
    half = len(values) // 2
    return max(values[half:], default=0.0) - max(values[:half] or values[half:], default=0.0)


def growth_of(held: Sequence[Held]) -> str:
    """Return what grew by more than is allowed from half to half, as text."""
    growths = {
        "MB of memory": (growth([item.memory_mb for item in held]), _ALLOWED.memory_mb),
        "threads": (growth([item.threads for item in held]), _ALLOWED.threads),
        "open files": (growth([item.files for item in held]), _ALLOWED.files),
    }
    return ", ".join(f"{name} by {by:.1f}" for name, (by, most) in growths.items() if by > most)


def _segment(
    requests: dict[str, Request], sizes: dict[str, int], process: int, hostile: tuple[str, str]
) -> list[Figures]:
    """Saturate all transports for a while.

    Raises:
        LoadError: an answer was wrong, or none came.
    """
    protocol, kind = hostile
    with contextlib.ExitStack() as others, ThreadPoolExecutor(len(requests)) as pool:
        with cores.pin(cores.LOAD):
            port = GRPC_PORT if protocol == GRPC else HTTP_PORT
            others.enter_context(flood_with(port, kind, _HOSTILE, protocol=protocol))
        others.enter_context(_leaving(requests[BINARY]))
        loads = pool.map(partial(_put_load, requests, sizes, process), requests)
        return [figures for _, figures in loads]


def _mix(
    requests: dict[str, Request], sizes: dict[str, int], process: int, case: Case
) -> list[Figures]:
    """Saturate all transports for a while, beside the mixture of clients.

    Raises:
        LoadError: an answer was wrong, or none came.
        MixtureError: as it says.
    """
    before = _read_counts()
    arguments = (case.root, json.dumps(case.task), HTTP_PORT, GRPC_PORT, _SEGMENT_SECONDS, _MIXED)
    command = [sys.executable, "-m", "tests.support.mixture", *map(str, arguments)]
    with cores.pin(cores.LOAD):
        mixture = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        with ThreadPoolExecutor(len(requests)) as pool:
            loads = list(pool.map(partial(_put_load, requests, sizes, process), requests))
        output, _ = mixture.communicate(timeout=_MIXTURE_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise MixtureError(f"not all clients have ended {error.timeout:g} s later") from error
    finally:
        mixture.kill()
        mixture.wait()
    if mixture.returncode != 0:
        raise MixtureError(f"the clients ended with {mixture.returncode}")
    tally = Tally.read(json.loads(output))
    tally.answered[200] += sum(count for count, _ in loads)
    tally.unsure += _CONNECTIONS * len(loads)  # whose last request the load generator gave up
    _wait_for_the_last()
    if wrong := [*tally.wrong[:5], *tally.list_miscounts(before, _read_counts())]:
        raise MixtureError("; ".join(wrong))
    return [figures for _, figures in loads]


def _put_load(
    requests: dict[str, Request], sizes: dict[str, int], process: int, transport: str
) -> tuple[int, Figures]:
    """Saturate one transport for a while; return the number of answers, and the figures of the window."""
    lines, before, after = load.generate(
        requests[transport],
        port_of(transport),
        process,
        sizes[transport],
        connections=_CONNECTIONS,
        seconds=_SEGMENT_SECONDS,
    )
    return len(lines), load.figures(lines, before, after)


def _read_counts() -> Counts:
    return Counts.read(_get("/metrics").decode(), json.loads(_get(f"/v2/models/{MODEL}/stats")))


def _wait_for_the_last() -> None:
    """Wait until no request is in flight."""
    end = time.monotonic() + _NONE_LEFT_SECONDS
    while time.monotonic() < end:
        lines = _get("/metrics").decode().splitlines()
        if all(float(line.split()[-1]) == 0 for line in lines if line.startswith(_IN_FLIGHT)):
            return
        time.sleep(0.1)
    raise MixtureError(f"requests are in flight {_NONE_LEFT_SECONDS:g} s after the last client")


def _get(path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{HTTP_PORT}{path}", timeout=10) as answer:
        body: bytes = answer.read()
    return body


@contextmanager
def _leaving(sent: Request) -> Iterator[None]:
    """Have clients that send a request, or a part of it, and leave without its answer."""
    fields = "".join(f"{name}: {value}\r\n" for name, value in sent.headers.items())
    length = f"Content-Length: {len(sent.payload)}\r\n"
    head = f"POST {sent.path} HTTP/1.1\r\nHost: h\r\n{fields}{length}\r\n"
    whole = head.encode() + sent.payload
    parts = cycle((whole, whole[: len(head) + 1], whole[: len(head) // 2]))

    def leave(_: threading.Event) -> None:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", HTTP_PORT)) as connection,
        ):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            connection.sendall(next(parts))

    with repeat(_LEAVE_SECONDS, leave):
        yield


def _settle(process: int, idle: Held) -> Held:
    """Return what the server holds, once it has as few files as at the beginning, or after a while."""
    end = time.monotonic() + _SETTLE_SECONDS
    while (held := Held.now(process)).files > idle.files and time.monotonic() < end:
        time.sleep(0.2)
    return held


def _entries(pids: Sequence[int], name: str) -> int:
    """Return the number of entries of a folder in /proc of all processes."""
    return sum(len(list(Path(f"/proc/{pid}/{name}").iterdir())) for pid in pids)
