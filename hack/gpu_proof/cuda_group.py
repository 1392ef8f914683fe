"""The CUDA group: the backend through stages, server and sidecar; fallback; memory; a lost device; what it costs."""

import json
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from gpu_proof import driver_calls, made_models
from gpu_proof.pod import SIDECAR, Pod, Served, StepError
from gpu_proof.steps import Context, Figures, expect, register_each, step
from gpu_proof.traffic import encode, load, summary, time_runs
from numpy.typing import NDArray

GROUP: Final = "cuda"
_READ: Final = [
    {"input": "x", "min": [1, 3, 48, 64], "opt": [2, 3, 48, 160], "max": [2, 3, 48, 320]}
]
_DETECT: Final = [
    {"input": "x", "min": [1, 3, 64, 64], "opt": [1, 3, 160, 160], "max": [2, 3, 160, 320]}
]
_TOKENS: Final = ("input_ids", "attention_mask", "token_type_ids")
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
        for name, low, high in zip(_TOKENS, (0, 1, 0), (30000, 1, 0), strict=True)
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


def golden(pod: Pod) -> dict[str, NDArray[Any]]:
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
    """Return what a running pod says of itself."""
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
        "checks": {each["check"]: each["state"] for each in verdict.get("checks", [])},
        "failed": {
            each["check"]: f"{each.get('reason')}: {each.get('message')}"
            for each in verdict.get("checks", [])
            if each["state"] == "failed"
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
        context.needs_device  # noqa: B018 - raises
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
        "used_bytes": driver_calls.used_bytes(),
    }


@step(GROUP)
def partial_fallback(context: Context) -> Figures:
    """An operator without a CUDA kernel: refused under Forbid, counted under Allow."""
    context.needs_device  # noqa: B018 - raises
    pod = context.pod()
    key = context.prepare(pod, made_models.ends_on_cpu(context.work / "ends-on-cpu.onnx"))
    found = {}
    for policy in ("Forbid", "Allow"):
        with pod.serving(context.serve_task(key, promise={"policy": policy})) as served:
            served.wait(40 if policy == "Allow" else 20)
            served.wait_for_check("placement", ("ok", "failed"), 20)
            found[policy] = look(served)
    expect(found["Forbid"]["checks"].get("placement") == "failed", f"Forbid: {found['Forbid']}")
    expect(not found["Forbid"]["ready"], "ready under Forbid")
    expect(bool(found["Allow"]["ready"]), f"not ready under Allow: {found['Allow']}")
    expect(bool(found["Allow"]["elsewhere"]), "nothing is counted elsewhere")
    return found


@step(GROUP)
def whole_fallback(context: Context) -> Figures:
    """CUDA's libraries hidden: ONNX Runtime serves from the CPU and says nothing; the pod is refused."""
    context.needs_device  # noqa: B018 - raises
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
    context.needs_device  # noqa: B018 - raises
    pod = context.pod()
    key = context.prepare(pod, context.model("magika"), shapes=SHAPES["magika"])
    task = context.serve_task(key)
    used = [driver_calls.used_bytes()]
    with pod.serving(task) as served:
        expect(served.wait(), f"the first is not ready: {served.why_ended()}")
        used.append(driver_calls.used_bytes())
        beside = _beside(context, pod, key)
        body, headers = encode(golden(pod))
        measured = load(body, headers, 4, 1.0).figures()
        used.append(driver_calls.used_bytes())
    return {"used_bytes": used, "beside": beside, "load": measured}


def _beside(context: Context, pod: Pod, key: str) -> Figures:
    """Run the same model in a session of this process, beside the pod."""
    session = bare_session(context, artifact_model(pod))
    feeds = golden(pod)
    times = time_runs(lambda: session.run(None, feeds), 0.5)
    del key
    return summary(times)


def bare_session(context: Context, model: Path, **options: str) -> Any:  # noqa: ANN401 - ONNX Runtime's
    """Return a session as a plain program makes it."""
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


@step(GROUP, seconds=100, alone=True)
def bindings_and_graphs(context: Context) -> Figures:
    """What IO binding and CUDA graphs gain over `session.run`, by model."""
    import onnxruntime as ort  # noqa: PLC0415 - loads CUDA

    found: Figures = {}
    for name in ("magika", "text", "encoder"):
        pod = context.pod(name)
        if name == "encoder":
            path, layers = context.work / "encoder.onnx", 6 if context.device else 1
            source = made_models.encoder(path, without_kernel=False, layers=layers)
            key = context.prepare(pod, source)
        else:
            key = context.prepare(pod, context.model(name), shapes=SHAPES[name])
        pod.run(["fetch-artifact"], context.serve_task(key))
        model, feeds = artifact_model(pod), golden(pod)
        session = bare_session(context, model)
        names = [each.name for each in session.get_outputs()]
        plain = time_runs(lambda s=session, f=feeds: s.run(None, f), 0.6)
        row: Figures = {
            "shapes": {n: list(a.shape) for n, a in feeds.items()},
            "run": summary(plain),
        }
        if context.device:
            for label, options in (("bound", {}), ("graph", {"enable_cuda_graph": "1"})):
                try:
                    other = bare_session(context, model, **options) if options else session
                    binding = other.io_binding()
                    held = {
                        n: ort.OrtValue.ortvalue_from_numpy(a, "cuda", 0) for n, a in feeds.items()
                    }
                    for each, tensor in held.items():
                        binding.bind_ortvalue_input(each, tensor)
                    if options:
                        first = session.run(None, feeds)
                        for each, array in zip(names, first, strict=True):
                            binding.bind_ortvalue_output(
                                each, ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0)
                            )
                    else:
                        for each in names:
                            binding.bind_output(each, "cuda")

                    def run_bound(o: Any = other, b: Any = binding, h: Any = held) -> None:  # noqa: ANN401
                        for each, array in feeds.items():
                            h[each].update_inplace(array)
                        o.run_with_iobinding(b)
                        b.copy_outputs_to_cpu()

                    row[label] = summary(time_runs(run_bound, 0.6))
                except Exception as error:  # noqa: BLE001 - what a provider refuses is a result
                    row[label] = {"refused": str(error)[:200]}
        found[name] = row
    return found


