"""Several runs of the model at the same time, and everything that assumed that there is one."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from enginewright_contract.execution import size_class
from enginewright_contract.task import ServeTask
from enginewright_runtime.core import limits
from enginewright_serving.server.startup import concurrency as proof
from enginewright_serving.server.startup.prepare import prepare
from enginewright_serving.server.startup.stopping import StoppableSession, StoppedError
from numpy.typing import NDArray

from tests.support.serving import (
    Feeds,
    Server,
    binary_inputs,
    has_runs_at_the_same_time,
    linear_model,
    real_model,
    slow_model,
    write_artifact,
)
from tests.support.turns import (
    find_long_turns,
    measure_turns,
    queue_depth,
    slow_request,
    wait_for_loop,
)
from tests.support.waiting import until

TWO = has_runs_at_the_same_time(2)


def concurrency(server: Server) -> dict[str, Any]:
    reported = server.get("/v2/models/m/execution").json()
    return dict(reported["details"]["concurrency"])


@pytest.fixture(scope="module")
def second(slow: Server) -> int:
    return find_long_turns(slow)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The model whose time can be chosen, with two runs at a time and a queue of two."""
    root = tmp_path_factory.mktemp("slow")
    task = write_artifact(
        root, slow_model(), [{"turns": np.array([1])}], max_queue=2, concurrent_runs=None
    )
    patient = "enginewright_serving.server.inference.job_queue._LEAST_PATIENCE = 60.0\n"
    imports = "import enginewright_serving.server.inference.job_queue\n"
    with Server(root, task, before=TWO + imports + patient) as server:
        assert concurrency(server) == {"max_runs": 2, "gain": 2.0, "off": ""}
        yield server


def test_a_request_runs_while_another_one_does(slow: Server, second: int) -> None:
    with slow.wire() as long, slow.wire() as short:
        long.send(slow_request(slow, second))
        wait_for_loop(slow)
        short.send(slow_request(slow, 1))
        answered = threading.Event()

        def receive() -> None:
            assert long.receive().status == 200
            answered.set()

        waiting = threading.Thread(target=receive)
        waiting.start()
        assert short.receive().status == 200
        assert not answered.is_set()
        waiting.join(60)
        assert answered.is_set()


def test_the_queue_holds_as_many_as_ever(slow: Server, second: int) -> None:
    with ExitStack() as stack:
        wires = [stack.enter_context(slow.wire()) for _ in range(5)]
        for wire in wires[:2]:
            wire.send(slow_request(slow, second))
        wait_for_loop(slow)
        until(lambda: queue_depth(slow) == 0)
        for number, wire in enumerate(wires[2:4], 1):
            wire.send(slow_request(slow, 1))
            until(lambda number=number: queue_depth(slow) == number)  # type: ignore[misc]  # mypy cannot infer it
        wires[4].send(slow_request(slow, 1))
        assert wires[4].receive().status == 503
        assert [wire.receive().status for wire in wires[:4]] == [200] * 4
    assert queue_depth(slow) == 0


def test_only_runs_without_neighbours_are_timed(slow: Server, second: int) -> None:
    def counts() -> tuple[int, int]:
        buckets = slow.get("/v2/models/m/execution").json()["buckets"]
        bucket = next(item for item in buckets if item["elements"] == size_class(1))
        return bucket["count"], bucket["untimed"]

    timed, untimed = counts()
    with slow.wire() as long, slow.wire() as short:
        long.send(slow_request(slow, second))
        wait_for_loop(slow)
        short.send(slow_request(slow, 1))
        assert short.receive().status == long.receive().status == 200
    assert counts() == (timed, untimed + 2)
    assert measure_turns(slow, 1) > 0
    assert counts() == (timed + 1, untimed + 2)


def test_a_run_that_hangs_beside_others_makes_the_server_not_live(
    tmp_path: Path, second: int
) -> None:
    task = write_artifact(tmp_path, slow_model(), [{"turns": np.array([1])}], concurrent_runs=None)
    with (
        Server(tmp_path, task, before=TWO, stuck_seconds=1.0) as server,
        server.wire() as endless,
        server.wire() as other,
    ):
        endless.send(slow_request(server, second * 1000))

        def not_live() -> bool:
            other.send(slow_request(server, 1))
            assert other.receive().status == 200, "the other thread works"
            return server.get("/v2/health/live").status == 503

        until(not_live)


