"""Requests of several clients run together, and each gets the outputs that it gets alone."""

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from enginewright_contract.task import ServeTask
from numpy.typing import NDArray
from onnxruntime.quantization import quantize_dynamic

from tests.support.batches import BATCHES_PAY
from tests.support.broken_models import initializer, parse_text
from tests.support.serving import Server, binary_inputs, json_inputs, write_artifact

CLIENTS: Final = 16
REQUESTS: Final = 60  # of each client
# Answers within rounding: kernels of another batch size add in another order.
RELATIVE: Final = 1e-5


@dataclass(frozen=True)
class Runs:
    """What the server has counted."""

    runs: float
    requests: float

    @classmethod
    def of(cls, server: Server) -> "Runs":
        name = "enginewright_batch_size_"
        return cls(server.metric(f"{name}count"), server.metric(f"{name}sum"))


def dense(size: int, *, hidden: int = 0) -> onnx.ModelProto:
    """Return x [batch, size] -> y [batch, 4]; `hidden`: size of a layer between."""
    rng = np.random.default_rng(7)
    inner = hidden or size
    return parse_text(
        f"""(float[batch, {size}] x) => (float[batch, 4] y) {{
        h = MatMul(x, a) r = Tanh(h) y = MatMul(r, b) }}""",
        initializer("a", (rng.standard_normal((size, inner)) / size**0.5).astype(np.float32)),
        initializer("b", (rng.standard_normal((inner, 4)) / inner**0.5).astype(np.float32)),
    )


def batching(server: Server) -> dict[str, Any]:
    return dict(server.get("/v2/models/m/execution").json()["details"]["batching"])


def ask(server: Server, send: Callable[[int], NDArray[Any]], client: int) -> list[Any]:
    """Send one request after another in binary; return their answers, or their status if refused."""
    answers: list[Any] = []
    with server.wire() as wire:
        for number in range(REQUESTS):
            array = send(client * REQUESTS + number)
            name = "ids" if array.dtype == np.int64 else "x"
            wire.send(server.infer_request(*binary_inputs(**{name: array})))
            answer = wire.receive()
            if answer.status != 200:
                answers.append(answer.status)
                continue
            values = answer.tensors()
            (output,) = json.loads(answer.body.removesuffix(values))["outputs"]
            answers.append(np.frombuffer(values, np.float32).reshape(output["shape"]))
    return answers


def write_served(
    root: Path, built: onnx.ModelProto, sample: NDArray[Any], **changes: Any
) -> tuple[ServeTask, ort.InferenceSession]:
    name = built.graph.input[0].name
    task = write_artifact(root, built, [{name: sample}, {name: sample[::-1]}])
    session = ort.InferenceSession(root / "artifact/model.onnx", providers=["CPUExecutionProvider"])
    return task.model_copy(update=changes), session


@pytest.mark.parametrize("hidden", [0, 40_000], ids=["in the event loop", "in the thread"])
def test_many_clients_get_their_own_answers_from_fewer_runs(tmp_path: Path, hidden: int) -> None:
    rng = np.random.default_rng(3)
    given = [rng.random((1 + index % 3, 64), np.float32) for index in range(CLIENTS * REQUESTS)]
    task, session = write_served(tmp_path, dense(64, hidden=hidden), given[0][:1].repeat(2, 0))
    with (
        Server(tmp_path, task, before=BATCHES_PAY) as server,
        ThreadPoolExecutor(CLIENTS) as pool,
    ):
        assert batching(server)["max_size"] > 1, batching(server)
        parts = pool.map(lambda client: ask(server, given.__getitem__, client), range(CLIENTS))
        answers = [answer for part in parts for answer in part]
        counted = Runs.of(server)
    assert counted.requests == len(given)
    # how many wait together is the machine's: busy, it has few clients waiting at once
    assert counted.runs < len(given)
    for array, answer in zip(given, answers, strict=True):
        (expected,) = session.run(None, {"x": array})
        np.testing.assert_allclose(answer, expected, RELATIVE, RELATIVE)


