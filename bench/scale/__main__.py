"""`python -m bench.scale`: what the control plane costs, and how fast it is, at hundreds and thousands of models.

kube-apiserver, etcd, controller manager and scheduler are real, the operator is a process with the chart's rights.
Nodes and pods are kwok's, whose stages end at once: the figures are the control plane's own.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import re
import statistics
import time
from collections.abc import Sequence
from typing import Final

from bench.machine import processor_name
from bench.scale import report
from bench.scale.api import Api
from bench.scale.control_plane import REPOSITORY, start_control_plane
from bench.scale.models import Fleet, Timeline, apply_all, follow, prepare, wait_all
from bench.scale.operator_process import Operator
from bench.scale.results import KNOWN, NEW, Results, Run
from hack.tables.scale import MEASURED

_FOLDER: Final = REPOSITORY / "build/bench/scale"
_IMAGE: Final = "example.com/enginewright/rtx:1"
_MODELS: Final = [100, 1000, 5000]  # engines in the store
_NEW: Final = [1000]
_PATIENCE: Final = 120.0  # seconds without any progress
_LONGEST: Final = 900.0  # seconds until the operator is idle
_IDLE: Final = 30.0  # seconds in which nothing changes


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


async def _measure(fleet: Fleet) -> Run:
    kind = "known" if fleet.has_engines else "new"
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
                _say,
            )
            taken = timeline.changed - began
            _say(f"all ready after {taken:.1f} s: {fleet.count / taken:.1f} a second")
            await asyncio.to_thread(operator.wait_settled, _LONGEST)
            used = operator.usage().since(before)
            _say(f"settled: {used}")
            rest = operator.usage()
            await asyncio.sleep(_IDLE)
            idle = operator.usage().since(rest)
            await asyncio.to_thread(operator.stop)
            started = time.monotonic()
            operator.start()
            settled = await asyncio.to_thread(operator.wait_settled, _LONGEST)
            again = operator.usage()
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following
    seconds = timeline.seconds()
    return Run(
        kind=KNOWN if fleet.has_engines else NEW,
        models=fleet.count,
        rate=round(fleet.count / taken, 2),
        p50=round(statistics.median(seconds), 2),
        p99=round(seconds[int(0.99 * (len(seconds) - 1))], 2),
        requests={
            verb: round(count / fleet.count, 2) for verb, count in sorted(used.requests.items())
        },
        passes=round(used.passes / fleet.count, 2),
        cpu_ms=round(1000 * used.cpu_seconds / fleet.count, 1),
        rss_mib=round(used.rss_mib),
        peak_mib=round(used.peak_mib),
        idle_cpu=round(idle.cpu_seconds / _IDLE, 4),
        idle_writes=idle.writes,
        restart_seconds=round(settled - started, 1),
        restart_cpu_ms=round(1000 * again.cpu_seconds / fleet.count, 2),
        restart_writes=again.writes,
        restart_peak_mib=round(again.peak_mib),
    )


def _find_versions() -> dict[str, str]:
    modules = (REPOSITORY / "hack/cluster/kubernetes/go.mod").read_text()
    kwok = (REPOSITORY / "bench/scale/kwok/go.mod").read_text()
    return {
        "Python": platform.python_version(),
        "Kubernetes": _find_version(modules, "k8s.io/kubernetes"),
        "kwok": _find_version(kwok, "sigs.k8s.io/kwok"),
    }


def _find_version(modules: str, module: str) -> str:
    version: str
    (version,) = re.findall(rf"^\s*{re.escape(module)} v(\S+)", modules, re.MULTILINE)
    return version


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument(
        "--models", type=int, nargs="*", default=_MODELS, help="whose engines are in the store"
    )
    parser.add_argument(
        "--new",
        type=int,
        nargs="*",
        default=_NEW,
        help="that are prepared and whose engines are built",
    )
    options = parser.parse_args(arguments)
    fleets = [
        *(Fleet(has_engines=True, count=count) for count in options.models),
        *(Fleet(has_engines=False, count=count) for count in options.new),
    ]
    about = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cpu": processor_name(),
        "cores": os.cpu_count(),
        "versions": _find_versions(),
    }
    results, path = Results(about, ()), _FOLDER / MEASURED.name
    for fleet in fleets:  # whose results stay if a later one fails
        results = Results(about, (*results.runs, asyncio.run(_measure(fleet))))
        path.write_text(json.dumps(results.document(), indent=1) + "\n")
    if (options.models, options.new) == (_MODELS, _NEW):
        MEASURED.write_text(path.read_text())
        path = MEASURED
    for part in (report.conditions, report.figures, report.targets):
        print(f"{part(results)}\n")
    print(f"written to {path.relative_to(REPOSITORY)}")


if __name__ == "__main__":
    main()
