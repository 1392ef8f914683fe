"""A well-behaved client beside hostile connections: its latency, as a ratio to that alone.

Connections that idle or are malformed, fewer than the server keeps open, may at most double p99. Hundreds that send
bodies slowly may do more, when much of that arrives at once; floods of thousands that reconnect, or send as fast as
they can, take all of the server's core: beside them no request may fail.

Server and clients have a core each. The measuring client shares its core with the hostile ones, with a higher
priority where that is allowed.
"""

import contextlib
import math
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final

import numpy as np
from enginewright_contract.task import LIVE_PATH

from bench.serving import cases, cores, processes
from bench.serving.exchange import BINARY, Request, check, request
from bench.serving.servers import GRPC_PORT, HTTP_PORT, Server, running
from tests.support.floods import GRPC, GRPC_KINDS, HTTP, KINDS, flood_with

_CONNECTIONS: Final = 2000
_KEPT: Final = 900  # fewer than a server keeps open
_SLOW: Final = {
    HTTP: ("idle", "malformed", "heads", "slow heads", "slow bodies"),
    GRPC: ("idle", "begun", "slow messages"),
}
_RATIO: Final = 2.0  # of p99, except beside the following
_SENDING: Final = ("slow bodies", "slow messages")
_WINDOWS: Final = 9  # of which the median counts, because of other load on the machine
_SECONDS: Final = 1.0  # of each measurement
_SETTLED_SECONDS: Final = 2.0  # in which the server has accepted connections and detected slow ones
_PAUSE_SECONDS: Final = 0.001  # between an answer and the next request
_TIMEOUT_SECONDS: Final = 10.0
_LIMIT_SECONDS: Final = 420.0  # after which no further kind begins
_FIRST: Final = -10  # niceness of the measuring client
_PORTS: Final = {HTTP: HTTP_PORT, GRPC: GRPC_PORT}
# of the server once all clients are gone: free memory that its allocator keeps (`memory.py`), and some MB
_GROWTH_MB: Final = 150.0
_HEAD: Final = (
    *("connections", "port", "kind", "p50, µs", "p99, µs", "p99 alone, µs", "ratio of p99"),
    *("failures", "new connection, ms", "MB more meanwhile"),
)


@dataclass(frozen=True)
class Beside:
    """The figures of an HTTP client beside one kind of hostile clients; times in µs."""

    connections: int
    port: str
    kind: str
    p50: float
    p99: float
    p99_alone: float
    failures: int  # of its requests, and of its new connection
    connection_ms: float  # until a new connection's first answer, or NaN
    grown_mb: float  # resident memory of the server, compared with that before

    @property
    def ratio(self) -> float:
        """How many times slower the slowest requests are."""
        return self.p99 / self.p99_alone

    def row(self) -> str:
        """Return a row of the table."""
        return (
            f"| {self.connections:,} | {self.port} | {self.kind} | {self.p50:,.0f} | {self.p99:,.0f}"
            f" | {self.p99_alone:,.0f} | {self.ratio:.1f} | {self.failures}"
            f" | {self.connection_ms:,.0f} | {self.grown_mb:.1f} |"
        )


@dataclass(frozen=True)
class Hostile:
    """The result."""

    beside: list[Beside]
    left_out: list[str]  # kinds for which there was no time
    grown_mb: float  # resident memory of the server once all clients were gone

    @property
    def problems(self) -> list[str]:
        """What exceeds the limits."""
        problems = [
            f"{beside.port} {beside.kind}: {beside.failures} failures"
            for beside in self.beside
            if beside.failures
        ]
        problems += [
            f"beside {beside.connections} {beside.port} {beside.kind} p99 is {beside.ratio:.1f} times as long"
            for beside in self.beside
            if beside.connections == _KEPT and beside.kind not in _SENDING and beside.ratio > _RATIO
        ]
        if self.left_out:
            problems.append(f"no time for {', '.join(self.left_out)}")
        if self.grown_mb > _GROWTH_MB:
            problems.append(
                f"the server has kept {self.grown_mb:.1f} MB, more than {_GROWTH_MB:.0f}"
            )
        return problems


