"""Our server at saturation for minutes: errors, and whether its memory grows."""

import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.serving import cases, load, processes
from bench.serving.exchange import WrongAnswerError, check, request
from bench.serving.load import LoadError
from bench.serving.run import listens
from bench.serving.servers import Server, port_of, running

_SEGMENT_SECONDS: Final = 15.0  # between two samples of the memory
_CONNECTIONS: Final = 32
_GROWTH_MB: Final = 5.0  # that the second half may add to the first


def soak(server: Server, folder: Path, minutes: float) -> int:
    """Print memory and rate over time; return an exit code: 1 for errors or growth."""
    case = cases.read(folder / "tiny")
    memory: list[float] = []
    failures: list[str] = []
    print("| minute | requests/s | p99 at 32, µs | RSS MB |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as work, running(server, case, Path(work)) as process:
        transports = [each for each in server.transports if listens(port_of(each))]
        requests = {each: request(each, case, server.path) for each in transports}
        began = time.monotonic()
        turn = 0
        while time.monotonic() - began < minutes * 60:
            transport = transports[turn % len(transports)]
            turn += 1
            port = port_of(transport)
            try:
                found = load.measure(
                    requests[transport],
                    port,
                    process,
                    check(requests[transport], case, port),
                    connections=_CONNECTIONS,
                    seconds=_SEGMENT_SECONDS,
                )
            except (LoadError, WrongAnswerError, OSError) as error:
                failures.append(f"{transport}: {error}")
                print(f"FAILED {failures[-1]}", file=sys.stderr)
                time.sleep(1)
                continue
            memory.append(processes.resident_mb(process))
            minute = (time.monotonic() - began) / 60
            print(
                f"| {minute:.1f} | {found.per_second:,.0f} | {found.p99_us:,.0f}"
                f" | {memory[-1]:.1f} |",
                flush=True,
            )
    grown = growth(memory)
    print(f"{len(failures)} failures; memory grew by {grown:.1f} MB from half to half")
    return int(bool(failures) or grown > _GROWTH_MB)


def growth(memory: list[float]) -> float:
    """Return by how much the largest value of the second half exceeds that of the first, in MB."""
    half = len(memory) // 2
    return max(memory[half:], default=0.0) - max(memory[:half] or memory[half:], default=0.0)
