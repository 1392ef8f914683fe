"""Exhausted device memory, and a lost device."""

import time
from pathlib import Path

import numpy as np

from hack.gpu_proof import driver_calls, made_models
from hack.gpu_proof.cuda_group import GROUP, SHAPES, golden, look
from hack.gpu_proof.pod import SIDECAR
from hack.gpu_proof.steps import Context, Figures, expect, step
from hack.gpu_proof.traffic import encode


@step(GROUP, seconds=90, alone=True)
def memory_in_a_request(context: Context) -> Figures:
    """A request that needs more than the device fails alone; the next ones are answered."""
    context.require_device()
    pod = context.pod()
    shapes = [
        {"input": "size", "min": [2], "opt": [2], "max": [2], "low": 64, "high": 64},
    ]
    key = context.prepare(pod, made_models.grows(context.work / "grows.onnx"), shapes=shapes)
    x = np.ones((1, 64), np.float32)
    with pod.serving(context.serve_task(key, batch_size=1)) as served:
        expect(served.wait(), f"not ready: {look(served)['failed']} {served.why_ended()}")

        def ask(rows: int) -> tuple[int, str]:
            body, headers = encode({"x": x, "size": np.array([rows, 64], np.int64)})
            status, answer = served.infer(body, headers)
            return status, answer[:300].decode(errors="replace")

        before, large, after = ask(8), ask(2**30), ask(8)
        time.sleep(3)
        still = served.get(SIDECAR, "/readyz")[0]
        seen = look(served)
    expect(before[0] == after[0] == 200, f"before {before}, after {after}")
    expect(large[0] >= 400, f"the large request got {large[0]}")
    expect(still == 200, f"no longer ready: {seen['failed']}")
    return {"large": large, "after": after[0], "ready": still == 200, "checks": seen["checks"]}


@step(GROUP, seconds=120, alone=True)
def memory_at_load(context: Context) -> Figures:
    """A device without free memory: the pod says so instead of serving from the CPU."""
    context.require_device()
    pod = context.pod()
    model = made_models.encoder(context.work / "encoder.onnx", without_kernel=False)
    key = context.prepare(pod, model)
    with (
        driver_calls.hold(700 << 20) as free,
        pod.serving(context.serve_task(key)) as served,
    ):
        ready = served.wait(30)
        ended = served.why_ended() if served.server.poll() is not None else ""
        seen = look(served)
    expect(not ready, "ready without memory")
    expect("OutOfMemory" in f"{ended} {seen['failed']}", f"another reason than memory: {ended}")
    return {"free_before": free, "ended": ended, "failed": seen["failed"], "checks": seen["checks"]}


@step(GROUP, seconds=120, alone=True)
def lose_device(context: Context) -> Figures:
    """A kernel of the process writes to an illegal address: not ready in seconds, then restarted."""
    context.require_device()
    pod = context.pod()
    key = context.prepare(pod, context.model("magika"), shapes=SHAPES["magika"])
    folder = context.work / "fault"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(driver_calls.FAULT)
    trigger = folder / "now"
    environment = {"PYTHONPATH": str(folder), "FAULT_FILE": str(trigger)}
    with pod.serving(context.serve_task(key), environment) as served:
        expect(served.wait(), f"not ready: {served.why_ended()}")
        body, headers = encode(golden(pod))
        before = served.infer(body, headers)[0]
        trigger.touch()
        began, unready, not_live = time.monotonic(), None, None
        answers: dict[int, int] = {}
        reason = ""
        while time.monotonic() - began < 25 and served.server.poll() is None:
            status, answer = served.infer(body, headers, 10)
            answers[status] = answers.get(status, 0) + 1
            reason = reason or (answer.decode(errors="replace")[:200] if status >= 500 else "")
            if unready is None and served.get(SIDECAR, "/readyz")[0] != 200:
                unready = time.monotonic() - began
            if not_live is None and served.get(8080, "/v2/health/live")[0] != 200:
                not_live = time.monotonic() - began
                break
            time.sleep(0.1)
        seen = look(served)
        codes = Path(f"{trigger}.done")
        driver = codes.read_text() if codes.exists() else "the kernel has not ended"
    expect(before == 200, f"before the fault: {before}")
    expect(unready is not None, f"still ready: {answers} {seen['failed']} {driver}")
    return {
        "driver_codes": driver,
        "unready_after_seconds": unready and round(unready, 2),
        "not_live_after_seconds": not_live and round(not_live, 2),
        "answers": answers,
        "first_error": reason,
        "failed": seen["failed"],
        "ended": served.why_ended(),
    }
