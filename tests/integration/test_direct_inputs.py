"""Inputs in tensors that are kept give what NumPy's arrays give, on real sessions; where that is slower it is not used.

Here the tensors are in ONNX Runtime's ordinary memory, on a device in memory that this reads directly.
"""

import gc
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from enginewright_runtime.core.ort_messages import status
from enginewright_runtime.session.base import CpuBackend
from enginewright_runtime.session.direct_inputs import DirectInputs
from enginewright_runtime.session.runner import Runner
from enginewright_runtime.session.signature import Signature, read_signature
from enginewright_runtime.session.tensorrt_rtx import TensorRtRtxBackend
from enginewright_serving.server.startup.input_choice import choose
from enginewright_serving.server.startup.stopping import StoppableSession, StoppedError
from numpy.typing import NDArray

from tests.support.broken_models import parse_text
from tests.support.serving import linear_model, slow_model

FLOAT = np.float32
ALLOCATE = ort.OrtValue.ortvalue_from_shape_and_type


def open_session(made: onnx.ModelProto) -> ort.InferenceSession:
    return ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])


def signature_of(session: ort.InferenceSession) -> Signature:
    return read_signature(session.get_inputs(), session.get_outputs(), ())


def rows(count: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    return {"x": np.random.default_rng(seed).standard_normal((count, 8)).astype(FLOAT)}


def test_outputs_are_the_same_and_stay_so() -> None:
    """An answer is still being sent while later requests of its sizes run."""
    session = open_session(linear_model())
    direct = DirectInputs(session, ALLOCATE)
    requests = [rows(1 + seed % 3, seed) for seed in range(12)]
    usual = [session.run(["y", "total"], request) for request in requests]
    results = [direct.run(["y", "total"], request) for request in requests]
    gc.collect()
    for one, other in zip(results, usual, strict=True):
        for array, expected in zip(one, other, strict=True):
            np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("bool", np.bool_),
        ("int8", np.int8),
        ("uint16", np.uint16),
        ("int64", np.int64),
        ("float16", np.float16),
        ("double", np.float64),
    ],
)
def test_every_type_of_fixed_size(kind: str, dtype: Any) -> None:
    session = open_session(
        parse_text(f'({kind}["n", 3] x) => ({kind}["n", 3] y) {{ y = Identity(x) }}')
    )
    x = np.arange(12).reshape(4, 3)[::2].astype(dtype)
    output = DirectInputs(session, ALLOCATE).run(["y"], {"x": x.T.copy().T})
    np.testing.assert_array_equal(output[0], x)
    assert output[0].dtype == dtype


TEXT = parse_text('(string["n"] x) => (string["n"] y) { y = Identity(x) }')


@pytest.mark.parametrize(
    ("made", "x"),
    [
        (TEXT, np.array(["a", "bc"], object)),
        (linear_model(), np.ones((0, 8), FLOAT)),
        (linear_model(), np.ones((65, 8), FLOAT)),
    ],
    ids=["strings", "empty", "larger than what is kept"],
)
def test_others_run_as_usual(made: onnx.ModelProto, x: NDArray[Any]) -> None:
    def allocate(shape: Sequence[int], dtype: Any) -> ort.OrtValue:
        raise AssertionError(f"{shape} {dtype}")

    session = open_session(made)
    results = DirectInputs(session, allocate, most=64 * 8 * 4).run(["y"], {"x": x})
    np.testing.assert_array_equal(results[0], session.run(["y"], {"x": x})[0])


def test_bfloat16_runs_as_usual() -> None:
    session = open_session(parse_text("(bfloat16[2] x) => (bfloat16[2] y) { y = Identity(x) }"))
    runner = Runner(DirectInputs(session, ALLOCATE), signature_of(session))
    x = np.array([0x3F80, 0xC000], np.uint16)
    assert runner.run(["y"], {"x": x})[0].tolist() == x.tolist()


