"""Benchmarks: their figures, real sessions measured in turn, and candidates that fail."""

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from enginewright_contract.manifest import Latency
from enginewright_contract.reasons import Reason
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.memory import peak_bytes
from enginewright_runtime.core.nvml import device_bytes
from enginewright_runtime.proof.latency import comparing, worker
from enginewright_runtime.proof.latency.comparing import BenchmarkCandidate, compare, measure
from enginewright_runtime.proof.latency.figures import choose_samples, is_warm, latency, rows
from enginewright_runtime.proof.latency.process import WorkerProcess

from tests.support import broken_models as broken
from tests.support.extensions import compile_c
from tests.support.optional import present


@pytest.mark.parametrize(
    ("times", "warm"),
    [
        ([1.0] * 9, False),  # too few to tell
        ([1.0] * 10, True),
        ([10, 5, 3, 2, 2, 1, 1, 1, 1, 1], False),
        ([10, 5, 3, 2, 2, *[1.0] * 10], True),
        ([1, 1, 1, 1, 1, 9, 1, 1, 1, 1], True),  # one hiccup
        ([1.0] * 5 + [1.05] * 5, True),
    ],
)
def test_when_a_warm_up_is_over(times: Sequence[float], warm: bool) -> None:
    assert is_warm(times) is warm


def test_figures_of_runs() -> None:
    reported = latency([0.01] * 90 + [0.02] * 10, "opt", 8)
    assert (reported.p50, reported.samples, reported.shapes) == (0.01, 100, "opt")
    assert reported.p90 == pytest.approx(0.011)
    assert reported.p99 == 0.02
    assert reported.throughput == pytest.approx(8 / 0.011)
    assert (
        Latency.model_validate_json('{"p50": 1, "p90": 1, "p99": 1, "samples": 1}').shapes is None
    )


def test_rows() -> None:
    assert rows({"sr": np.array(16000), "x": np.zeros((3, 4))}) == 3
    assert rows({"x": np.zeros(4)}) == 1
    assert rows({}) == 1


def test_which_samples_are_run() -> None:
    corners = {"min": ((1, 4),), "opt": ((8, 4),), "max": ((32, 4),)}
    assert choose_samples(corners, ("min", "opt", "max")) == ["min", "opt", "max"]
    own = {name: ((size, 4),) for name, size in zip("abcdef", [5, 1, 9, 1, 3, 7], strict=True)}
    assert choose_samples(own, ("min", "opt", "max")) == ["b", "a", "c"]
    assert choose_samples({"sample": ((1, 4),)}, ("min", "opt", "max")) == ["sample"]


class Files:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inputs = folder / "inputs.npz"
        arrays: dict[str, Any] = {
            f"{name}/x": np.ones((size, 256), np.float32)
            for name, size in (("min", 1), ("opt", 4), ("max", 16))
        }
        np.savez(self.inputs, **arrays)

    def candidate(
        self, name: str, model: onnx.ModelProto, backend: str = "cpu"
    ) -> BenchmarkCandidate:
        path = self.folder / f"{name}.onnx"
        onnx.save(model, path)
        return BenchmarkCandidate(name, path, backend)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def chain(length: int) -> onnx.ModelProto:
    """Return matrix products one after the other."""
    names = ["x", *(f"h{index}" for index in range(length - 1)), "y"]
    nodes = " ".join(f"{names[at + 1]} = MatMul({names[at]}, w)" for at in range(length))
    text = f'(float["batch", 256] x) => (float["batch", 256] y) {{ {nodes} }}'
    return broken.parse_text(text, broken.initializer("w", np.eye(256)))


def test_candidates_in_turn(files: Files) -> None:
    candidates = [files.candidate("short", chain(2)), files.candidate("long", chain(60))]
    short, long = compare(candidates, files.inputs, seconds=0.5)
    for result in (short, long):
        assert result.failure is None
        assert [item.shapes for item in result.latencies] == ["min", "opt", "max"]
        for item in result.latencies:
            assert 0 < item.p50 <= item.p90 <= item.p99
            assert item.samples >= 3
            assert item.warm_up_runs is not None
            assert item.warm_up_runs >= 2
            assert item.peak_memory_bytes is not None
            assert 20 << 20 < item.peak_memory_bytes < 2 << 30
            assert item.peak_device_memory_bytes is None  # no device here
        few, _, many = (item.throughput or 0 for item in result.latencies)
        assert many > few
        assert result.usual is result.latencies[1]
    assert short.usual is not None
    assert long.usual is not None
    assert short.usual.p50 * 2 < long.usual.p50
    pairs = list(zip(short.rounds["opt"], long.rounds["opt"], strict=False))
    assert sum(one < other for one, other in pairs) >= 0.8 * len(pairs)


