"""`python -m bench.scale`: what the control plane costs, and how fast it is, at hundreds and thousands of models.

kube-apiserver, etcd, controller manager and scheduler are real, the operator is a process with the chart's rights.
Nodes and pods are kwok's, whose stages end at once: the figures are the control plane's own.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.scale.api import Api
from bench.scale.control_plane import REPOSITORY, start_control_plane
from bench.scale.models import Fleet, Timeline, apply_all, follow, prepare, wait_all
from bench.scale.operator_process import Operator

_FOLDER: Final = REPOSITORY / "build/bench/scale"
_IMAGE: Final = "example.com/enginewright/rtx:1"
_PATIENCE: Final = 120.0  # seconds without any progress
_IDLE: Final = 30.0  # seconds in which nothing changes


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


async def _measure(fleet: Fleet) -> dict[str, Any]:
    kind = "known" if fleet.known else "new"
    with start_control_plane(_FOLDER / f"{kind}-{fleet.count}") as plane:
        operator = Operator(plane, _IMAGE)
        operator.start()
        _say(f"{fleet.count} {kind} models: the cluster is up")
        operator.wait_settled(60)
        async with Api(plane.kubeconfig) as api:
            await prepare(api, fleet)
            timeline = Timeline()
            following = asyncio.create_task(follow(api, timeline))
            before = operator.usage()
            began = time.monotonic()
            await apply_all(api, fleet, timeline)
            _say(f"applied in {time.monotonic() - began:.1f} s")
            await wait_all(
                lambda: len(timeline.ready),
                fleet.count,
                _PATIENCE,
                lambda: "; ".join([*timeline.why.values()][:3]),
            )
            taken = timeline.changed - began
            _say(f"all ready after {taken:.1f} s: {fleet.count / taken:.1f} a second")
            await asyncio.to_thread(operator.wait_settled, 300)
            used = operator.usage().since(before)
            _say(f"settled: {used}")
            rest = operator.usage()
            await asyncio.sleep(_IDLE)
            idle = operator.usage().since(rest)
            await asyncio.to_thread(operator.stop)
            started = time.monotonic()
            operator.start()
            settled = await asyncio.to_thread(operator.wait_settled, 300)
            again = operator.usage()
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following
    seconds = timeline.seconds()
    return {
        "kind": kind,
        "models": fleet.count,
        "rate": round(fleet.count / taken, 2),
        "p50": round(statistics.median(seconds), 2),
        "p99": round(seconds[int(0.99 * (len(seconds) - 1))], 2),
        "requests": {
            verb: round(count / fleet.count, 2) for verb, count in sorted(used.requests.items())
        },
        "passes": round(used.passes / fleet.count, 2),
        "cpu_ms": round(1000 * used.cpu_seconds / fleet.count, 1),
        "rss_mib": round(used.rss_mib),
        "peak_mib": round(used.peak_mib),
        "idle_cpu": round(idle.cpu_seconds / _IDLE, 4),
        "idle_writes": idle.writes,
        "restart": {
            "seconds": round(settled - started, 1),
            "cpu_ms": round(1000 * again.cpu_seconds / fleet.count, 2),
            "writes": again.writes,
            "rss_mib": round(again.rss_mib),
            "peak_mib": round(again.peak_mib),
        },
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--models", type=int, nargs="*", default=[100, 1000, 5000])
    parser.add_argument("--new", type=int, nargs="*", default=[1000])
    parser.add_argument("--out", type=Path, default=_FOLDER / "scale.json")
    options = parser.parse_args(arguments)
    fleets = [
        *(Fleet(known=True, count=count) for count in options.models),
        *(Fleet(known=False, count=count) for count in options.new),
    ]
    results = [asyncio.run(_measure(fleet)) for fleet in fleets]
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
