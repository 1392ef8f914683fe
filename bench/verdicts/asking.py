"""Asks preflight and the bare tools about one model, each in a process of its own, and keeps what they say."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import onnx
from enginewright_cli.preflight.options import shape

from bench.environments import Environments
from bench.verdicts import by_hand
from bench.verdicts.cases import REPOSITORY, Case, find
from bench.verdicts.results import BESIDE, COLUMNS, CPU, Column, Model, Verdict, Word

_PEERS: Final = Path(__file__).with_name("peers")
ENVIRONMENTS: Final = Environments(_PEERS, REPOSITORY / "build/bench/verdicts/peers")
OPENVINO: Final = "openvino"  # tool, environment and package
_SECONDS: Final = 1200.0
_MESSAGE: Final = 240  # characters of a message that are kept
_SHAPES: Final = "--shapes "
_BUILD_MACHINE: Final = re.compile(r"(?<![\w/])/(?:[^\s/]+/)+(?=[^\s/]+\.(?:cc|cpp|h)\b)")


def judge(case: Case, work: Path) -> Model:
    """Return what preflight and the tools say of a model; `work` is a folder for it alone."""
    path = find(case, work)
    scratch = work / "scratch"
    scratch.mkdir()
    graph = onnx.load(path, load_external_data=False)
    opsets = [item.version for item in graph.opset_import if item.domain in {"", "ai.onnx"}]
    words = {name: ask_tool(tool, path, ()) for name, tool in BESIDE.items()}
    verdicts: dict[str, Verdict] = {}
    shapes = [f"{_SHAPES}{item}" for item in case.shapes]  # that an engine needs
    nodes = None
    for column in COLUMNS:
        of_engine = column.name != CPU
        prepared = work / column.tool / f"fixed{column.major}.onnx"
        prepared.parent.mkdir(exist_ok=True)
        given = shapes if of_engine or case.shapes else []
        document = ask_preflight(path, column, given, prepared, scratch)
        if not given and (proposed := list_proposals(document, column.target)):
            document = ask_preflight(path, column, proposed, prepared, scratch)
            shapes = proposed if of_engine else shapes
        verdict = read_verdict(document, column.target)
        verdicts[column.name] = verdict
        nodes = nodes or (document.get("model") or {}).get("nodes")
        word = ask_tool(column.tool, path, shapes, column.major)
        if verdict.accepts and not word.takes and prepared.exists():
            again = ask_tool(column.tool, prepared, shapes, column.major)
            word = Word(word.refusal, again.takes)
        words[column.name] = word
    return Model(
        name=case.name,
        kind=case.kind,
        file=case.file,
        opset=max(opsets, default=None),
        nodes=nodes,
        megabytes=round(path.stat().st_size / 1e6, 2),
        shapes=[item.removeprefix(_SHAPES) for item in shapes],
        verdicts=verdicts,
        words=words,
        proposed=not case.shapes,
    )


def ask_preflight(
    model: Path, column: Column, shapes: Sequence[str], prepared: Path, scratch: Path
) -> dict[str, Any]:
    """Return the JSON of a run, which writes the model that would be served; {} if it had none."""
    command = [
        *(sys.executable, "-m", "enginewright_cli", "preflight", str(model)),
        *("--target", column.target, *(("--backend", CPU) if column.target == CPU else ())),
        *("--json", "--quiet", "--fix", str(prepared)),
        *shlex.split(" ".join(shapes)),
    ]
    environment = {"TMPDIR": str(scratch), "XDG_CACHE_HOME": str(scratch.parent / "cache")}
    if column.major:
        environment["ENGINEWRIGHT_TENSORRT"] = str(find_tensorrt(column.major))
    try:
        done = _run(command, environment)
    except subprocess.TimeoutExpired:
        return {"stopped": f"no result within {_SECONDS:.0f} s"}
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        return {"stopped": shorten(done.stderr)}
    return document


def list_proposals(document: Mapping[str, Any], target: str) -> list[str]:
    """Return the options with which a target that fails because sizes are missing would not."""
    if document.get("targets", {}).get(target, {}).get("verdict") != "fail":
        return []
    return list(
        dict.fromkeys(
            option
            for finding in document["findings"]
            if target in finding["targets"]
            for option in finding["options"]
            if option.startswith(_SHAPES)
        )
    )


def read_verdict(document: Mapping[str, Any], target: str) -> Verdict:
    """Return the verdict on a target, with the reasons of all its findings."""
    if target not in document.get("targets", {}):
        return Verdict("error", [], str(document.get("stopped", "no result")))
    result = document["targets"][target]
    fails = result["verdict"] == "fail"
    reasons = [
        finding["reason"]
        for finding in document["findings"]
        if target in finding["targets"] and (finding["severity"] == "error") is fails
    ]
    first = [result["reason"]] if result.get("reason") else []
    return Verdict(
        verdict=result["verdict"],
        reasons=list(dict.fromkeys([*first, *reasons])),
        message=shorten(result.get("message", "")),
        changes=list(dict.fromkeys(change["kind"] for change in result.get("changes", ()))),
    )


def ask_tool(tool: str, model: Path, shapes: Sequence[str], major: str = "") -> Word:
    """Return what a bare tool says of a model."""
    profiles = [shape(shlex.split(item.removeprefix(_SHAPES))[0]) for item in shapes]
    sizes = {item.input: [item.min, item.opt, item.max] for item in profiles}
    python = ENVIRONMENTS.python_of(OPENVINO) if tool == OPENVINO else Path(sys.executable)
    environment = {by_hand.FOLDER_VARIABLE: str(find_tensorrt(major))} if major else {}
    command = [str(python), str(by_hand.__file__), tool, str(model), json.dumps(sizes)]
    try:
        done = _run(command, environment)
    except subprocess.TimeoutExpired:
        return Word(f"no answer within {_SECONDS:.0f} s")
    if done.returncode < 0:
        return Word(f"the process ends with {signal.Signals(-done.returncode).name}")
    if done.returncode:
        raise RuntimeError(f"{tool} cannot be asked: {done.stderr[-2000:]}")
    refusal = json.loads(done.stdout.splitlines()[-1])
    return Word(None if refusal is None else shorten(refusal))


def shorten(message: str) -> str:
    """Return the beginning of a message, without the paths of this machine and of those that built the tools."""
    text = " ".join(message.split())
    text = _BUILD_MACHINE.sub("", text)
    for folder in (REPOSITORY, Path.home()):
        text = re.sub(rf"{re.escape(str(folder))}/(?:[^\s:'\"]*/)?", "", text)
    return text if len(text) <= _MESSAGE else f"{text[: _MESSAGE - 1].rstrip()}…"


def read_tensorrt_version(major: str) -> str:
    """Return the version of the locked TensorRT."""
    lock = REPOSITORY / f"requirements/tensorrt-bindings-{major}.txt"
    return lock.read_text().partition("==")[2].split()[0]


@cache
def find_tensorrt(major: str) -> Path:
    """Return the folder of a TensorRT's libraries, downloaded when missing."""
    command = [str(REPOSITORY / "hack/tensorrt-libraries"), major]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Path(done.stdout.strip().splitlines()[-1])


def _run(
    command: Sequence[str], environment: Mapping[str, str]
) -> "subprocess.CompletedProcess[str]":
    paths = [str(REPOSITORY / folder) for folder in ("operator", "runtime_image")]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=_SECONDS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
    )


def clear(work: Path) -> None:
    """Make an empty folder."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
