"""Our server with 1, 2, … processes, each with a core of its own: how much more they answer."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.serving import cases, load, processes
from bench.serving.cores import SERVER
from bench.serving.exchange import check, request
from bench.serving.servers import Server, port_of, running

_CONNECTIONS: Final = 64  # for each process: the kernel spreads few connections unevenly


def require_cores(most: int) -> None:
    """Raise SystemExit where there is no core for every process and one for the load generator."""
    have = len(os.sched_getaffinity(0))
    if most > 1 and have <= most:
        raise SystemExit(
            f"{most} processes and the load generator need {most + 1} cores, not {have}"
        )


def scale(server: Server, folder: Path, most: int, seconds: float) -> int:
    """Print rates relative to one process, and what a request and a process cost; return an exit code.

    Args:
        server: ours.
        folder: with the model `tiny`.
        most: number of processes.
        seconds: length of each measurement.
    """
    case = cases.read(folder / "tiny")
    single: dict[str, float] = {}  # requests per second of one process, by transport
    print("| processes | transport | requests/s | of one | CPU per request, µs | PSS MB |")
    print("|---|---|---|---|---|---|")
    for count in range(1, most + 1):
        several = replace(server, processes=count)
        with (
            tempfile.TemporaryDirectory() as work,
            running(several, case, Path(work)) as process,
        ):
            for transport in server.transports:
                asked, port = request(transport, case, server.path), port_of(transport)
                found = load.measure(
                    asked,
                    port,
                    process,
                    check(asked, case, port),
                    connections=_CONNECTIONS * count,
                    seconds=seconds,
                    core=SERVER + count,
                )
                one = single.setdefault(transport, found.per_second)
                print(
                    f"| {count} | {transport} | {found.per_second:,.0f}"
                    f" | {found.per_second / one:.2f} | {found.cpu_us:.1f}"
                    f" | {processes.proportional_mb(process):.0f} |",
                    flush=True,
                )
    return 0
