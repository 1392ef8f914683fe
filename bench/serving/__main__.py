"""What serving costs: our server, bare `session.run` and other model servers, in one run.

Only ratios within one run matter; absolute values depend on the machine. The server has one core,
the load generator (h2load) another, ONNX Runtime one thread. Every answer is checked. Servers take
turns, so that other load on the machine affects all of them, and the quickest of several rounds counts.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from bench.environments import AbsentError
from bench.machine import processor_name
from bench.serving import (
    cases,
    cores,
    environments,
    hostile,
    hostile_results,
    isolation,
    load,
    report,
    scaling,
    soak,
)
from bench.serving.hostile_results import Comparison
from bench.serving.plot import svg
from bench.serving.results import Results
from bench.serving.run import Plan, measure, program
from bench.serving.servers import AGED, COMPARED, OURS, QUICK, REPOSITORY, SERVERS, Server

_RESULTS: Final = REPOSITORY / "bench/results"  # of whole, undisturbed runs: `make docs` shows them
_PLOTS: Final = REPOSITORY / "docs"
_UNPUBLISHED: Final = REPOSITORY / "build/bench"
_LIMIT_SECONDS: Final = 28 * 60


def main() -> int:
    """Install, enter the namespaces, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny model, few peers: 3 minutes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="length of each measurement")
    parser.add_argument("--servers", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--models", nargs="+", choices=COMPARED, help="only these")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="only our server, saturated")
    parser.add_argument(
        "--runs", type=int, metavar="MOST", help="only our server, with 1 to so many runs at a time"
    )
    parser.add_argument(
        "--hostile", action="store_true", help="three servers beside hostile clients: 11 minutes"
    )
    options = parser.parse_args()
    scaling.require_cores(options.runs or 1)
    load.require_h2load()
    absent = isolation.read_inherited()
    if absent is None:
        if options.runs:
            _download_models()
        absent = {} if _is_only_ours(options) else _install(_choose(options))
        inside = isolation.run_inside(sys.argv[1:], absent)
        if inside is not None:
            return inside
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        if _is_only_ours(options):
            (ours,) = (server for server in SERVERS if server.name == OURS)
            model = "recognition" if options.runs else "lengths"
            program(cases.__name__, str(folder / model), model)
            if options.runs:
                most, rounds = options.runs, options.rounds
                return scaling.scale(ours, folder, most, options.seconds, rounds)
            return soak.soak(ours, folder, options.soak)
        if options.hostile:
            return _compare_hostile(options, absent, folder)
        return _compare(options, absent, folder)


def _is_only_ours(options: argparse.Namespace) -> bool:
    return bool(options.soak or options.runs)


def _compare_hostile(options: argparse.Namespace, absent: dict[str, str], folder: Path) -> int:
    program(cases.__name__, str(folder / "tiny"), "tiny")
    about = _about(options) | {"versions": hostile.read_versions()}
    comparison = Comparison(about, absent=dict(absent))
    servers = [server for server in _choose(options) if server.name not in absent]
    hostile.compare(servers, folder, comparison)
    gaps = comparison.list_gaps(hostile.COMPARED)
    problems = [f"FAILED {problem}" for problem in comparison.problems]
    print("", hostile_results.summarize(comparison), *gaps, *problems, sep="\n")
    document = json.dumps(asdict(comparison), indent=1, ensure_ascii=False)
    _write((_UNPUBLISHED if gaps else _RESULTS) / "hostile.json", document)
    return int(bool(problems))


def _compare(options: argparse.Namespace, absent: dict[str, str], folder: Path) -> int:
    servers = [server for server in _choose(options) if server.name not in absent]
    models = options.models or (("tiny",) if options.quick else tuple(COMPARED))
    for name in models:
        program(cases.__name__, str(folder / name), name)
    results = Results(_about(options), absent=dict(absent))
    plan = Plan(
        servers={
            name: [item for item in servers if options.servers or item.name in COMPARED[name]]
            for name in models
        },
        aged=() if options.quick else AGED,
        rounds=1 if options.quick else options.rounds,
        seconds=options.seconds,
        limit_seconds=_LIMIT_SECONDS,
    )
    measure(plan, results, folder)
    print(report.text(results))
    whole = not (options.quick or options.models or options.servers)
    published = whole and not report.is_disturbed(results)
    folder = _RESULTS if published else _UNPUBLISHED
    _write(folder / "serving.json", json.dumps(asdict(results), indent=1, ensure_ascii=False))
    _write((_PLOTS if published else _UNPUBLISHED) / "serving.svg", svg(results))
    return 0


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text.strip()}\n")
    print(f"written: {path.relative_to(REPOSITORY)}", file=sys.stderr)


def _choose(options: argparse.Namespace) -> list[Server]:
    usual = hostile.COMPARED if options.hostile else [server.name for server in SERVERS]
    names = options.servers or (QUICK if options.quick else usual)
    if unknown := set(names) - {server.name for server in SERVERS}:
        raise SystemExit(f"no such servers: {sorted(unknown)}")
    return [server for server in SERVERS if server.name in names]


def _install(servers: list[Server]) -> dict[str, str]:
    """Download the models and create the peers' environments; return why some are absent."""
    _download_models()
    failures: dict[str, str] = {}  # by environment
    for environment in dict.fromkeys(
        server.environment for server in servers if server.environment
    ):
        try:
            environments.install(environment)
        except AbsentError as error:
            failures[environment] = str(error)
            print(f"ABSENT {environment}: {error}", file=sys.stderr)
    return {
        server.name: failures[server.environment]
        for server in servers
        if server.environment in failures
    }


def _download_models() -> None:
    subprocess.run([str(REPOSITORY / "hack/models")], check=True, stdout=subprocess.DEVNULL)


def _about(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the figures depend on, without names of machines or paths."""
    versions = {"Python": platform.python_version(), "h2load": _h2load_version()}
    for peer, package in environments.PACKAGES.items():
        versions[package] = environments.read_locked_version(peer, package)
    versions |= environments.read_locked_crates()
    versions["onnxruntime"] = environments.read_locked_version("kserve", "onnxruntime")
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cpu": processor_name(),
        "cores": len(cores.find_cores()),
        "network": isolation.network(),
        "window_seconds": options.seconds,
        "versions": versions,
    }


def _h2load_version() -> str:
    shown = subprocess.run(["h2load", "--version"], capture_output=True, text=True, check=True)
    return shown.stdout.strip().rpartition("/")[2]


if __name__ == "__main__":
    sys.exit(main())