def test_an_invalid_request_fails_alone(tmp_path: Path) -> None:
    table = np.arange(80, dtype=np.float32).reshape(20, 4)
    built = parse_text(
        "(int64[batch] ids) => (float[batch, 4] y) { y = Gather(table, ids) }",
        initializer("table", table, None),
    )
    task, _ = write_served(tmp_path, built, np.arange(6))

    def ids(number: int) -> NDArray[np.int64]:
        return np.array([1000 if number < REQUESTS else number % 20])  # all of the first client

    with (
        Server(tmp_path, task, before=BATCHES_PAY) as server,
        ThreadPoolExecutor(CLIENTS) as pool,
    ):
        assert batching(server)["max_size"] > 1
        answers = list(pool.map(lambda client: ask(server, ids, client), range(CLIENTS)))
        assert server.get("/v2/health/ready").status == 200
    assert answers[0] == [400] * REQUESTS
    for client in range(1, CLIENTS):
        for number, answer in enumerate(answers[client], client * REQUESTS):
            np.testing.assert_array_equal(answer, table[[number % 20]])


def encoder() -> onnx.ModelProto:
    """Return ids [batch, length] -> y [batch, 8], the mean of what two layers make of each token."""
    rng = np.random.default_rng(11)
    return parse_text(
        """(int64[batch, length] ids) => (float[batch, 8] y) {
        e = Gather(table, ids) h = MatMul(e, a) t = Tanh(h) o = MatMul(t, b)
        y = ReduceMean <axes = [1], keepdims = 0> (o) }""",
        initializer("table", rng.standard_normal((1000, 32)) ** 3),
        initializer("a", rng.standard_normal((32, 2000)) / 32**0.5),
        initializer("b", rng.standard_normal((2000, 8)) / 2000**0.5),
    )


