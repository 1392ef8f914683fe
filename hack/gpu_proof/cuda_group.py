"""The CUDA group: real models through stages, server and sidecar, and fallback in part and whole."""

import json
import time
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from hack.gpu_proof import driver_calls
from hack.gpu_proof.pod import Pod, Served, StepError
from hack.gpu_proof.steps import Context, Figures, expect, register_each, step
from hack.gpu_proof.traffic import encode, load, summary, time_runs
from hack.samples import models

GROUP: Final = "cuda"
Feeds: TypeAlias = dict[str, NDArray[Any]]
_READ: Final = [
    {"input": "x", "min": [1, 3, 48, 64], "opt": [2, 3, 48, 160], "max": [2, 3, 48, 320]}
]
_DETECT: Final = [
    {"input": "x", "min": [1, 3, 64, 64], "opt": [1, 3, 160, 160], "max": [2, 3, 160, 320]}
]
TOKENS: Final = ("input_ids", "attention_mask", "token_type_ids")
ENCODED: Final[list[dict[str, Any]]] = [
    {"input": "x", "min": [1, 128, 768], "opt": [8, 128, 768], "max": [8, 128, 768]}
]
SHAPES: Final[dict[str, list[dict[str, Any]]]] = {
    "magika": [{"input": "bytes", "min": [1, 2048], "opt": [8, 2048], "max": [32, 2048]}],
    "detector": _DETECT,
    "recognizer": _READ,
    "classifier": _READ,
    "speech": [
        {"input": "input", "min": [1, 576], "opt": [2, 576], "max": [4, 576]},
        {"input": "state", "min": [2, 1, 128], "opt": [2, 2, 128], "max": [2, 4, 128]},
    ],
    "speech-sequence": [],
    "pitch": [{"input": "audio", "min": [1, 4096], "opt": [1, 8000], "max": [1, 16000]}],
    "text": [
        {"input": name, "min": [1, 16], "opt": [8, 64], "max": [32, 128], "low": low, "high": high}
        for name, low, high in zip(TOKENS, (0, 1, 0), (30000, 1, 0), strict=True)
    ],
}
_KEPT: Final = (  # of the metrics that a pod exports
    "enginewright_placement_nodes",
    "enginewright_fallback_nodes",
    "enginewright_fallback_ratio",
    "enginewright_fallback_active",
    "enginewright_provider_available",
    "enginewright_check",
    "enginewright_gpu_memory_bytes",
    "enginewright_gpu_utilization_ratio",
    "enginewright_parity_max_abs_error",
    "enginewright_latency_ratio",
    "enginewright_baseline_latency_seconds",
    "enginewright_probe_failures_total",
)


def save_model(model: onnx.ModelProto, path: Path) -> Path:
    """Write a model; return its path."""
    onnx.save(model, path)
    return path


def golden(pod: Pod) -> Feeds:
    """Return the inputs of the first golden sample of the fetched artefact."""
    with np.load(pod.root / "artifact/golden/inputs.npz") as arrays:
        first = next(iter(arrays)).partition("/")[0]
        return {
            name.partition("/")[2]: arrays[name] for name in arrays if name.startswith(f"{first}/")
        }


def artifact_model(pod: Pod) -> Path:
    """Return the model file of the fetched artefact."""
    manifest = json.loads((pod.root / "artifact/manifest.json").read_text())
    return pod.root / "artifact" / str(manifest["model"])


def look(served: Served) -> Figures:
    """Return what a running pod reports."""
    execution, verdict = served.execution(), served.verdict()
    kept = {
        series: number
        for series, number in served.metrics().items()
        if series.startswith(_KEPT)
        and not (series.startswith("enginewright_check{") and number == 0)
    }
    return {
        "ready": verdict.get("ready"),
        "ready_seconds": served.ready_seconds and round(served.ready_seconds, 2),
        "placement": execution.get("placement", {}).get("nodes"),
        "elsewhere": execution.get("placement", {}).get("elsewhere", [])[:5],
        "usual": execution.get("usual"),
        "provider_reason": execution.get("provider_reason"),
        "driver": execution.get("driver"),
        "batching": execution.get("details", {}).get("batching"),
        "checks": {item["check"]: item["state"] for item in verdict.get("checks", [])},
        "failed": {
            item["check"]: f"{item.get('reason')}: {item.get('message')}"
            for item in verdict.get("checks", [])
            if item["state"] == "failed"
        },
        "fallback": verdict.get("fallback"),
        "parity_max_abs_error": verdict.get("parity_max_abs_error"),
        "metrics": kept,
    }


def _serve_model(context: Context, name: str, precision: str | None) -> Figures:
    """Prepare a real model and serve it; its golden outputs are the CPU's."""
    pod = context.pod()
    fields: Figures = {"shapes": SHAPES[name]}
    if precision:  # the CPU of a rehearsal prepares it, but does not serve it
        fields |= {"precision": precision, "backend": "cuda"}
    began = time.monotonic()
    key = context.prepare(pod, context.model(name), **fields)
    prepared = time.monotonic() - began
    if precision:
        context.require_device()
    with pod.serving(context.serve_task(key)) as served:
        ready = served.wait()
        if not ready and served.server.poll() is not None:
            raise StepError(f"the server ended: {served.why_ended()}")
        served.wait_for_check("golden", ("ok", "failed"), 20)
        seen = look(served)
        body, headers = encode(golden(pod))
        measured = load(body, headers, 1, 1.0).figures() if ready else {}
        busy = {
            series: number
            for series, number in served.metrics().items()
            if series.startswith("enginewright_gpu_")
        }
    expect(ready, f"not ready: {seen['failed'] or seen['checks']}")
    return {"prepare_seconds": round(prepared, 1), **seen, "load": measured, "under_load": busy}


