"""The power of the proof of outputs: which lies about real models it finds, and which honest artefacts it fails, beside peers.

Lies are made from right outputs of real models on natural inputs, one slice at a time. Honest artefacts are
those of other precisions, backends and settings whose results (boxes, text, labels) are the source's.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, Final

from bench.environments import AbsentError
from bench.truth import judging, peer, report, targets
from bench.truth.cases import CASES, QUICK, REPOSITORY, find_packages
from bench.truth.comparators import PRECISIONS
from bench.truth.plot import svg
from bench.truth.results import CaseResult, read_case, sum_up

_PUBLISHED: Final = REPOSITORY / "bench/results/truth.json"
_PLOT: Final = REPOSITORY / "docs/truth-power.svg"
_WORK: Final = REPOSITORY / "build/bench/truth"
_SLICES: Final = 8  # of an axis, about which lies are told
_LIMIT_SECONDS: Final = 3600


def main() -> int:
    """Judge all cases, two at a time, and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three models")
    parser.add_argument("--models", nargs="+", choices=CASES, help="only these")
    parser.add_argument("--slices", type=int, default=_SLICES, help="lies about so many per axis")
    parser.add_argument("--again", action="store_true", help="report what the last run judged")
    parser.add_argument(
        "--constants", action="store_true", help="also what other constants of our rule would say"
    )
    options = parser.parse_args()
    names = options.models or (QUICK if options.quick else tuple(CASES))
    began = time.monotonic()
    absent = _install()
    find_packages()  # before processes do it at the same time
    if not options.again:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            further = [judging.CONSTANTS] if options.constants else []
            list(pool.map(lambda name: _judge(name, options.slices, further), names))
    cases = [_read(name) for name in names if (_WORK / name / "judged.json").exists()]
    about = _about() | {"seconds": round(time.monotonic() - began)}
    results = sum_up(about, cases, absent)
    problems = targets.list_misses(results)
    failed = sorted(set(names) - {case.name for case in cases})
    tried = [report.constants(cases)] if options.constants else []
    print(report.text(results), *tried, *problems, sep="\n\n")
    print(*(f"FAILED {name}: no results" for name in failed), sep="\n")
    whole = not (options.quick or options.models or absent or failed or options.again)
    document = json.dumps(asdict(results), indent=1, ensure_ascii=False)
    for path, text in (
        (_PUBLISHED if whole else _WORK / "truth.json", document),
        (_PLOT if whole else _WORK / "truth-power.svg", svg(results)),
    ):
        path.write_text(f"{text}\n")
        print(f"written: {path.relative_to(REPOSITORY)}", file=sys.stderr)
    return int(bool(problems or failed))


def _install() -> dict[str, str]:
    absent = {}
    for name, environment in peer.PROGRAMS.items():
        try:
            peer.ENVIRONMENTS.create(environment)
        except AbsentError as error:
            absent[name] = str(error)
            print(f"ABSENT {name}: {error}", file=sys.stderr)
    return absent


def _judge(name: str, most: int, further: Sequence[str]) -> None:
    """Judge a case in a process; what it says goes to a file."""
    folder = _WORK / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began = time.monotonic()
    with (folder / "log").open("wb") as log:
        done = subprocess.run(
            [sys.executable, "-m", judging.__name__, name, str(folder), str(most), *further],
            stdout=log,
            stderr=log,
            check=False,
            timeout=_LIMIT_SECONDS,
        )
    ended = (
        "" if done.returncode == 0 else f" FAILED: see {(folder / 'log').relative_to(REPOSITORY)}"
    )
    print(f"… {name}: {time.monotonic() - began:.0f} s{ended}", file=sys.stderr, flush=True)


def _read(name: str) -> CaseResult:
    return read_case(json.loads((_WORK / name / "judged.json").read_text()))


def _about() -> dict[str, Any]:
    versions = {"Python": platform.python_version()}
    versions |= {package: version(package) for package in ("onnxruntime", "numpy")}
    for environment in peer.PROGRAMS.values():
        versions[environment] = peer.ENVIRONMENTS.read_locked_version(environment, environment)
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "precisions": list(PRECISIONS),
        "versions": versions,
    }


if __name__ == "__main__":
    sys.exit(main())
