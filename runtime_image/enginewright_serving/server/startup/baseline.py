"""Measures the pod's baseline before it is ready: latency percentiles of one set of shapes."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from enginewright_contract.execution import Baseline
from enginewright_contract.manifest import LEAST_RUNS
from enginewright_contract.task import Recipe
from enginewright_runtime.proof.latency.figures import is_warm
from enginewright_runtime.session.samples import GoldenSample

from enginewright_serving.server.protocol.decode import Feeds
from enginewright_serving.server.startup.known_times import is_confirmed
from enginewright_serving.server.startup.run_proof import measure_run

_SECONDS: Final = 2.0  # for warm-up and measurement
_MOST_SECONDS: Final = 5.0  # instead, if the runs that p99 needs fit into this
_MOST_RUNS: Final = 200
_MOST_WARM_UPS: Final = 50
_CONFIRMING: Final = 5  # runs whose median confirms the baseline of another pod
_OPT: Final = "opt"


def baseline_feeds(samples: Sequence[GoldenSample], recipe: Recipe) -> tuple[str, Feeds]:
    """Return name and inputs of the golden sample `opt`, else of one with these shapes, else of the median one by size."""
    opt = {profile.input: profile.opt for profile in recipe.shapes}
    for sample in samples:
        fits = opt and all(sample.feeds[name].shape == shape for name, shape in opt.items())
        if sample.name == _OPT or fits:
            return _OPT, sample.feeds
    ordered = sorted(
        samples, key=lambda golden_sample: sum(array.size for array in golden_sample.feeds.values())
    )
    middle = ordered[len(ordered) // 2]
    return middle.name, middle.feeds


def measure(
    run: Callable[[], Any], shapes: str, earlier: Baseline | None = None
) -> Baseline | None:
    """Run until the time of a run is stable, then measure inputs of `shapes`, unless too few runs fit in.

    If the first runs confirm the baseline that is `earlier`, from another pod, it is this pod's too.
    """
    end = time.monotonic() + _SECONDS
    warming: list[float] = []
    while not is_warm(warming) and len(warming) < _MOST_WARM_UPS and time.monotonic() < end:
        warming.append(measure_run(run))
        if earlier and earlier.shapes == shapes and _confirms(earlier, warming[-_CONFIRMING:]):
            return earlier
    times: list[float] = []
    while len(times) < _MOST_RUNS and time.monotonic() < end:
        times.append(measure_run(run))
    lacking = LEAST_RUNS[99] - len(times)
    if times and lacking * float(np.median(times)) <= _MOST_SECONDS - _SECONDS:
        times += [measure_run(run) for _ in range(lacking)]
    if len(times) < LEAST_RUNS[50]:
        times = warming[1:]  # a slow model: its warm-up without the first run
    return figures(times, shapes)


def _confirms(earlier: Baseline, times: Sequence[float]) -> bool:
    return len(times) == _CONFIRMING and is_confirmed(earlier.p50, float(np.median(times)))


def figures(times: Sequence[float], shapes: str) -> Baseline | None:
    """Return the percentiles for which there are enough runs, if there are enough for the median."""
    p50, p90, p99 = (
        float(np.percentile(times, percent)) if len(times) >= least else None
        for percent, least in LEAST_RUNS.items()
    )
    if p50 is None:
        return None
    return Baseline(p50=p50, p90=p90, p99=p99, samples=len(times), shapes=shapes)