register_each(
    __name__,
    GROUP,
    {
        f"model-{name}-{(precision or 'source').lower()}": partial(
            _serve_model, name=name, precision=precision
        )
        for name in SHAPES
        for precision in (None, "FP16")
    },
    "a real model, prepared on the CPU, served and proved on the device",
)


@step(GROUP)
def device(context: Context) -> Figures:
    """What driver, NVML and the product's probe say of the machine."""
    facts = context.probe()
    return {
        "probe": {
            name: facts.get(name)
            for name in (
                *("variant", "ort_version", "providers", "backends", "unusable", "cuda_major"),
                *("max_opset", "max_ir_version", "processor"),
            )
        },
        "used_bytes": driver_calls.read_used_bytes(),
    }


@step(GROUP)
def partial_fallback(context: Context) -> Figures:
    """An operator without a CUDA kernel: refused under Forbid, counted under Allow."""
    context.require_device()
    pod = context.pod()
    key = context.prepare(
        pod, save_model(models.partly_supported(), context.work / "ends-on-cpu.onnx")
    )
    outcomes = {}
    for policy in ("Forbid", "Allow"):
        with pod.serving(context.serve_task(key, promise={"policy": policy})) as served:
            served.wait(40 if policy == "Allow" else 20)
            served.wait_for_check("placement", ("ok", "failed"), 20)
            outcomes[policy] = look(served)
    expect(
        outcomes["Forbid"]["checks"].get("placement") == "failed", f"Forbid: {outcomes['Forbid']}"
    )
    expect(not outcomes["Forbid"]["ready"], "ready under Forbid")
    expect(bool(outcomes["Allow"]["ready"]), f"not ready under Allow: {outcomes['Allow']}")
    expect(bool(outcomes["Allow"]["elsewhere"]), "nothing is counted elsewhere")
    return outcomes


@step(GROUP)
def whole_fallback(context: Context) -> Figures:
    """CUDA's libraries hidden: ONNX Runtime serves from the CPU and says nothing; the pod is refused."""
    context.require_device()
    pod = context.pod()
    key = context.prepare(pod, context.model("magika"), shapes=SHAPES["magika"])
    hidden = hide_libraries(context.work / "hidden")
    with pod.serving(context.serve_task(key), {"LD_LIBRARY_PATH": str(hidden)}) as served:
        served.wait(20)
        served.wait_for_check("provider", ("ok", "failed"), 20)
        seen = look(served)
        ended = served.why_ended() if served.server.poll() is not None else ""
    expect(not seen["ready"], "ready without CUDA's libraries")
    return {**seen, "ended": ended}


def hide_libraries(folder: Path) -> Path:
    """Return a folder that the loader finds first, where CUDA's libraries are empty files."""
    folder.mkdir(exist_ok=True)
    for name in ("libcublas.so.13", "libcublasLt.so.13", "libcudart.so.13", "libcudnn.so.9"):
        (folder / name).touch()
    return folder


@step(GROUP, seconds=120)
def two_pods_on_one_device(context: Context) -> Figures:
    """Two servers of one model on one device: both proved, memory of both."""
    context.require_device()
    pod = context.pod()
    key = context.prepare(pod, context.model("magika"), shapes=SHAPES["magika"])
    task = context.serve_task(key)
    used = [driver_calls.read_used_bytes()]
    with pod.serving(task) as served:
        expect(served.wait(), f"the first is not ready: {served.why_ended()}")
        used.append(driver_calls.read_used_bytes())
        beside = _beside(context, pod)
        body, headers = encode(golden(pod))
        measured = load(body, headers, 4, 1.0).figures()
        used.append(driver_calls.read_used_bytes())
    return {"used_bytes": used, "beside": beside, "load": measured}


def _beside(context: Context, pod: Pod) -> Figures:
    """Run the same model in a session of this process, beside the pod."""
    session = bare_session(context, artifact_model(pod))
    feeds = golden(pod)
    times = time_runs(lambda: session.run(None, feeds), 0.5)
    return summary(times)


def bare_session(context: Context, model: Path, **options: str) -> Any:  # noqa: ANN401 - ONNX Runtime's
    """Return a session as a plain program creates it."""
    import onnxruntime as ort  # noqa: PLC0415 - loads CUDA

    ort.set_default_logger_severity(3)
    settings = ort.SessionOptions()
    providers: list[Any] = ["CPUExecutionProvider"]
    if context.device:
        providers.insert(0, ("CUDAExecutionProvider", options))
    session = ort.InferenceSession(str(model), settings, providers=providers)
    if context.device:
        expect(
            session.get_providers()[0] == "CUDAExecutionProvider", "the bare session is on the CPU"
        )
    return session