@step(GROUP, seconds=150, alone=True)
def convolution_planning(context: Context) -> Figures:
    """What a request of another size costs where a model has convolutions, by cuDNN's way to search."""
    pod = context.pod()
    key = context.prepare(pod, context.model("detector"), shapes=SHAPES["detector"])
    pod.run(["fetch-artifact"], context.serve_task(key))
    model = artifact_model(pod)
    sizes = [(1, 3, 160, 160), (2, 3, 160, 160), (1, 3, 96, 160), (2, 3, 160, 320)]
    found: Figures = {}
    for search in ("HEURISTIC", "DEFAULT"):
        options = {"cudnn_conv_algo_search": search}
        session = bare_session(context, model, **(options if context.device else {}))
        inputs = [np.ones(size, np.float32) for size in sizes]
        first = []
        for x in inputs:
            began = time.perf_counter()
            session.run(None, {"x": x})
            first.append(round((time.perf_counter() - began) * 1e3, 1))
        same = summary(time_runs(lambda s=session, x=inputs[0]: s.run(None, {"x": x}), 0.5))
        turns = iter(range(10**9))

        def run_other(s: Any = session, all_inputs: Any = inputs, turn: Any = turns) -> None:  # noqa: ANN401
            s.run(None, {"x": all_inputs[next(turn) % len(all_inputs)]})

        other = summary(time_runs(run_other, 2.0, warm=0))
        found[search] = {"first_ms": first, "same_size": same, "other_size_each_time": other}
    return found


@step(GROUP, seconds=120, alone=True)
def serving_cost(context: Context) -> Figures:
    """Requests per second of a model of about 10 ms, beside bare `session.run`; target 95%."""
    pod = context.pod()
    rows, length = (64, 256) if context.device else (2, 64)
    key = context.prepare(pod, context.model("text"), shapes=_tokens(rows, length))
    task = context.serve_task(key, batch_size=1)
    pod.run(["fetch-artifact"], task)
    random = np.random.default_rng(1)
    session = bare_session(context, artifact_model(pod))

    def feeds(count: int) -> dict[str, NDArray[Any]]:
        ids = random.integers(1000, 30000, (count, length), dtype=np.int64)
        return dict(zip(_TOKENS, (ids, np.ones_like(ids), np.zeros_like(ids)), strict=True))

    one = feeds(rows)
    took = summary(time_runs(lambda: session.run(None, one), 0.5))["p50_ms"]
    if context.device:  # the number of rows that takes about 10 ms, within the profile
        one = feeds(max(1, min(rows, int(rows * 10 / took))))
    del session
    with pod.serving(task) as served:
        expect(served.wait(), f"not ready: {served.why_ended()}")
        body, headers = encode(one)
        load(body, headers, 2, 1.0)
        at = {f"connections_{n}": load(body, headers, n, 3.0).figures() for n in (1, 4)}
        seen = look(served)
    session = bare_session(context, artifact_model(pod))
    bare = summary(time_runs(lambda: session.run(None, one), 3.0))
    rate = 1e3 / bare["p50_ms"]
    return {
        "shape": list(one["input_ids"].shape),
        "bare": bare,
        "bare_runs_per_second": round(rate, 1),
        **at,
        "share_of_bare": round(at["connections_4"]["requests_per_second"] / rate, 3),
        "checks": seen["checks"],
    }


def _tokens(rows: int, length: int) -> list[dict[str, Any]]:
    return [
        {
            "input": name,
            "min": [1, 16],
            "opt": [max(1, rows // 2), length],
            "max": [rows, length],
            "low": low,
            "high": high,
        }
        for name, low, high in zip(_TOKENS, (0, 1, 0), (30000, 1, 0), strict=True)
    ]


@step(GROUP, seconds=100, alone=True)
def batching(context: Context) -> Figures:
    """Requests per second of single rows from 16 connections, with and without batching."""
    pod = context.pod()
    layers = 2 if context.device else 1
    model = made_models.encoder(context.work / "encoder.onnx", without_kernel=False, layers=layers)
    key = context.prepare(pod, model)
    found: Figures = {}
    for size in (1, 16):
        with pod.serving(context.serve_task(key, batch_size=size)) as served:
            expect(served.wait(), f"not ready: {served.why_ended()}")
            feeds = {name: array[:1] for name, array in golden(pod).items()}
            body, headers = encode(feeds)
            load(body, headers, 4, 0.5)
            found[f"batch_size_{size}"] = {
                **load(body, headers, 16, 3.0).figures(),
                "batching": look(served)["batching"],
            }
    return found


@step(GROUP, seconds=90, alone=True)
def memory_in_a_request(context: Context) -> Figures:
    """A request that needs more than the device fails alone; the next ones are answered."""
    context.needs_device  # noqa: B018 - raises
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
    context.needs_device  # noqa: B018 - raises
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
    return {"free_before": free, "ended": ended, "failed": seen["failed"], "checks": seen["checks"]}


@step(GROUP, seconds=120, alone=True)
def lost_device(context: Context) -> Figures:
    """A kernel of the process writes to an illegal address: not ready in seconds, then restarted."""
    context.needs_device  # noqa: B018 - raises
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
