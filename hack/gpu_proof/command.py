"""The command line of the proof."""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

from hack.gpu_proof import machine, packing, running
from hack.gpu_proof import report as reporting
from hack.gpu_proof.pieces import Index, PieceError

_WORK: Final = Path("/var/tmp/enginewright-gpu-proof")  # noqa: S108 - survives a restart of the command
_PIECES: Final = packing.ROOT / "build/gpu-proof"


def main(arguments: list[str], usage: str) -> int:
    """Run one verb; return the exit code."""
    options = _parser(usage).parse_args(arguments)
    try:
        code: int = options.act(options)
    except PieceError as error:
        print(f"gpu-proof: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"gpu-proof: {error.filename}: {error.strerror}; free the disk or name other folders",
            file=sys.stderr,
        )
        return 1
    return code


def _parser(usage: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hack/gpu-proof",
        description=usage,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    pack = verbs.add_parser("pack", help="write the pieces")
    pack.add_argument("--output", type=Path, default=_PIECES)
    pack.add_argument("--compute-capability", default="9.0")
    pack.add_argument("--python", default="3.12")
    pack.set_defaults(act=_pack)
    run = verbs.add_parser("run", help="run the groups whose pieces are there")
    run.add_argument("--pieces", type=Path)
    run.add_argument("--work", type=Path, default=_WORK)
    run.add_argument("--results", type=Path)
    run.add_argument("--seconds", type=float, default=780.0)
    run.add_argument("--only", type=_names, default=[], help="names of steps, with commas")
    run.add_argument("--background", action="store_true")
    run.add_argument(
        "--rehearse",
        action="store_true",
        help="without a device: in this checkout's environment or, with --pieces, in theirs",
    )
    run.set_defaults(act=_run)
    collect = verbs.add_parser("collect", help="copy what a run has written so far")
    collect.add_argument("--work", type=Path, default=_WORK)
    collect.add_argument("--results", type=Path, required=True)
    collect.set_defaults(act=_collect)
    report = verbs.add_parser(
        "report", help="write the results of runs, oldest first, into docs/reference/gpu-results.md"
    )
    report.add_argument("results", type=Path, nargs="+")
    report.set_defaults(act=_report)
    return parser


def _names(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def _report(options: argparse.Namespace) -> int:
    reporting.write(options.results)
    print(f"wrote {reporting.PAGE}")
    return 0


def _pack(options: argparse.Namespace) -> int:
    index = packing.pack_all(packing.CACHE, options.compute_capability, options.python)
    packing.place(index, packing.CACHE, options.output)
    print(packing.describe(index, options.output / "pieces"))
    return 0


def _run(options: argparse.Namespace) -> int:
    if options.rehearse and not options.pieces:
        return _rehearse(options)
    options.pieces = options.pieces or _PIECES / "pieces"
    index = Index.read(machine.require(options.pieces))
    if options.rehearse:
        return _run_pieces(options)
    if refusal := machine.refuse(index, options.work):
        raise PieceError(refusal)
    if options.background:
        return _start(options)
    return _run_pieces(options)


def _run_pieces(options: argparse.Namespace) -> int:
    run = running.Run(
        options.work, device=not options.rehearse, seconds=options.seconds, only=options.only
    )
    try:
        run.run_pieces(options.pieces)
    finally:
        if options.results:
            _collect(options)
    return 1 if run.find_failed() else 0


def _start(options: argparse.Namespace) -> int:
    """Start the run in a separate session, unless one is running; transfers continue meanwhile."""
    identity = options.work / "pid"
    try:
        os.kill(int(identity.read_text()), 0)
    except (OSError, ValueError):
        pass
    else:
        print("the run goes on")
        return 0
    with (options.work / "run.log").open("ab") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, str(packing.ROOT / "hack/gpu-proof"), "run"),
                *("--pieces", str(options.pieces), "--work", str(options.work)),
                *("--seconds", str(options.seconds), "--only", ",".join(options.only)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    identity.write_text(str(process.pid))
    print(f"started as process {process.pid}")
    return 0


def _rehearse(options: argparse.Namespace) -> int:
    """Run the same steps in this checkout's environment, with CPU backends in place of a device's."""
    python = packing.ROOT / ".venv/bin/python"
    if not python.exists():
        raise PieceError(f"{python} is missing: run `make venv`")
    models = options.work / "models"
    models.mkdir(parents=True, exist_ok=True)
    for path in packing.collect_models(options.work / "renamed"):
        shutil.copy(path, models)
    run = running.Run(options.work, device=False, seconds=options.seconds, only=options.only)
    folders = [packing.ROOT / name for name in ("operator", "runtime_image", ".")]
    environment = {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    for group in (packing.CUDA, packing.TENSORRT):
        run.run_group(group, python, environment, {}, models)
    if options.results:
        _collect(options)
    return 1 if run.find_failed() else 0


def _collect(options: argparse.Namespace) -> int:
    """Copy results, log and the logs of the steps, each as one file."""
    options.results.mkdir(parents=True, exist_ok=True)
    for name in ("results.json", "run.log"):
        if (options.work / name).exists():
            shutil.copy(options.work / name, options.results)
    with tarfile.open(options.results / "logs.tar.gz", "w:gz") as archive:
        for path in sorted((options.work / "steps").rglob("*.log")):
            archive.add(path, path.relative_to(options.work).as_posix())
    log = options.work / "run.log"
    if log.exists():
        print(log.read_text(errors="replace")[-9000:])
    return 0
