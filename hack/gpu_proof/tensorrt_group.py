"""The TensorRT group: engine Jobs' stages on a device, engines loaded and served by ONNX Runtime's provider."""

import json
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from hack.gpu_proof import driver_calls, made_models
from hack.gpu_proof.cuda_group import ENCODED, SHAPES, golden, look, save_model
from hack.gpu_proof.pod import Pod
from hack.gpu_proof.steps import Context, Figures, compute_capability, expect, register_each, step
from hack.gpu_proof.traffic import encode, load
from hack.samples import models

GROUP: Final = "tensorrt"
_BUILD_SECONDS: Final = (
    400.0  # a text detector of variable size takes over 280 beside seven other builds
)
_AHEAD_OF_TIME: Final = "8.9"  # of a rehearsal, which TensorRT-RTX builds for without a device
_IMAGES: Final = [
    {"input": "x", "min": [1, 3, 32, 32], "opt": [8, 3, 32, 32], "max": [32, 3, 32, 32]}
]
# what the builder does, alone: model, profile, strongly typed, timing cache empty
_BARE: Final = """
import json, sys, time
began = time.monotonic()
import tensorrt_bindings as trt
class Log(trt.ILogger):
    def __init__(self):
        trt.ILogger.__init__(self); self.lines = []
    def log(self, severity, message):
        if severity <= trt.ILogger.INFO: self.lines.append(f"{severity.name} {message}")
log = Log()
imported = time.monotonic() - began
builder = trt.Builder(log)
made = time.monotonic() - began
network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
parser = trt.OnnxParser(network, log)
parsed = parser.parse_from_file(sys.argv[1])
config = builder.create_builder_config()
if len(sys.argv) > 3: config.builder_optimization_level = int(sys.argv[3])
profile = builder.create_optimization_profile()
for sizes in json.loads(sys.argv[2]):
    profile.set_shape(sizes["input"], sizes["min"], sizes["opt"], sizes["max"])
if json.loads(sys.argv[2]): config.add_optimization_profile(profile)
start = time.monotonic()
plan = builder.build_serialized_network(network, config)
built = time.monotonic() - start
layers = ""
if plan is not None:
    engine = trt.Runtime(log).deserialize_cuda_engine(plan)
    layers = engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
print(json.dumps({"version": trt.__version__, "parsed": parsed, "import_seconds": round(imported, 2),
  "builder_seconds": round(made, 2), "build_seconds": round(built, 2), "bytes": plan and plan.nbytes,
  "layers": layers[:300], "log": log.lines[-6:], "resources": [l for l in log.lines if "resource" in l.lower()][:6]}))
"""