@pytest.mark.parametrize(
    "x", [np.ones((2, 7), FLOAT), np.ones((2, 8), np.float64), np.ones(8, FLOAT)]
)
def test_errors_are_the_same(x: NDArray[Any]) -> None:
    session = open_session(linear_model())
    direct = DirectInputs(session, ALLOCATE)
    said = []
    for run in (session.run, direct.run):
        with pytest.raises(Exception, match="ONNXRuntimeError") as caught:
            run(["y"], {"x": x})
        said.append((type(caught.value), status(str(caught.value))))
    assert said[0] == said[1]
    np.testing.assert_array_equal(direct.run(["y"], rows(2))[0], session.run(["y"], rows(2))[0])


def test_a_run_can_be_stopped() -> None:
    stoppable = StoppableSession(DirectInputs(open_session(slow_model()), ALLOCATE))
    ended = threading.Event()

    def stop() -> None:
        while not ended.wait(0.01):
            stoppable.stop(0.05)

    stopper = threading.Thread(target=stop)
    stopper.start()
    try:
        with pytest.raises(StoppedError):
            stoppable.run(["sum"], {"turns": np.array([10**9])})
    finally:
        ended.set()
        stopper.join()
    assert stoppable.run(["done"], {"turns": np.array([3])})[0].tolist() == [3]


def test_runs_at_the_same_time_have_their_own_tensors() -> None:
    session = open_session(linear_model())
    direct = DirectInputs(session, ALLOCATE)

    def right(seed: int) -> bool:
        feeds = rows(4, seed)
        return bool(np.array_equal(direct.run(["y"], feeds)[0], session.run(["y"], feeds)[0]))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(right, range(400)))


def test_kept_tensors_are_limited() -> None:
    allocated: list[int] = []

    def allocate(shape: Sequence[int], dtype: Any) -> ort.OrtValue:
        allocated.append(shape[0])
        return ALLOCATE(shape, dtype)

    direct = DirectInputs(open_session(linear_model()), allocate, most=5 * 8 * 4)
    for count in (2, 3, 2, 3, 4, 2, 3, 2):
        direct.run(["y"], rows(count))
    assert allocated == [2, 3, 4, 2, 3], "4 rows do not fit beside the others"


class Clock:
    """Seconds, of which a run takes more where tensors are kept, or fewer."""

    def __init__(self, session: ort.InferenceSession, usual: float, direct: float) -> None:
        self.now = 0.0
        self._session = session
        self._taken = {"run": usual, "run_with_ort_values": direct}

    def __call__(self) -> float:
        return self.now

    def __getattr__(self, name: str) -> Any:
        def run(*arguments: Any) -> Any:
            self.now += self._taken[name]
            return getattr(self._session, name)(*arguments)

        return run


@pytest.mark.parametrize(("direct", "pays"), [(0.008, True), (0.0097, False), (0.012, False)])
def test_it_is_chosen_where_it_is_faster(
    direct: float, pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_session(linear_model())
    clock = Clock(session, 0.01, direct)
    monkeypatch.setattr(time, "perf_counter", clock)
    chosen = choose(clock, ALLOCATE, signature_of(session), rows(2))
    assert chosen.report == {"direct": pays, "seconds": {"usual": 0.01, "direct": direct}}
    assert isinstance(chosen.session, DirectInputs) == pays


def test_a_slow_model_does_not_prolong_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    session = open_session(linear_model())
    clock = Clock(session, 1.5, 1.0)
    monkeypatch.setattr(time, "perf_counter", clock)
    assert choose(clock, ALLOCATE, signature_of(session), rows(2)).report["direct"]
    assert clock.now < 8


def test_without_device_memory_nothing_is_chosen() -> None:
    session = open_session(linear_model())
    chosen = choose(session, None, signature_of(session), rows(1))
    assert (chosen.session, chosen.report) == (session, {})
    assert CpuBackend().host_memory() is None
    assert TensorRtRtxBackend().host_memory() is None, "there is no device here"


def test_a_failure_leaves_the_usual_way(caplog: pytest.LogCaptureFixture) -> None:
    def allocate(shape: Sequence[int], dtype: Any) -> ort.OrtValue:
        raise MemoryError(f"out of page-locked memory for {shape} {dtype}")

    session = open_session(linear_model())
    chosen = choose(session, allocate, signature_of(session), rows(1))
    assert (chosen.session, chosen.report) == (session, {"direct": False})
    assert "inputs are not copied directly: out of page-locked memory" in caplog.text