def quantize(built: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """Return the model with weights in 8 bits, and activations in 8 bits as their range is in each run."""
    onnx.save(built, folder / "float.onnx")
    quantize_dynamic(folder / "float.onnx", folder / "quantized.onnx")
    return onnx.load(folder / "quantized.onnx")


# fault: Outputs | an answer depends on the other requests in its batch | such models get no batches |
#   prevented
@pytest.mark.parametrize("quantized", [False, True])
def test_a_text_encoder_is_batched_unless_its_tokens_share_a_scale(
    tmp_path: Path, quantized: bool
) -> None:
    built = quantize(encoder(), tmp_path) if quantized else encoder()
    rng = np.random.default_rng(13)
    lengths = (4, 32)  # of golden samples, with few of the tokens
    samples = [{"ids": rng.integers(0, 10, (1, length))} for length in lengths]
    task = write_artifact(tmp_path, built, samples)
    session = ort.InferenceSession(tmp_path / "artifact/model.onnx")
    given = [rng.integers(0, 1000, (1, 8)) for _ in range(8 * REQUESTS)]
    with Server(tmp_path, task) as server, ThreadPoolExecutor(8) as pool:
        report = batching(server)
        assert (report["max_size"] > 1) is not quantized, report
        assert ("(DynamicQuantizeLinear) quantizes all requests of a batch" in report["off"]) is (
            quantized
        )
        parts = pool.map(lambda client: ask(server, given.__getitem__, client), range(8))
        answers = [answer for part in parts for answer in part]
    for array, answer in zip(given, answers, strict=True):
        (expected,) = session.run(None, {"ids": array})
        np.testing.assert_allclose(answer, expected, RELATIVE, RELATIVE)


def detector() -> onnx.ModelProto:
    """Return x [batch, 4] -> y [found], the values above one of all rows, as a detector's boxes."""
    return parse_text(
        """(float[batch, 4] x) => (float[batch] y) <float least = {1}, int64[1] all = {-1}> {
        large = Greater(x, least) flat = Reshape(large, all) values = Reshape(x, all)
        y = Compress <axis = 0> (values, flat) }"""
    )


def scaler() -> onnx.ModelProto:
    """Return x [batch, 4] -> y [batch, 4], where all rows are divided if any has a value above one, as of an image."""
    return parse_text(
        """(float[batch, 4] x) => (float[batch, 4] y) <float least = {1}, float most = {255}> {
        largest = ReduceMax <keepdims = 0> (x) is_large = Greater(largest, least)
        y = If (is_large) <then_branch = divide () => (float[batch, 4] parts) { parts = Div(x, most) },
        else_branch = keep () => (float[batch, 4] same) { same = Identity(x) }> }"""
    )


# fault: Outputs | the number of an output's rows depends on values, and is that of the inputs in all golden samples |
#   such models get no batches | prevented
@pytest.mark.parametrize(("model", "operator"), [(detector(), "Compress"), (scaler(), "If")])
def test_outputs_whose_sizes_depend_on_values_are_not_divided(
    model: onnx.ModelProto, operator: str, tmp_path: Path
) -> None:
    """All golden samples have one value above one, of two requests the first has two, the other none."""
    sample = np.array([[0.1, 2, 0.2, 0.3], [0.2, 0.1, 3, 0.1]], np.float32)
    task, session = write_served(tmp_path, model, sample, batch_delay_seconds=0.2)
    task = task.model_copy(update={"batch_delay_seconds": 0.2})
    given = [np.array([row], np.float32) for row in ([2, 3, 0, 0], [0, 0.5, 0, 0])]
    with Server(tmp_path, task, before=BATCHES_PAY) as server, ThreadPoolExecutor(2) as pool:
        report = batching(server)
        answers = list(pool.map(lambda x: server.post(*binary_inputs(x=x)), given))
    assert report["max_size"] == 1
    assert report["off"] == f"the sizes of output 'y' depend on values: unnamed ({operator})"
    for array, answer in zip(given, answers, strict=True):
        (expected,) = session.run(None, {"x": array})
        assert np.frombuffer(answer.tensors(), np.float32).tolist() == expected.ravel().tolist()


def test_rows_with_a_common_scale_are_not_batched(tmp_path: Path) -> None:
    built = parse_text(
        """(float[batch, 16] x) => (float[batch, 16] y) {
        size = Abs(x) largest = ReduceMax <keepdims = 0> (size) part = Div(x, largest)
        steps = Mul(part, most) whole = Round(steps) y = Mul(whole, largest) }""",
        initializer("most", 127.0),
    )
    rng = np.random.default_rng(5)
    task, session = write_served(tmp_path, built, rng.random((4, 16), np.float32))
    given = [rng.random((1, 16), np.float32) * (1 + index % 50) for index in range(8 * REQUESTS)]
    with Server(tmp_path, task) as server, ThreadPoolExecutor(8) as pool:
        report = batching(server)
        assert report["max_size"] == 1
        assert "'y' of a request depends on the others" in report["off"]
        reports = pool.map(lambda client: ask(server, given.__getitem__, client), range(8))
        answers = [answer for report in reports for answer in report]
        counted = Runs.of(server)
        assert counted.runs == counted.requests == len(given)
    for array, answer in zip(given, answers, strict=True):
        np.testing.assert_array_equal(answer, session.run(None, {"x": array})[0])


def test_a_request_waits_for_others_where_its_user_wants_that(tmp_path: Path) -> None:
    task, _ = write_served(
        tmp_path, dense(64), np.ones((2, 64), np.float32), batch_delay_seconds=0.3
    )
    with Server(tmp_path, task) as server:
        waits: list[float] = []

        def one() -> None:
            began = time.monotonic()
            assert server.post(json_inputs(x=np.ones((1, 64), np.float32))).status == 200
            waits.append(time.monotonic() - began)

        threads = [threading.Thread(target=one) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        counted = Runs.of(server)
    assert counted.requests == 4
    assert counted.runs < 4
    assert max(waits) >= 0.25


def test_batches_may_be_switched_off(tmp_path: Path) -> None:
    task, _ = write_served(tmp_path, dense(64), np.ones((2, 64), np.float32), batch_size=1)
    with Server(tmp_path, task) as server, ThreadPoolExecutor(CLIENTS) as pool:
        assert batching(server) == {"max_size": 1, "off": "serving.batching.maxSize is 1"}
        ones = np.ones((1, 64), np.float32)
        list(pool.map(lambda client: ask(server, lambda _: ones, client), range(CLIENTS)))
        counted = Runs.of(server)
    assert counted.runs == counted.requests == CLIENTS * REQUESTS
