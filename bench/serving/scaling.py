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
    """Raise SystemExit unless there is a core for every run; the load generator hardly needs one."""
    have = len(os.sched_getaffinity(0))
    if have < most:
        raise SystemExit(f"{most} runs at a time need {most} cores, not {have}")


def scale(server: Server, folder: Path, most: int, seconds: float, rounds: int) -> int:
    """Print rates with several runs of the model at a time relative to one; return an exit code.

    All have the same cores, clients and threads. They take turns, and medians count. If other programs use
    the cores, pods may turn several runs off; the last column shows their share.
    """
    case = cases.read(folder / "recognition")
    window = max(seconds, _REQUESTS * _RUN_SECONDS)
    ratios: dict[int, list[float]] = defaultdict(list)
    print("| runs at most | runs | requests/s | of one | p50 ms | p99 ms | others |")
    print("|---|---|---|---|---|---|---|")
    for _ in range(rounds):
        one = 0.0
        for count in range(1, most + 1):
            figures, used = _measure_runs(replace(server, runs=count, cores=most), case, window)
            one = one or figures.per_second
            ratios[count].append(figures.per_second / one)
            why = f" ({used['off']})" if used["off"] and count > 1 else ""
            print(
                f"| {count} | {used['max_runs']}{why} | {figures.per_second:,.1f}"
                f" | {ratios[count][-1]:.2f} | {figures.p50_us / 1e3:.1f}"
                f" | {figures.p99_us / 1e3:.1f}"
                f" | {figures.others:.0%} |",
                flush=True,
            )
    for count, ratio in ratios.items():
        print(f"{count} at most: {median(ratio):.2f} of one")
    return 0


def _measure_runs(
    server: Server, case: Case, seconds: float
) -> tuple[load.Figures, dict[str, Any]]:
    """Return the figures of a server, and its own report on concurrent runs."""
    with (
        tempfile.TemporaryDirectory() as work,
        running(server, case, Path(work)) as process,
    ):
        sent = request(BINARY, case, server.path)
        size = check(sent, case, HTTP_PORT)
        figures = load.measure(
            sent,
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
    return figures, used
