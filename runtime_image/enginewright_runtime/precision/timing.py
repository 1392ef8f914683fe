"""Times models of several precisions against each other, on the backend that is to serve.

Rounds are interleaved, so that other load on the machine meets all of them alike. What a child process
executes.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from enginewright_runtime.backends import loading
from enginewright_runtime.server.runner import Runner
from enginewright_runtime.server.signature import read_signature
from enginewright_runtime.stages.golden_run import Arrays, read_arrays, run_sample

_ROUNDS: Final = 21
_LEAST: Final = 5  # rounds, however slow
_SECONDS: Final = 30.0  # for all rounds
_ROUND_SECONDS: Final = 0.02  # of one model in one round: short runs are repeated
_MOST_RUNS: Final = 50  # in one round
_USUAL: Final = "opt"  # the sample to run, if there is one of that name


def measure(*, models: Mapping[str, str], backend: str, inputs: str) -> dict[str, list[float]]:
    """Return seconds a run, one figure a round, for each model.

    Args:
        models: .onnx files by name.
        backend: that runs them.
        inputs: golden inputs, an .npz file of arrays SAMPLE/INPUT.

    Raises:
        StageFailure, SessionError: as `loading.create`.
    """
    samples = read_arrays(Path(inputs))
    feeds = samples.get(_USUAL) or next(iter(samples.values()))
    runs = {name: _run(Path(path), backend, feeds) for name, path in models.items()}
    repeats = {name: _repeats(run) for name, run in runs.items()}
    spent: dict[str, list[float]] = {name: [] for name in models}
    end = time.monotonic() + _SECONDS
    for number in range(_ROUNDS):
        if number >= _LEAST and time.monotonic() >= end:
            break
        for name, run in runs.items():
            began = time.perf_counter()
            for _ in range(repeats[name]):
                run()
            spent[name].append((time.perf_counter() - began) / repeats[name])
    return spent


def _run(path: Path, backend: str, feeds: Arrays) -> Callable[[], object]:
    """Load a model; return what runs it once."""
    session = loading.create(backend, path).session
    signature = read_signature(session.get_inputs(), session.get_outputs(), ())
    return partial(run_sample, Runner(session, signature), signature, feeds)


def _repeats(run: Callable[[], object]) -> int:
    """Warm up, for memory is laid out and kernels are chosen; return how many runs fill a round."""
    run()
    began = time.perf_counter()
    run()
    once = time.perf_counter() - began
    return max(1, min(_MOST_RUNS, int(_ROUND_SECONDS / max(once, 1e-6))))