def engine_recipe(context: Context, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Return the recipe of an engine for this device."""
    facts = context.probe()
    backend = fields.pop("backend", context.engine_backend)
    version = facts["backends"].get(backend)
    recipe: dict[str, Any] = {
        "backend": backend,
        "backend_version": version,
        "ort_version": facts["ort_version"],
        "cuda_major": facts.get("cuda_major") or "13",
        "accelerator_class": "proof",
        "compute_capability": compute_capability() if context.device else _AHEAD_OF_TIME,
    }
    if not context.device:
        recipe["ahead_of_time"] = True
    return recipe | fields


def bare_build(model: Path, shapes: list[dict[str, Any]], seconds: float, *level: str) -> Figures:
    """Build with the library alone, in a separate process."""
    done = subprocess.run(
        [sys.executable, "-c", _BARE, str(model), json.dumps(shapes), *level],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    expect(
        done.returncode == 0, f"the bare builder ends with {done.returncode}: {done.stderr[-400:]}"
    )
    figures: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


@step(GROUP, seconds=200, alone=True)
def library(context: Context) -> Figures:
    """Does the builder load its kernels on this driver, and what does a build cost?"""
    context.require_device()
    model = save_model(models.image_net(), context.work / "image-net.onnx")
    figures: Figures = {"first": bare_build(model, _IMAGES, 190)}
    expect(bool(figures["first"]["bytes"]), f"nothing is built: {figures['first']['log']}")
    figures["again"] = bare_build(model, _IMAGES, 100)
    figures["level_1"] = bare_build(model, _IMAGES, 100, "1")
    return figures


def _build_and_serve(
    context: Context, name: str, precision: str | None, level: int | None = None
) -> Figures:
    pod = context.pod()
    model, shapes = _model(context, name)
    fields: Figures = {"shapes": shapes}
    if precision:
        fields["precision"] = precision
    if precision == "INT8":
        fields["quantization"] = {"calibration": {"uri": _calibration(pod)}}
    key = context.prepare(pod, model, backend=context.engine_backend, **fields)
    extra = {} if level is None else {"optimization_level": level}
    recipe = engine_recipe(context, **extra)
    ended = pod.build(key, recipe, _BUILD_SECONDS)
    expect(ended.code == 0, f"engine Job: {ended.reason}: {ended.message}")
    engine = ended.report.get("engine", {})
    figures: Figures = {"job_seconds": round(ended.seconds, 1), "engine": engine}
    if not context.device:
        return figures
    task = context.serve_task(
        key,
        engine_key=pod.engine_key(key, recipe),
        backend=context.engine_backend,
    )
    with pod.serving(task) as served:
        ready = served.wait()
        served.wait_for_check("golden", ("ok", "failed"), 20)
        figures["served"] = look(served)
        expect(ready, f"not ready: {figures['served']['failed']} {served.why_ended()[:300]}")
        body, headers = encode(golden(pod))
        figures["load"] = load(body, headers, 1, 1.0).figures()
    return figures


def _model(context: Context, name: str) -> tuple[Path, list[dict[str, Any]]]:
    if name == "image-net":
        return save_model(models.image_net(), context.work / "image-net.onnx"), _IMAGES
    if name == "encoder":
        path = context.work / "encoder.onnx"
        return made_models.encoder(path, without_kernel=False, layers=2), ENCODED
    return context.model(name), SHAPES[name]


def _calibration(pod: Pod) -> str:
    images = np.random.default_rng(11).random((64, 3, 32, 32), np.float32)
    np.savez(pod.root / "calibration/images.npz", x=images)
    return "pvc://models/images.npz"


register_each(
    __name__,
    GROUP,
    {
        "engine-" + "-".join(filter(None, (name, (precision or "").lower()))): partial(
            _build_and_serve, name=name, precision=precision
        )
        for name, precision in (  # the longest builds first
            ("detector", None),
            ("recognizer", None),
            ("recognizer", "FP16"),
            ("image-net", None),
            ("magika", None),
            ("magika", "FP16"),
            ("image-net", "INT8"),
            ("image-net", "BF16"),
            ("text", None),
            ("encoder", "FP16"),
        )
    },
    "an engine Job's stages, then the engine served by ONNX Runtime's provider",
    seconds=_BUILD_SECONDS + 20,
)


@step(GROUP, seconds=200)
def timing_cache(context: Context) -> Figures:
    """The timings of one build are merged into the store and shorten the next."""
    context.require_device()
    pod = context.pod()
    model, shapes = _model(context, "image-net")
    key = context.prepare(pod, model, backend=context.engine_backend, shapes=shapes)
    seconds: list[float] = []
    for number, capability in enumerate(("first", "second")):
        # another key, the same device: the timings are kept by class and version
        recipe = engine_recipe(context, workspace_bytes=(1 << 30) + number)
        ended = pod.build(key, recipe, 90)
        expect(ended.code == 0, f"{capability}: {ended.reason}: {ended.message}")
        seconds.append(ended.report["engine"]["build_seconds"])
    kept = list((pod.root / "store").rglob("timings-*"))
    expect(bool(kept), "the store has no timings")
    return {"build_seconds": seconds, "kept_bytes": [path.stat().st_size for path in kept]}


@step(GROUP, seconds=120)
def refusals(context: Context) -> Figures:
    """Another compute capability, another version, a damaged engine and TensorRT-RTX are refused by name."""
    pod = context.pod()
    model, shapes = _model(context, "image-net")
    key = context.prepare(pod, model, backend=context.engine_backend, shapes=shapes)
    figures: Figures = {}
    cases: dict[str, dict[str, Any]] = {
        "another compute capability": {"compute_capability": "8.9" if context.device else "9.0"},
        "another version": {"backend_version": "10.16.1.11"},
        "TensorRT-RTX": {"backend": "tensorrt-rtx", "backend_version": "1.7.1.116"},
    }
    for name, fields in cases.items():
        if name == "TensorRT-RTX" and not context.device:
            continue
        ended = pod.build(key, engine_recipe(context, **fields), 60)
        figures[name] = {"code": ended.code, "reason": ended.reason, "message": ended.message[:300]}
        expect(ended.code != 0, f"{name} is built")
    if context.device:
        figures["damaged engine"] = _serve_damaged(context, pod, key)
    return figures


def _serve_damaged(context: Context, pod: Pod, key: str) -> Figures:
    recipe = engine_recipe(context)
    ended = pod.build(key, recipe, 90)
    expect(ended.code == 0, f"engine Job: {ended.reason}: {ended.message}")
    engine_key = pod.engine_key(key, recipe)
    file = next((pod.root / "store/engines" / engine_key).rglob("*.engine"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    task = context.serve_task(key, engine_key=engine_key, backend=context.engine_backend)
    fetched = pod.run(["fetch-artifact"], task)
    expect(fetched.code != 0, "a damaged engine is fetched")
    return {"reason": fetched.reason, "message": fetched.message[:300]}


@step(GROUP, seconds=200, alone=True)
def workspace(context: Context) -> Figures:
    """Little device memory: the workspace steps down, or the build is refused by name."""
    context.require_device()
    pod = context.pod()
    model, shapes = _model(context, "detector")
    large = [dict(shapes[0], max=[8, 3, 960, 960], opt=[8, 3, 640, 640])]
    key = context.prepare(pod, model, backend=context.engine_backend, shapes=large)
    with driver_calls.hold(1300 << 20) as free:
        ended = pod.build(key, engine_recipe(context, workspace_bytes=8 << 30), 180)
    expect(
        ended.code == 0 or ended.reason == "BuildOutOfMemory", f"{ended.reason}: {ended.message}"
    )
    engine = ended.report.get("engine", {})
    return {
        "free_before": free,
        "code": ended.code,
        "reason": ended.reason,
        "message": ended.message[:400],
        "workspace_bytes": engine.get("workspace_bytes"),
        "stepped_down": ended.log.count("trying a workspace of"),
        "log": ended.log[-600:],
    }


@step(GROUP, seconds=240, alone=True)
def build_time(context: Context) -> Figures:
    """The product's engine Job beside the bare builder, same model and profile."""
    context.require_device()
    figures: Figures = {}
    for name in ("magika", "recognizer"):
        pod = context.pod(name)
        model, shapes = _model(context, name)
        key = context.prepare(pod, model, backend=context.engine_backend, shapes=shapes)
        prepared = next((pod.root / "store/prepared").rglob("model.onnx"))
        copied = context.work / f"{name}.onnx"
        shutil.copy(prepared, copied)
        bare = bare_build(copied, shapes, 100)
        began = time.monotonic()
        ended = pod.build(key, engine_recipe(context), 100)
        expect(ended.code == 0, f"{ended.reason}: {ended.message}")
        figures[name] = {
            "bare_seconds": bare["build_seconds"],
            "build_seconds": ended.report["engine"]["build_seconds"],
            "job_seconds": round(time.monotonic() - began, 1),
            "inspector": bare["layers"],
        }
    return figures
