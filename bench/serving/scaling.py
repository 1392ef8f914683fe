"""Our server with 1, 2, … runs of the model at a time: how much more they answer."""

import json
import os
import tempfile
import urllib.request
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.serving import cases, load
from bench.serving.cases import Case
from bench.serving.cores import SERVER
from bench.serving.exchange import BINARY, MODEL, check, request
from bench.serving.servers import HTTP_PORT, Server, running

_CLIENTS: Final = 3  # for each run at a time
_REQUESTS: Final = 100  # of a measurement, at least, if a run takes 20 ms or less
_RUN_SECONDS: Final = 0.02


def require_cores(most: int) -> None:
    """Raise SystemExit where there is no core for every run; the few requests hardly cost the load generator any."""
    have = len(os.sched_getaffinity(0))
    if have < most:
        raise SystemExit(f"{most} runs at a time need {most} cores, not {have}")


def scale(server: Server, folder: Path, most: int, seconds: float, rounds: int) -> int:
    """Print rates with several runs of the model at a time relative to one; return an exit code.

    All have the same cores, clients and threads. They take turns, and medians count. Other programs on
    the cores have pods find several runs not worthwhile; the last column shows their share.

    Args:
        server: ours.
        folder: with the model `recognition`.
        most: number of runs at a time.
        seconds: length of each measurement, at least.
        rounds: number of measurements of each number of runs.
    """
    case = cases.read(folder / "recognition")
    window = max(seconds, _REQUESTS * _RUN_SECONDS)
    ratios: dict[int, list[float]] = defaultdict(list)
    print("| runs at most | runs | requests/s | of one | p50 ms | p99 ms | others |")
    print("|---|---|---|---|---|---|---|")
    for _ in range(rounds):
        one = 0.0
        for count in range(1, most + 1):
            found, used = _measure_runs(replace(server, runs=count, cores=most), case, window)
            one = one or found.per_second
            ratios[count].append(found.per_second / one)
            why = f" ({used['off']})" if used["off"] and count > 1 else ""
            print(
                f"| {count} | {used['max_runs']}{why} | {found.per_second:,.1f}"
                f" | {ratios[count][-1]:.2f} | {found.p50_us / 1e3:.1f} | {found.p99_us / 1e3:.1f}"
                f" | {found.others:.0%} |",
                flush=True,
            )
    for count, each in ratios.items():
        print(f"{count} at most: {median(each):.2f} of one")
    return 0


def _measure_runs(
    server: Server, case: Case, seconds: float
) -> tuple[load.Figures, dict[str, Any]]:
    """Return the figures of a server, and what it says of its runs at the same time."""
    with (
        tempfile.TemporaryDirectory() as work,
        running(server, case, Path(work)) as process,
    ):
        asked = request(BINARY, case, server.path)
        size = check(asked, case, HTTP_PORT)
        found = load.measure(
            asked,
            HTTP_PORT,
            process,
            size,
            connections=_CLIENTS * server.cores,
            seconds=seconds,
            core=SERVER + server.cores,
        )
        url = f"http://127.0.0.1:{HTTP_PORT}/v2/models/{MODEL}/execution"
        with urllib.request.urlopen(url, timeout=10) as answer:
            used: dict[str, Any] = json.load(answer)["details"]["concurrency"]
    return found, used
