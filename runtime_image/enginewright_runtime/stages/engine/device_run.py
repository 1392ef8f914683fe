"""Runs an engine on the device: what the child process of `benchmark` executes.

It reads and runs as the server does, so that what passes here passes there.
"""

import time
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from enginewright_runtime import backends
from enginewright_runtime.server.golden import Sample, read_samples
from enginewright_runtime.server.runner import Runner
from enginewright_runtime.server.signature import Signature, read_signature

_WARM_UP_RUNS: Final = 10
_MOST_RUNS: Final = 500
_SECONDS: Final = 10.0  # after which a benchmark ends, whatever it has
_USUAL: Final = "opt"  # the sample that is measured, if there is one of that name


def benchmark(backend: str, model: str, inputs: str, outputs: str) -> dict[str, float]:
    """Measure the time of a run; returns `Latency` as JSON, in seconds.

    Raises:
        StageFailure: as `backends.create`.
        SessionError: ONNX Runtime refuses the engine.
    """
    runner, signature = _load(backend, model)
    samples = {each.name: each for each in read_samples(Path(inputs), Path(outputs), signature)}
    sample = samples.get(_USUAL) or next(iter(samples.values()))
    for _ in range(_WARM_UP_RUNS):
        _run(runner, signature, sample)
    times: list[float] = []
    began = time.monotonic()
    while len(times) < _MOST_RUNS and (not times or time.monotonic() - began < _SECONDS):
        start = time.perf_counter()
        _run(runner, signature, sample)
        times.append(time.perf_counter() - start)
    p50, p90, p99 = (float(each) for each in np.percentile(times, [50, 90, 99]))
    return {"p50": p50, "p90": p90, "p99": p99, "samples": len(times)}


def _load(backend: str, model: str) -> tuple[Runner, Signature]:
    session = backends.create(backend, Path(model)).session
    signature = read_signature(session.get_inputs(), session.get_outputs(), ())
    return Runner(session, signature), signature


def _run(runner: Runner, signature: Signature, sample: Sample) -> dict[str, NDArray[Any]]:
    names = list(signature.outputs)
    return dict(zip(names, runner.run(names, sample.feeds), strict=True))
