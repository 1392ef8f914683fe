"""The incident that the product exists to prevent, on a device: attention without a kernel, before and after."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import numpy as np

from hack.gpu_proof import made_models
from hack.gpu_proof.cuda_group import ENCODED, GROUP, bare_session, golden, hide_libraries, look
from hack.gpu_proof.pod import StepError
from hack.gpu_proof.steps import Context, Figures, expect, step
from hack.gpu_proof.traffic import encode, load, summary, time_runs

# a plain program, as a model server runs it
_PLAIN: Final = """
import json, sys, time
import numpy as np, onnxruntime as ort
ort.set_default_logger_severity(4)
session = ort.InferenceSession(sys.argv[1], providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
feeds = {"x": np.random.default_rng(0).standard_normal((8, 128, 768)).astype(np.float32)}
for _ in range(3): session.run(None, feeds)
times = []
for _ in range(20):
    began = time.perf_counter(); session.run(None, feeds); times.append(time.perf_counter() - began)
print(json.dumps({"p50_ms": round(sorted(times)[10] * 1e3, 2), "providers": session.get_providers()}))
"""


@step(GROUP, seconds=170, alone=True)
def incident(context: Context) -> Figures:
    """An encoder whose attention has no CUDA kernel: without the product it is slow and silent."""
    context.require_device()
    good = made_models.encoder(context.work / "before.onnx", without_kernel=False)
    bad = made_models.encoder(context.work / "after.onnx", without_kernel=True)
    figures: Figures = {
        "plain": {
            "every node on the device": _plain(good),
            "attention without a kernel": _plain(bad),
            "CUDA's libraries missing": _plain(good, hide_libraries(context.work / "hidden")),
        }
    }
    plain = figures["plain"]
    healthy = plain["every node on the device"]["p50_ms"]
    figures["factors"] = {name: round(row["p50_ms"] / healthy, 1) for name, row in plain.items()}
    for name, model in (("before", good), ("after", bad)):
        pod = context.pod(name)
        key = context.prepare(pod, model, shapes=ENCODED)
        with pod.serving(context.serve_task(key)) as served:
            served.wait(60 if name == "before" else 30)
            served.wait_for_check("placement", ("ok", "failed"), 20)
            figures[name] = look(served)
            if name == "before":
                expect(bool(figures[name]["ready"]), f"not ready: {served.why_ended()}")
                body, headers = encode(golden(pod))
                figures[name]["load"] = load(body, headers, 1, 1.0).figures()
    expect(not figures["after"]["ready"], f"the model without a kernel got traffic: {figures}")
    return figures


def _plain(model: Path, hidden: Path | None = None) -> Figures:
    environment = dict(os.environ)
    if hidden:
        environment["LD_LIBRARY_PATH"] = str(hidden)
    done = subprocess.run(
        [sys.executable, "-c", _PLAIN, str(model)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=environment,
    )
    if done.returncode:
        raise StepError(f"the plain program fails: {done.stderr[-300:]}")
    figures: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    figures["said"] = done.stderr.strip()[-200:]
    return figures


@step(GROUP)
def same_arithmetic(context: Context) -> Figures:
    """The two exports of the incident compute the same, so that only the placement differs."""
    small = {"layers": 1, "width": 128, "length": 16}
    paths = [
        made_models.encoder(context.work / f"{flag}.onnx", without_kernel=flag, **small)
        for flag in (False, True)
    ]
    x = np.random.default_rng(0).standard_normal((2, 16, 128)).astype(np.float32)
    outputs = [bare_session(context, path).run(None, {"x": x})[0] for path in paths]
    error = float(np.abs(outputs[0] - outputs[1]).max())
    expect(error < 0.05, f"they differ by {error}")
    times = time_runs(lambda: bare_session(context, paths[0]), 0.1, warm=0)
    return {"max_abs_error": error, "session": summary(times)}
