"""What preflight says of real models, beside the tools that users call by hand: verdicts, and who is right where they differ."""

import argparse
import json
import platform
import sys
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Final

from bench.verdicts import asking, report
from bench.verdicts.cases import CASES, REPOSITORY, Case
from bench.verdicts.comparing import list_misses
from bench.verdicts.results import Results, read_model

_PUBLISHED: Final = REPOSITORY / "bench/results/verdicts.json"
_WORK: Final = REPOSITORY / "build/bench/verdicts"
_PACKAGES: Final = {
    "onnx": "onnx",
    "ONNX Runtime": "onnxruntime",
    "TensorRT-RTX": "tensorrt-rtx-cu13-bindings",
}


def main() -> int:
    """Ask about all models, one at a time, and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [case.name for case in CASES]
    parser.add_argument("--models", nargs="+", choices=names, metavar="NAME", help="only these")
    parser.add_argument("--again", action="store_true", help="report what earlier runs asked")
    parser.add_argument("--missing", action="store_true", help="ask about those not asked before")
    options = parser.parse_args()
    cases = [case for case in CASES if case.name in (options.models or names)]
    if not options.again:
        asking.ENVIRONMENTS.create(asking.OPENVINO)
        for case in cases:
            if not (options.missing and _file(case).exists()):
                _judge(case)
    results = _read(cases)
    problems = list_misses(results, whole=not options.models)
    failed = [f"FAILED {case.name}: no results" for case in cases if not _file(case).exists()]
    print(report.text(results), *problems, *failed, sep="\n\n")
    whole = not (options.models or failed)
    path = _PUBLISHED if whole else _WORK / "verdicts.json"
    path.write_text(f"{json.dumps(asdict(results), indent=1, ensure_ascii=False)}\n")
    print(f"written: {path.relative_to(REPOSITORY)}", file=sys.stderr)
    return int(bool(problems or failed))


def _judge(case: Case) -> None:
    """Ask about a model; what was said of it before stays if that fails."""
    began = time.monotonic()
    work = _WORK / "models" / case.name
    asking.clear(work)
    model = asking.judge(case, work)
    asking.clear(work)  # prepared models are large
    _file(case).write_text(json.dumps(asdict(model), ensure_ascii=False))
    print(f"… {case.name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def _file(case: Case) -> Path:
    return _WORK / f"{case.name}.json"


def _read(cases: list[Case]) -> Results:
    files = [_file(case) for case in cases]
    models = [read_model(json.loads(file.read_text())) for file in files if file.exists()]
    versions = {"Python": platform.python_version()}
    versions |= {title: version(package) for title, package in _PACKAGES.items()}
    versions["OpenVINO"] = asking.ENVIRONMENTS.read_locked_version(asking.OPENVINO, "openvino")
    versions |= {f"TensorRT {major}": asking.read_tensorrt_version(major) for major in ("10", "11")}
    about = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "versions": versions}
    return Results(about, models)


if __name__ == "__main__":
    sys.exit(main())
