"""Load from h2load, measured in a window: rate, latencies, and the server's CPU time per request.

h2load writes one line per answered request (start, status, duration), so that everything is computed
from the requests that ended within the window in which the CPU time was read. An answer that is not
200, or shorter than the one that was checked, fails the measurement: an error never counts as speed.
"""

import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from bench.serving import cores, processes
from bench.serving.exchange import GRPC, Request

_INSTALL: Final = "h2load is missing: apt-get install nghttp2-client"
_END_SECONDS: Final = 0.2  # after the window
_SMALLEST_SHARE: Final = 0.95  # of the checked answer's bytes: names and identifiers in it vary
_LINE: Final = re.compile(
    r"requests: (?P<total>\d+) total.* (?P<done>\d+) done, \d+ succeeded,"
    r" (?P<failed>\d+) failed, (?P<errored>\d+) errored, (?P<timeout>\d+) timeout"
)
_DATA: Final = re.compile(r"traffic: .*\((?P<data>\d+)\) data")


class LoadError(Exception):
    """Answers were wrong, so that the figures mean nothing."""


@dataclass(frozen=True)
class Figures:
    """One measurement; times in µs."""

    requests: int
    per_second: float
    p50_us: float
    p99_us: float
    cpu_us: float
    others: float  # share of the cores that other programs took


def require_h2load() -> None:
    """Raise SystemExit where the load generator is missing."""
    if shutil.which("h2load") is None:
        raise SystemExit(_INSTALL)


def measure(
    request: Request,
    port: int,
    process: int,
    size: int,
    *,
    connections: int,
    seconds: float,
    core: int = cores.LOAD,
) -> Figures:
    """Put load on a server, and return the figures of a window.

    Args:
        request: what every connection sends again as soon as it is answered.
        port: the server's.
        process: whose tree's CPU time counts.
        size: of the checked answer's body, in bytes.
        connections: number of them, each with one request at a time.
        seconds: length of the window, after a quarter of it for warming up.
        core: of the load generator.

    Raises:
        LoadError: Answers were wrong, or none came.
    """
    lines, before, after = generate(
        request, port, process, size, connections=connections, seconds=seconds, core=core
    )
    return figures(lines, before, after)


def generate(
    request: Request,
    port: int,
    process: int,
    size: int,
    *,
    connections: int,
    seconds: float,
    core: int = cores.LOAD,
) -> tuple[NDArray[np.int64], "Moment", "Moment"]:
    """Put the same load on a server; return h2load's log of all answers, and the ends of the window.

    Raises:
        LoadError: Answers were wrong, or none came.
    """
    with tempfile.TemporaryDirectory() as folder:
        body, log = Path(folder) / "body", Path(folder) / "log"
        body.write_bytes(request.payload)
        warm = seconds / 4
        command = _command(request, port, connections, warm + seconds + _END_SECONDS, body, log)
        with cores.pin(core):
            generator = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        try:
            time.sleep(warm)
            before = Moment.now(process, generator.pid)
            time.sleep(seconds)
            after = Moment.now(process, generator.pid)
            output, _ = generator.communicate(timeout=seconds + 120)
        finally:
            generator.kill()
            generator.wait()
        lines = np.array(log.read_text().split(), np.int64).reshape(-1, 3)
    inspect(output, lines, size)
    return lines, before, after


def press(request: Request, port: int, *, connections: int, seconds: float) -> None:
    """Put load on a server that may be too slow to answer it all, without figures."""
    with tempfile.TemporaryDirectory() as folder:
        body, log = Path(folder) / "body", Path(folder) / "log"
        body.write_bytes(request.payload)
        command = _command(request, port, connections, seconds, body, log)
        with cores.pin(cores.LOAD):
            subprocess.run(command, check=False, stdout=subprocess.DEVNULL, timeout=seconds + 120)


@dataclass(frozen=True)
class Moment:
    """A time since the epoch, and CPU times until then; all in seconds."""

    time: float
    server: float
    generator: float
    busy: float  # the cores that both have

    @classmethod
    def now(cls, server: int, generator: int) -> Self:
        """Read the clocks of two processes."""
        return cls(
            time.time(),
            processes.cpu_seconds(server),
            processes.cpu_seconds(generator),
            processes.busy_seconds(cores.find_cores()),
        )


def inspect(output: str, lines: NDArray[np.int64], size: int) -> None:
    """Raise LoadError unless all answers were successful, and their bodies about `size` bytes long.

    h2load's log is (N, 3): start in µs since the epoch, status, duration in µs.
    """
    summary, traffic = _LINE.search(output), _DATA.search(output)
    if summary is None or traffic is None:
        raise LoadError(f"h2load: {output.strip()[-300:]}")
    if not len(lines):
        raise LoadError("no answers")
    codes, counts = np.unique(lines[:, 1], return_counts=True)
    if codes.tolist() != [200]:
        raise LoadError(f"answers by status: {dict(zip(codes, counts, strict=True))}")
    if lost := sum(int(summary[item]) for item in ("failed", "errored", "timeout")):
        raise LoadError(f"{lost} of {summary['total']} requests failed")
    if int(traffic["data"]) < _SMALLEST_SHARE * size * len(lines):
        raise LoadError(f"{traffic['data']} bytes in {len(lines)} answers of {size}")


def figures(lines: NDArray[np.int64], before: Moment, after: Moment) -> Figures:
    """Return the figures of the requests in h2load's log that ended within a window.

    Raises:
        LoadError: None ended within it.
    """
    ends = (lines[:, 0] + lines[:, 2]) / 1e6
    durations = lines[(ends >= before.time) & (ends < after.time), 2]
    length = after.time - before.time
    if not len(durations):
        raise LoadError(f"no answer within {length:.1f} s")
    p50, p99 = np.percentile(durations, (50, 99))
    server, generator = after.server - before.server, after.generator - before.generator
    others = after.busy - before.busy - server - generator
    return Figures(
        requests=len(durations),
        per_second=len(durations) / length,
        p50_us=float(p50),
        p99_us=float(p99),
        cpu_us=server / len(durations) * 1e6,
        others=max(0.0, others / (length * len(cores.find_cores()))),
    )


def _command(
    request: Request, port: int, connections: int, seconds: float, body: Path, log: Path
) -> list[Any]:
    protocol = [] if request.transport == GRPC else ["--h1"]
    headers = [f"--header={name}: {value}" for name, value in request.headers.items()]
    return [
        *("h2load", *protocol, "--threads=1", f"--clients={connections}"),
        *(f"--duration={round(seconds * 1000)}ms", f"--data={body}", f"--log-file={log}"),
        *(*headers, f"http://127.0.0.1:{port}{request.path}"),
    ]
