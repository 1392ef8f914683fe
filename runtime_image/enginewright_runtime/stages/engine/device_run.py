"""Runs an engine on the device: what the child processes of `verify` and `benchmark` execute.

It reads and runs as the server does, so that what passes here passes there.
"""

import time
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from enginewright_runtime import backends
from enginewright_runtime.parity import Tolerances
from enginewright_runtime.parity import difference as parity_difference
from enginewright_runtime.server.golden import Sample, read_samples, type_name
from enginewright_runtime.server.runner import Runner
from enginewright_runtime.server.signature import Signature, read_signature

_WARM_UP_RUNS: Final = 10
_MOST_RUNS: Final = 500
_SECONDS: Final = 10.0  # after which a benchmark ends, whatever it has
_USUAL: Final = "opt"  # the sample that is measured, if there is one of that name


def prove(
    backend: str, model: str, inputs: str, outputs: str, rtol: float | None, atol: float | None
) -> dict[str, Any]:
    """Run every golden sample and compare, by the server's rule.

    Returns:
        `failed`: which output of which sample differs, and how; or `samples`, their number, and
        `max_abs_error`.

    Raises:
        StageFailure: as `backends.create`.
        SessionError: ONNX Runtime refuses the engine.
    """
    runner, signature = _load(backend, model)
    samples = read_samples(Path(inputs), Path(outputs), signature)
    worst = 0.0
    for sample in samples:
        found = _run(runner, signature, sample)
        for name, expected in sample.expected.items():
            datatype = signature.outputs[name].datatype
            wrong = difference(expected, found[name], datatype, rtol=rtol, atol=atol)
            again = _run(runner, signature, sample)[name] if wrong else None
            if again is not None and difference(found[name], again, datatype) is None:
                return {"failed": f"output {name!r} of golden sample {sample.name!r} {wrong}"}
            if again is None:
                worst = max(worst, _largest_error(expected, found[name]))
    return {"samples": len(samples), "max_abs_error": worst}


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


def _largest_error(expected: NDArray[Any], found: NDArray[Any]) -> float:
    """Return the largest absolute difference of finite numbers; 0 for what NumPy has no floats of."""
    if expected.dtype.kind != "f" or not expected.size:
        return 0.0
    gap = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    return float(np.max(gap, where=np.isfinite(gap), initial=0.0))


def difference(want: NDArray[Any], have: NDArray[Any], datatype: Any, rtol: float | None = None, atol: float | None = None) -> str | None:
    kind = type_name(datatype)
    return parity_difference(want, have, Tolerances(rtol=rtol, atol=atol).of_output("", kind), kind)