def test_usual_shapes_alone(files: Files) -> None:
    (result,) = compare(
        [files.candidate("a", chain(2))], files.inputs, seconds=0.2, usual_only=True
    )
    assert list(result.rounds) == ["opt"]
    assert result.usual_rounds == result.rounds["opt"]


def test_one_that_fails_does_not_keep_the_others(files: Files, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(b"nothing")
    results = compare(
        [
            BenchmarkCandidate("damaged", damaged, "cpu"),
            files.candidate("good", chain(2)),
            files.candidate("elsewhere", chain(2), "openvino"),
            files.candidate("narrow", broken.relu()),
        ],
        files.inputs,
        seconds=0.2,
    )
    failures = {result.candidate.name: result.failure for result in results}
    assert failures["good"] is None
    assert results[1].usual is not None
    reasons = {name: failure.reason for name, failure in failures.items() if failure}
    assert reasons == {
        "damaged": Reason.UNSUPPORTED_OPERATOR,
        "elsewhere": Reason.PROVIDER_MISSING,
        "narrow": Reason.UNSUPPORTED_OPERATOR,
    }
    for failure in failures.values():
        if failure is not None:
            assert failure.message.startswith("measuring ")
    assert results[0].usual is None


def test_measuring_one_raises(files: Files, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(b"nothing")
    with pytest.raises(StageFailure, match="measuring damaged on backend cpu"):
        measure(damaged, "cpu", files.inputs)


def dies(descriptor: int) -> int:
    """Be a worker whose native code crashes."""
    os.kill(os.getpid(), signal.SIGSEGV)
    return descriptor


def hangs(descriptor: int) -> int:
    """Be a worker that answers nothing."""
    sys.stdin.read()
    return descriptor


def test_a_worker_that_dies_or_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "main", dies)
    with WorkerProcess("measuring", 60) as process, pytest.raises(StageFailure) as reported:
        process.warm_up("opt", 1.0)
    assert reported.value.reason is Reason.BACKEND_CRASHED
    assert "measuring crashed with SIGSEGV" in reported.value.message
    monkeypatch.setattr(worker, "main", hangs)
    began = time.monotonic()
    with WorkerProcess("measuring", 0.2) as process, pytest.raises(StageFailure) as late:
        process.warm_up("opt", 1.0)
    assert late.value.reason is Reason.TIMEOUT
    assert time.monotonic() - began < 30


def test_strings_and_slow_first_runs(files: Files) -> None:
    model = broken.parse_text("(string[2] x) => (string[2] y) { y = StringConcat(x, x) }", opset=20)
    samples: dict[str, Any] = {"sample/x": np.array(["a", "b"])}
    np.savez(files.inputs, **samples)
    candidate = files.candidate("words", model)
    result = measure(candidate.model, "cpu", files.inputs, seconds=0.1)
    assert [item.shapes for item in result.latencies] == ["sample"]
    assert result.latencies[0].samples <= comparing._MOST_RUNS + comparing._MOST_REPEATS


def test_memory_of_this_process() -> None:
    peak = present(peak_bytes())
    assert peak > 10 << 20


STUB = """
#include <stddef.h>
typedef struct { unsigned long long total, free, used; } memory_t;
int nvmlInit_v2(void) { return RESULT; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)7; return index; }
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    memory->total = 100; memory->free = 58; memory->used = 42;
    return device != (void *)7;
}
"""


@pytest.mark.parametrize(("result", "used"), [(0, 42), (9, None)])
def test_memory_of_a_device(result: int, used: int | None, tmp_path: Path) -> None:
    """Where there is no device, the library is a stand-in with nvml.h's signatures."""
    library = compile_c(tmp_path / "libnvml.so", STUB, f"-DRESULT={result}")
    assert device_bytes(library) == used
    assert device_bytes(str(tmp_path / "none.so")) is None