def test_a_drain_waits_for_all_runs(tmp_path: Path, second: int) -> None:
    task = write_artifact(tmp_path, slow_model(), [{"turns": np.array([1])}], concurrent_runs=None)
    with Server(tmp_path, task, before=TWO, drain_linger=0.1) as server, ExitStack() as stack:
        wires = [stack.enter_context(server.wire()) for _ in range(4)]
        for wire in wires:
            wire.send(slow_request(server, second))
        wait_for_loop(server)
        server.terminate()
        assert [wire.receive().status for wire in wires] == [200] * 4
        assert server.wait() == 0


def test_many_clients_of_a_real_model_get_the_answers_that_it_gives_alone(tmp_path: Path) -> None:
    path = real_model("ch_PP-OCRv4_rec_infer.onnx")
    rng = np.random.default_rng(11)
    # widths differ, so that neighbours need other memory
    given = [rng.random((1, 3, 48, 96 + 32 * (index % 4)), np.float32) for index in range(48)]
    task = write_artifact(
        tmp_path, path, [{"x": array} for array in given[:3]], concurrent_runs=None
    )
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])

    def ask(server: Server, array: NDArray[np.float32]) -> NDArray[Any]:
        answer = server.post(*binary_inputs(x=array))
        assert answer.status == 200
        return np.frombuffer(answer.tensors(), np.float32)

    with (
        Server(tmp_path, task, before=has_runs_at_the_same_time(4)) as server,
        ThreadPoolExecutor(8) as pool,
    ):
        assert concurrency(server)["max_runs"] == 4
        answers = list(pool.map(lambda array: ask(server, array), given))
    for array, answer in zip(given, answers, strict=True):
        (expected,) = session.run(None, {"x": array})
        np.testing.assert_allclose(answer, expected.ravel(), 1e-4, 1e-5)


def prove(task: ServeTask, root: Path) -> dict[str, Any]:
    """Return what the start finds, in this process."""
    served = prepare(task, root / "artifact", lambda _: None)
    return dict(json.loads(served.execution.document())["details"]["concurrency"])


def test_concurrency_of_a_real_model_is_consistent(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sample = {"x": rng.random((1, 3, 160, 160), np.float32)}
    path = real_model("ch_PP-OCRv4_det_infer.onnx")
    report = prove(write_artifact(tmp_path, path, [sample], concurrent_runs=None), tmp_path)
    # whether it pays depends on the machine and on what else runs on it
    assert (report["max_runs"] > 1) == (not report["off"]), report
    assert report["off"] or report["gain"] >= 1.15


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have two runs at the same time pay and have CPUs for them, as `TWO` does."""
    monkeypatch.setattr(limits, "threads", lambda: 2)
    monkeypatch.setattr(proof, "_SHORTEST", 0.0)
    monkeypatch.setattr(proof.ConcurrencyProver, "_gains", lambda *_: {2: 2.0})


@pytest.mark.usefixtures("two")
def test_a_user_may_have_one_run_at_a_time(tmp_path: Path) -> None:
    task = write_artifact(tmp_path, slow_model(), [{"turns": np.array([1])}])
    assert task.concurrent_runs == 1
    assert prove(task, tmp_path)["off"] == "serving.maxConcurrentRuns is 1"


@pytest.mark.usefixtures("two")
def test_short_runs_stay_in_the_event_loop(tmp_path: Path) -> None:
    sample: Feeds = {"x": np.ones((2, 8), np.float32)}
    report = prove(
        write_artifact(tmp_path, linear_model(), [sample], concurrent_runs=None), tmp_path
    )
    assert report["max_runs"] == 1
    assert report["off"] == "runs are short, and take place in the event loop"


def test_of_two_runs_of_a_session_only_the_long_one_is_stopped() -> None:
    session = StoppableSession(
        ort.InferenceSession(slow_model().SerializeToString(), providers=["CPUExecutionProvider"])
    )
    with ThreadPoolExecutor(2) as pool:
        long = pool.submit(session.run, ["done"], {"turns": np.array([10**9])})
        began = time.monotonic()
        while time.monotonic() - began < 1.0:
            short = pool.submit(session.run, ["done"], {"turns": np.array([1])})
            session.stop(longer_than=1.0)
            assert short.result(60) == [np.array([1])]
        while not long.done():
            session.stop(longer_than=1.0)
            time.sleep(0.01)
        with pytest.raises(StoppedError, match="stopped after"):
            long.result()
