"""A steady client beside hostile connections: whether our server, Triton and one on uvicorn answer it, and how soon.

Connections that idle or are malformed, fewer than our server keeps open, may at most double its p99. Hundreds that send
bodies slowly may do more, when much of that arrives at once; floods of thousands that reconnect, or send as fast as
they can, take all of the server's core: beside them no request and no probe may fail. Peers have no limits.

Server and clients have a core each. The steady client shares its core with the hostile ones, with a higher
priority where that is allowed. Memory is limited as a pod's: a server that exceeds it, or ends, or has no answer once
the hostile clients are gone, is started again for the next kind.
"""

import json
import os
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.serving import cases, cores, environments, processes
from bench.serving.cases import Case
from bench.serving.exchange import BINARY, WrongAnswerError, check, request
from bench.serving.hostile_results import (
    ENDED,
    FLOOD,
    KEPT,
    MEMORY_MB,
    NO_ANSWER,
    OUT_OF_MEMORY,
    PROBES,
    Beside,
    Comparison,
    Served,
)
from bench.serving.memory_limit import MemoryLimit
from bench.serving.servers import (
    GRPC_PORT,
    HTTP_PORT,
    OURS,
    TRITON,
    NotStartedError,
    Server,
    running,
)
from bench.serving.steady_client import SteadyClient, Window, probe
from tests.support.floods import (
    GRPC,
    GRPC_KINDS,
    HTTP,
    KINDS,
    NotConnectedError,
    flood_with,
)

COMPARED: Final = (OURS, TRITON, "KServe")  # whose HTTP server is FastAPI on uvicorn
PACKAGES: Final = (
    ("triton", "nvidia-pytriton"),
    ("kserve", "uvicorn"),
    ("kserve", "fastapi"),
    ("kserve", "grpcio"),
)
_SLOW: Final = {
    HTTP: ("idle", "malformed", "heads", "slow heads", "slow bodies"),
    GRPC: ("idle", "begun", "slow messages"),
}
_OF_TLS: Final = ("half hellos", "hellos", "hello storm")  # Triton's HTTP port has none
_WINDOWS: Final = 5  # of which the median counts, because of other load on the machine
_ALONE_WINDOWS: Final = 3  # likewise
_SECONDS: Final = 1.0  # of each window
_SETTLED_SECONDS: Final = 2.0  # in which a server has accepted connections and detected slow ones
_REST_SECONDS: Final = 5.0  # in which the server frees what the last ones left
_CONNECT_SECONDS: Final = 15.0  # that hostile clients may take to connect
_LIMIT_SECONDS: Final = 720.0  # of all servers, after which no further kind begins
_PORTS: Final = {HTTP: HTTP_PORT, GRPC: GRPC_PORT}


def read_versions() -> dict[str, str]:
    """Return those of the peers' packages that meet the hostile clients."""
    return {package: environments.read_locked_version(peer, package) for peer, package in PACKAGES}


def compare(servers: Sequence[Server], folder: Path, comparison: Comparison) -> None:
    """Add the results of servers, and print them."""
    case = cases.read(folder / "tiny")
    end = time.monotonic() + _LIMIT_SECONDS
    for server in servers:
        print(f"\n{server.name}: p50 / p99, ms; most MB meanwhile, MB afterwards", flush=True)
        try:
            comparison.servers.append(_Trial(server, case).run(end))
        except NotStartedError as error:
            comparison.absent[server.name] = str(error)


def _list_kinds() -> list[tuple[int, str, str]]:
    kinds = [(KEPT, port, kind) for port, slow in _SLOW.items() for kind in slow]
    for port, every in ((HTTP, KINDS), (GRPC, GRPC_KINDS)):
        kinds += [(FLOOD, port, kind) for kind in every if kind not in _OF_TLS]
    return kinds