def compare(server: Server, folder: Path) -> Hostile:
    """Print the latencies of our server alone and beside each kind, and return them."""
    case = cases.read(folder / "tiny")
    figures: list[Beside] = []
    kinds = [(_KEPT, port, kind) for port, slow in _SLOW.items() for kind in slow]
    for port, every in ((HTTP, KINDS), (GRPC, GRPC_KINDS)):
        kinds += [(_CONNECTIONS, port, kind) for kind in every]
    end = time.monotonic() + _LIMIT_SECONDS
    print(f"| {' | '.join(_HEAD)} |\n{'|---' * len(_HEAD)}|", flush=True)
    with tempfile.TemporaryDirectory() as work, running(server, case, Path(work)) as process:
        sent = request(BINARY, case, server.path)
        check(sent, case, HTTP_PORT)
        _latencies(sent)  # memory that is allocated once is no growth
        p99_alone = math.nan
        before = processes.resident_mb(process)
        for connections, port, kind in kinds:
            if time.monotonic() > end:
                break
            if connections == _KEPT:  # the first ones; the machine's speed changes
                p99_alone = _percentile([_latencies(sent)[0] for _ in range(_WINDOWS)], 99)
            figures.append(_measure(connections, port, kind, sent, process, p99_alone))
            print(figures[-1].row(), flush=True)
        _latencies(sent)
        grown = processes.resident_mb(process) - before
    left_out = [f"{port} {kind}" for _, port, kind in kinds[len(figures) :]]
    result = Hostile(figures, left_out, grown)
    print(f"\nThe server has kept {grown:.1f} MB more than before.")
    for problem in result.problems:
        print(f"FAILED: {problem}")
    return result


def _measure(
    connections: int, port: str, kind: str, sent: Request, process: int, p99_alone: float
) -> Beside:
    _latencies(sent)  # while the server closes the connections of the clients before
    before = processes.resident_mb(process)
    with _flood(port, kind, connections):
        if connections == _KEPT:
            time.sleep(_SETTLED_SECONDS)
        windows = [_latencies(sent) for _ in range(_WINDOWS if connections == _KEPT else 1)]
        connection = _new_connection_ms()
        after = processes.resident_mb(process)
    return Beside(
        connections,
        port,
        kind,
        p50=_percentile([took for took, _ in windows], 50),
        p99=_percentile([took for took, _ in windows], 99),
        p99_alone=p99_alone,
        failures=sum(failed for _, failed in windows) + math.isnan(connection),
        connection_ms=connection,
        grown_mb=after - before,
    )


def _percentile(windows: list[list[float]], percentile: float) -> float:
    """Return the median of the percentiles of each window."""
    return float(np.median([np.percentile(window, percentile) for window in windows]))


@contextmanager
def _flood(port: str, kind: str, connections: int) -> Iterator[None]:
    with contextlib.ExitStack() as flood:
        with cores.pin(cores.LOAD):
            yields = connections == _KEPT
            flood.enter_context(
                flood_with(_PORTS[port], kind, connections, protocol=port, yields=yields)
            )
        yield


def _latencies(sent: Request) -> tuple[list[float], int]:
    """Return the times of a new connection's answers in µs but for the first, and the number of failures."""
    took: list[float] = []
    failures = 0
    client = HTTPConnection("127.0.0.1", HTTP_PORT, timeout=_TIMEOUT_SECONDS)
    with cores.pin(cores.LOAD), _prefer(), contextlib.closing(client):
        end = time.monotonic() + _SECONDS
        while time.monotonic() < end or len(took) < 2:
            began = time.perf_counter()
            try:
                client.request("POST", sent.path, sent.body, dict(sent.headers))
                answer = client.getresponse()
                answer.read()
                failures += answer.status != 200
            except (OSError, HTTPException):
                failures += 1
                client.close()
            took.append((time.perf_counter() - began) * 1e6)
            time.sleep(_PAUSE_SECONDS)
    return took[1:], failures


def _new_connection_ms() -> float:
    """Return how long a kubelet's probe takes, which is a new connection, or NaN if it fails."""
    began = time.perf_counter()
    probe = HTTPConnection("127.0.0.1", HTTP_PORT, timeout=_TIMEOUT_SECONDS)
    try:
        with cores.pin(cores.LOAD), _prefer(), contextlib.closing(probe):
            probe.request("GET", LIVE_PATH)
            is_live = probe.getresponse().status == 200
    except (OSError, HTTPException):
        is_live = False
    return (time.perf_counter() - began) * 1e3 if is_live else math.nan


@contextmanager
def _prefer() -> Iterator[None]:
    """Have a higher priority than the hostile clients on the same core, where that is allowed."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _FIRST)
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, before)
