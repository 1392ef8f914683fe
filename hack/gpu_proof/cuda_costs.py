"""What serving with CUDA costs, and what could make it cheaper."""

import itertools
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hack.gpu_proof import made_models
from hack.gpu_proof.cuda_group import (
    GROUP,
    SHAPES,
    TOKENS,
    Feeds,
    artifact_model,
    bare_session,
    golden,
    look,
)
from hack.gpu_proof.steps import Context, Figures, expect, step
from hack.gpu_proof.traffic import encode, load, summary, time_runs


@step(GROUP, seconds=100, alone=True)
def bindings_and_graphs(context: Context) -> Figures:
    """What IO binding and CUDA graphs gain over `session.run`, by model."""
    figures: Figures = {}
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
        plain = bare_session(context, model)
        times = time_runs(partial(plain.run, None, feeds), 0.6)
        row: Figures = {
            "shapes": {n: list(a.shape) for n, a in feeds.items()},
            "run": summary(times),
        }
        if context.device:
            for label, graph in (("bound", False), ("graph", True)):
                try:
                    row[label] = summary(time_runs(_bind(context, model, feeds, graph=graph), 0.6))
                except Exception as error:  # noqa: BLE001 - what a provider refuses is a result
                    row[label] = {"refused": str(error)[:200]}
        figures[name] = row
    return figures


def _bind(context: Context, model: Path, feeds: Feeds, *, graph: bool) -> Callable[[], object]:
    """Return a run whose tensors stay on the device, and are copied to and from it."""
    import onnxruntime as ort  # noqa: PLC0415 - loads CUDA

    session = bare_session(context, model, **({"enable_cuda_graph": "1"} if graph else {}))
    binding = session.io_binding()
    held = {name: ort.OrtValue.ortvalue_from_numpy(a, "cuda", 0) for name, a in feeds.items()}
    for name, tensor in held.items():
        binding.bind_ortvalue_input(name, tensor)
    outputs = session.run(None, feeds) if graph else ()
    for index, output in enumerate(session.get_outputs()):
        if graph:  # a graph writes to fixed addresses
            kept = ort.OrtValue.ortvalue_from_numpy(outputs[index], "cuda", 0)
            binding.bind_ortvalue_output(output.name, kept)
        else:
            binding.bind_output(output.name, "cuda")

    def run() -> object:
        for name, array in feeds.items():
            held[name].update_inplace(array)
        session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()

    return run


@step(GROUP, seconds=150, alone=True)
def convolution_planning(context: Context) -> Figures:
    """What a request of another size costs where a model has convolutions, by cuDNN's way to search."""
    pod = context.pod()
    key = context.prepare(pod, context.model("detector"), shapes=SHAPES["detector"])
    pod.run(["fetch-artifact"], context.serve_task(key))
    model = artifact_model(pod)
    sizes = [(1, 3, 160, 160), (2, 3, 160, 160), (1, 3, 96, 160), (2, 3, 160, 320)]
    figures: Figures = {}
    for search in ("HEURISTIC", "DEFAULT"):
        options = {"cudnn_conv_algo_search": search}
        session = bare_session(context, model, **(options if context.device else {}))
        inputs = [np.ones(size, np.float32) for size in sizes]
        first = []
        for x in inputs:
            began = time.perf_counter()
            session.run(None, {"x": x})
            first.append(round((time.perf_counter() - began) * 1e3, 1))
        same = summary(time_runs(partial(session.run, None, {"x": inputs[0]}), 0.5))
        other = summary(time_runs(_in_turn(session, inputs), 2.0, warm=0))
        figures[search] = {"first_ms": first, "same_size": same, "other_size_each_time": other}
    return figures


def _in_turn(session: Any, inputs: list[NDArray[Any]]) -> Callable[[], object]:  # noqa: ANN401 - ONNX Runtime's
    turns = itertools.cycle(inputs)
    return lambda: session.run(None, {"x": next(turns)})


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
        return dict(zip(TOKENS, (ids, np.ones_like(ids), np.zeros_like(ids)), strict=True))

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
        for name, low, high in zip(TOKENS, (0, 1, 0), (30000, 1, 0), strict=True)
    ]


@step(GROUP, seconds=100, alone=True)
def batching(context: Context) -> Figures:
    """Requests per second of single rows from 16 connections, with and without batching."""
    pod = context.pod()
    layers = 2 if context.device else 1
    model = made_models.encoder(context.work / "encoder.onnx", without_kernel=False, layers=layers)
    key = context.prepare(pod, model)
    figures: Figures = {}
    for size in (1, 16):
        with pod.serving(context.serve_task(key, batch_size=size)) as served:
            expect(served.wait(), f"not ready: {served.why_ended()}")
            feeds = {name: array[:1] for name, array in golden(pod).items()}
            body, headers = encode(feeds)
            load(body, headers, 4, 0.5)
            figures[f"batch_size_{size}"] = {
                **load(body, headers, 16, 3.0).figures(),
                "batching": look(served)["batching"],
            }
    return figures
