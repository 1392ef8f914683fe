"""Runs every clash on a real backend and reports whether the server would blame the request or itself.

A program, because each distribution of ONNX Runtime has an interpreter of its own:
`python clash_runs.py BACKEND FOLDER THREADS [NAMES]` prints JSON, by the name of the clash.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from enginewright_runtime.core import limits
from enginewright_runtime.core.failure import SessionError
from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.session import loading
from enginewright_runtime.session.runner import Runner
from enginewright_runtime.session.samples import GoldenSample
from enginewright_runtime.session.signature import read_signature
from enginewright_serving.server.protocol.inference_request import InferenceRequest
from enginewright_serving.server.startup.diagnosis import Diagnosis

from tests.support.clashing import Clash, Feeds, clashes


def judge_clash(clash: Clash, backend: str, folder: Path, threads: int) -> dict[str, Any]:
    """Return the clash's fault and message, or that it does not load or does not fail."""
    path = folder / "model.onnx"
    onnx.save(clash.model, path)
    try:
        session = loading.create(backend, path, threads=threads, strict=False).session
    except SessionError as error:
        return {"outcome": "not loaded", "message": str(error)}
    signature = read_signature(session.get_inputs(), session.get_outputs(), ())
    outputs = list(signature.outputs)
    runner = Runner(session, signature)
    golden = GoldenSample(
        "s", clash.good, dict(zip(outputs, runner.run(outputs, clash.good), strict=True))
    )
    try:
        runner.run(outputs, clash.bad)
    except Exception as error:  # noqa: BLE001 - exceptions of ONNX Runtime share no other class
        plan = InferenceRequest(None, {}, (), 0, outputs, (), 0.0)
        fault = Diagnosis(runner.run, outputs, [golden], limits.memory()).judge(
            plan, clash.bad, error
        )
        return {
            "outcome": fault,
            "message": plain(str(error)),
            "kind": type(error).__name__,
            "serves": _runs(runner, outputs, clash.good),
        }
    return {"outcome": "ran"}


def _runs(runner: Runner, outputs: list[str], feeds: Feeds) -> bool:
    try:
        runner.run(outputs, feeds)
    except Exception:  # noqa: BLE001 - likewise
        return False
    return True


def in_a_child(clash: Clash, backend: str, folder: Path, threads: int) -> dict[str, Any]:
    """Judge the clash in a process of its own: OpenVINO checks neither all sizes nor all indices."""
    reader, writer = os.pipe()
    child = os.fork()  # nothing of ONNX Runtime has run yet in this process
    if child == 0:
        result = judge_clash(clash, backend, folder, threads)
        os.write(writer, json.dumps(result).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"outcome": "crashed"}


if __name__ == "__main__":
    name, place, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    selected = [item for item in clashes() if item.name in sys.argv[4:] or len(sys.argv) == 4]
    print(json.dumps({item.name: in_a_child(item, name, place, count) for item in selected}))