class _Trial:
    """One server beside all kinds."""

    def __init__(self, server: Server, case: Case) -> None:
        self._server = server
        self._case = case
        self._sent = request(BINARY, case, server.path)
        self._client = SteadyClient(self._sent, case)
        self._alone_p99_us = 0.0

    def run(self, end: float) -> Served:
        """Start the server, again where it ends, until all kinds have been there, or until a time.

        Raises:
            NotStartedError: It does not become ready the first time.
        """
        served = Served(self._server.name)
        kinds = _list_kinds()
        others: list[float] = []
        while kinds and time.monotonic() < end:
            try:
                with self._running() as (process, limit):
                    if not served.version:
                        served.version = _read_version()
                        served.before_mb = processes.resident_mb(process)
                    while kinds and time.monotonic() < end:
                        connections, port, kind = kinds.pop(0)
                        if connections == KEPT:
                            others.append(self._measure_alone())
                        beside = self._measure(connections, port, kind, process, limit)
                        served.beside.append(beside)
                        print(_show(beside), flush=True)
                        if beside.end:
                            break
                    else:
                        time.sleep(_REST_SECONDS)
                        served.after_mb = processes.resident_mb(process)
            except NotStartedError:
                if not served.version:
                    raise
                break
        served.others = float(np.mean(others)) if others else 0.0
        served.left_out = [f"{connections:,} {port} {kind}" for connections, port, kind in kinds]
        return served

    @contextmanager
    def _running(self) -> Iterator[tuple[int, MemoryLimit]]:
        with ExitStack() as stack:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            process = stack.enter_context(running(self._server, self._case, work))
            limit = MemoryLimit(process, MEMORY_MB)
            stack.enter_context(limit.enforce())
            try:
                check(self._sent, self._case, HTTP_PORT)
            except (WrongAnswerError, OSError) as error:
                raise NotStartedError(f"{self._server.name} does not answer: {error}") from error
            self._client.ask(_SECONDS)  # memory that is allocated once is no growth
            yield process, limit

    def _measure_alone(self) -> float:
        """Return the share of the cores that other programs take meanwhile."""
        began, busy = time.monotonic(), processes.busy_seconds(cores.find_cores())
        own = processes.cpu_seconds(os.getpid())
        windows = [self._client.ask(_SECONDS) for _ in range(_ALONE_WINDOWS)]
        self._alone_p99_us = _median([window.p99_us for window in windows]) or self._alone_p99_us
        own = processes.cpu_seconds(os.getpid()) - own
        busy = processes.busy_seconds(cores.find_cores()) - busy
        return max(0.0, busy - own) / ((time.monotonic() - began) * len(cores.find_cores()))

    def _measure(
        self, connections: int, port: str, kind: str, process: int, limit: MemoryLimit
    ) -> Beside:
        limit.highest_mb = 0.0
        try:
            with _flood(connections, port, kind):
                windows, probes = self._meet(connections)
        except NotConnectedError:  # the server has ended, or accepts no client
            windows, probes = [Window(failed=1)], 0
        peak = limit.highest_mb
        end = self._why_over(process, limit)
        return Beside(
            connections,
            port,
            kind,
            answered=sum(window.answered for window in windows),
            failed=sum(window.failed for window in windows),
            p50_us=_median([window.p50_us for window in windows]),
            p99_us=_median([window.p99_us for window in windows]),
            alone_p99_us=self._alone_p99_us,
            probes=probes,
            peak_mb=peak,
            after_mb=None if end else processes.resident_mb(process),
            end=end,
        )

    def _meet(self, connections: int) -> tuple[list[Window], int]:
        """Return what the steady client sees beside the hostile ones, and how many probes are answered."""
        if connections == KEPT:
            time.sleep(_SETTLED_SECONDS)
        windows: list[Window] = []
        for _ in range(_WINDOWS if connections == KEPT else 1):
            windows.append(self._client.ask(_SECONDS))
            if not windows[-1].answered:
                break  # nor will later ones be
        return windows, sum(probe(self._server.ready) for _ in range(PROBES))

    def _why_over(self, process: int, limit: MemoryLimit) -> str:
        """Return why the server cannot go on, after a pause in which it may close what the clients left."""
        if limit.is_exceeded:
            return OUT_OF_MEMORY
        if processes.has_ended(process):
            return ENDED
        return "" if self._client.ask(_SECONDS).answered else NO_ANSWER


@contextmanager
def _flood(connections: int, port: str, kind: str) -> Iterator[None]:
    with ExitStack() as flood:
        with cores.pin(cores.LOAD):
            yields = connections == KEPT
            clients = flood_with(
                _PORTS[port],
                kind,
                connections,
                protocol=port,
                yields=yields,
                connect_seconds=_CONNECT_SECONDS,
            )
            flood.enter_context(clients)
        yield


def _median(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return float(np.median(numbers)) if numbers else None


def _read_version() -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{HTTP_PORT}/v2", timeout=10) as answer:
        about: dict[str, Any] = json.load(answer)
    return str(about["version"])


def _show(beside: Beside) -> str:
    after = "" if beside.after_mb is None else f"{beside.after_mb:,.0f}"
    return f"| {beside.name} | {beside.text} | {beside.peak_mb:,.0f} | {after} |"
