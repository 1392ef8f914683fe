"""Whose fault a failed run is: on the real runtimes, for every operator family that can clash."""

import json
import os
import re
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from enginewright_runtime.session.samples import GoldenSample
from enginewright_serving.server.inference.run_errors import (
    Fault,
    fault_from_error,
    fault_from_rerun,
    fingerprint,
)
from enginewright_serving.server.protocol.inference_request import InferenceRequest
from enginewright_serving.server.startup.diagnosis import Diagnosis

from tests.support.broken_models import initializer, parse_text
from tests.support.programs import run_program
from tests.support.serving import Feeds, Server, json_inputs, write_artifact
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(300)  # a hundred models are loaded, one by one

PROGRAM = Path(__file__).parents[1] / "support/clash_runs.py"
_PLACE = re.compile(r"[\w-]+\.(?:h|hpp|cc|cpp|cuh?):\d+|/onnxruntime")


def outcomes(
    python: str | Path, backend: str, folder: Path, threads: int = 1, *names: str
) -> dict[str, dict[str, Any]]:
    done = run_program(
        [str(python), str(PROGRAM), backend, str(folder), str(threads), *names],
        timeout=280,
        env=os.environ | {"PYTHONPATH": ""},
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


# What ONNX Runtime 1.31 takes although it clashes.
CPU_RUNS = {"AveragePool", "LpPool", "MaxPool", "ReduceMax", "SkipLayerNormalization"}


# fault: Requests | sizes or values that clash inside the model, counted as the server's errors |
#   the server runs known-good inputs and the request again | the request itself
def test_a_clash_is_the_clients_fault_on_the_cpu(tmp_path: Path) -> None:
    results = outcomes(sys.executable, "cpu", tmp_path)
    assert len(results) > 90
    assert {name for name, result in results.items() if result["outcome"] == "ran"} == CPU_RUNS
    failed = {name: result for name, result in results.items() if name not in CPU_RUNS}
    assert {name for name, entry in failed.items() if entry["outcome"] != Fault.CLIENT} == set()
    assert {entry["kind"] for entry in failed.values()} >= {"Fail", "InvalidArgument"}
    for name, entry in failed.items():
        assert entry["serves"], name
        assert entry["message"], name
        assert not _PLACE.search(entry["message"]), entry


# What OpenVINO 2025.4 takes although it clashes: it trusts sizes of weights, indices and lengths.
OPENVINO_RUNS = {
    "ArgMax",
    "Attention hidden",
    "Conv kernel",
    "EmbedLayerNormalization",
    "GRU lengths",
    "Gather",
    "Gather embedding",
    "Gemm weight",
    "LSTM input",
    "LpPool",
    "MatMul weight",
    "Pad reflect",
    "RNN lengths",
    "ReduceMax",
}


# fault: Requests | sizes or values that clash inside the model, counted as the server's errors
# fault: Requests | single-threaded OpenVINO answers clashing sizes with the previous run's
#   outputs | no stream of OpenVINO's own | prevented
def test_a_clash_is_the_clients_fault_on_openvino(openvino_python: Path, tmp_path: Path) -> None:
    # with one thread, where OpenVINO would lose the error and answer with the run before
    results = outcomes(openvino_python, "openvino", tmp_path)
    assert {name for name, result in results.items() if result["outcome"] == "ran"} <= OPENVINO_RUNS
    failed = {name: result for name, result in results.items() if "kind" in result}
    assert len(failed) > 70
    assert {name for name, entry in failed.items() if not entry["serves"]} == set()
    assert {name for name, entry in failed.items() if entry["outcome"] != Fault.CLIENT} == set()
    for entry in failed.values():
        assert not _PLACE.search(entry["message"]), entry


# fault: Requests | after clashing sizes OpenVINO refuses every request | the server runs other
#   shapes after a failed run | the request itself
def test_a_clash_leaves_openvino_serving(openvino_python: Path, tmp_path: Path) -> None:
    # by itself it goes on refusing the shapes that it took before
    names = ("Add", "And", "Conv 1D", "Equal", "MatMulInteger", "ReverseSequence batch")
    results = outcomes(openvino_python, "openvino", tmp_path, 2, *names)
    assert [results[name]["outcome"] for name in names] == [Fault.CLIENT] * len(names)
    assert all(results[name]["serves"] for name in names)


def clashing_inputs(**sizes: int) -> dict[str, Any]:
    """Return a request of five tensors [1, size], of 6 unless `sizes` says otherwise."""
    all_sizes = dict.fromkeys("abcde", 6) | sizes
    return json_inputs(**{name: np.ones((1, size), np.float32) for name, size in all_sizes.items()})


@pytest.fixture(scope="module", params=["cpu", "openvino"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Serve Add, Concat, MatMul and Reshape beside one another."""
    inputs = ", ".join(f"float[{name}0, {name}1] {name}" for name in "abcde")
    clashing = parse_text(
        f"""({inputs}) => (float[?, ?] sum, float[?, ?] joined, float[?, ?] product, float[?, ?] folded) {{
        sum = Add(a, b) joined = Concat <axis = 1> (a, rows) d_column = Transpose <perm = [1, 0]> (d)
        product = MatMul(c, d_column) folded = Reshape(e, shape) }}""",
        initializer("shape", [-1, 2], np.int64),
        initializer("rows", np.ones((1, 3))),
    )
    root = tmp_path_factory.mktemp(request.param)
    task = write_artifact(root, clashing, [{name: np.ones((1, 6), np.float32) for name in "abcde"}])
    task = task.model_copy(update={"backend": request.param})
    python = (
        sys.executable if request.param == "cpu" else request.getfixturevalue("openvino_python")
    )
    with Server(root, task, python=python) as server:
        yield server


@pytest.mark.parametrize(
    "sizes",
    [{"b": 4}, {"a": 4}, {"c": 4}, {"d": 4}, {"e": 5}],
    ids=["Add", "Add other", "MatMul", "MatMul other", "Reshape"],
)
def test_sizes_that_clash_are_a_400(served: Server, sizes: dict[str, int]) -> None:
    for _ in range(2):  # the second time it is known
        answer = served.post(clashing_inputs(**sizes))
        assert answer.status == 400, answer.body
        assert answer.json()["error"].startswith("the model rejects these inputs: ")
        assert not _PLACE.search(answer.json()["error"])
    assert served.post(clashing_inputs()).status == 200


def test_rows_that_clash_in_concat_are_a_400(served: Server) -> None:
    document = clashing_inputs()
    for item in document["inputs"][:2]:
        item["shape"] = [2, 3]
    answer = served.post(document)
    assert answer.status == 400
    assert "oncat" in answer.json()["error"]


def test_none_of_them_is_an_error_of_the_server(served: Server) -> None:
    assert served.post(clashing_inputs(b=4)).status == 400
    until(lambda: served.metric('requests_total{code="400"'), "the request is counted")
    assert served.metric('requests_total{code="5') == 0


EXPANDED = parse_text("""(float[1] x, int64[1] shape) => (float y) {
    wide = Expand(x, shape) y = ReduceSum <keepdims = 0> (wide) }""")


# fault: Requests | the server's lack of memory blamed on the client | the error names memory: 500
#   | the request itself
def test_memory_that_the_server_lacks_is_its_own_fault(tmp_path: Path) -> None:
    sample = {"x": np.ones(1, np.float32), "shape": np.array([4])}
    task = write_artifact(tmp_path, EXPANDED, [sample])

    def inputs(size: int) -> dict[str, Any]:
        return json_inputs(x=np.ones(1, np.float32), shape=np.array([size]))

    with Server(tmp_path, task, fresh=True) as server:
        pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[0])
        granted = pages * resource.getpagesize() + (256 << 20)
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, (granted, granted))
        lacking = server.post(inputs(1 << 30))  # 4 GiB
        assert lacking.status == 500, lacking.body
        error = lacking.json()["error"]
        assert error.split("reference ")[1].split(")")[0] in server.log()
        impossible = server.post(inputs(1 << 50))
        assert impossible.status == 400, impossible.body
        assert server.post(inputs(4)).status == 200


# fault: Requests | values that the model refuses in known shapes, counted as the server's errors
#   | the server runs known-good values in the same shapes | the request itself
def test_indices_that_come_as_floats_are_the_clients_values(tmp_path: Path) -> None:
    """Models that were trained on tables of floats cast them: the shapes have run, the values not."""
    lookup = parse_text(
        """(float[n, 32] x) => (float[n, 32, 2] y) {
        ids = Cast <to = 7> (x) y = Gather(table, ids) }""",
        initializer("table", np.ones((100, 2), np.float32)),
    )
    task = write_artifact(tmp_path, lookup, [{"x": np.full((1, 32), 5, np.float32)}])

    def ask(rows: int, value: float) -> int:
        return server.post(json_inputs(x=np.full((rows, 32), value, np.float32))).status

    with Server(tmp_path, task) as server:
        for rows in (1, 2):  # as the golden sample, and as a request that has run
            assert ask(rows, 7.0) == 200
            assert [ask(rows, value) for value in (1e4, 2e4, 3e4, 4e4)] == [400] * 4
            assert ask(rows, 7.0) == 200


def test_shapes_that_no_longer_run_with_any_values_are_the_servers_fault() -> None:
    def run(_: list[str], feeds: Feeds) -> list[Any]:
        if len(feeds["x"]) > 32:
            raise CLASH
        return [feeds["x"]]

    def golden(size: int) -> GoldenSample:
        return GoldenSample(f"s{size}", {"x": np.ones(size, np.float32)}, {})

    diagnosis = Diagnosis(run, ["y"], [golden(32), golden(64)], None)
    plan = InferenceRequest(None, {}, (), 0, ["y"], (False,), 0.0)
    asked = {"x": np.zeros(64, np.float32)}
    assert diagnosis.judge(plan, asked, CLASH) is Fault.SERVER


# Devices that are not here: what CUDA, cuDNN and Level Zero write.
LOST = [
    "CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; hostname=pod ; expr=x;",
    "CUDA failure 719: unspecified launch failure ; GPU=0",
    "CUDNN failure 5000: CUDNN_STATUS_EXECUTION_FAILED ; GPU=0",
    "CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED ; GPU=0",
    "In Error Couldn't start Inference: clFlush, error code: -5 CL_OUT_OF_RESOURCES",
]
MEMORY = [
    "CUDA failure 2: out of memory ; GPU=0 ; hostname=pod",
    "Failed to allocate memory for requested buffer of size 1073741824",
    "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0",
    "std::bad_alloc",
]
CLASH = Exception("[ONNXRuntimeError] : 1 : FAIL : MatMul dimension mismatch")
REFUSED = Exception("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : idx=99")


def make_error(text: str) -> Exception:
    return Exception(f"[ONNXRuntimeError] : 1 : FAIL : {text}")


@pytest.mark.parametrize("text", LOST)
def test_a_lost_device_is_known_when_golden_inputs_fail_too(text: str) -> None:
    error = make_error(text)
    assert fault_from_error(error, ran_before=False) is None
    assert fault_from_rerun(error, error, error) is Fault.SERVER
    # a device that still serves is not lost, even if the error quotes a client's text that says so
    assert fault_from_rerun(error, None, error) is Fault.SERVER


@pytest.mark.parametrize("text", MEMORY)
def test_memory_is_never_a_lost_device(text: str) -> None:
    error = make_error(text)
    assert fault_from_rerun(error, error, error) is Fault.SERVER
    assert fault_from_rerun(error, None, error) is Fault.SERVER


def test_without_words_the_trial_decides() -> None:
    assert fault_from_rerun(CLASH, None, CLASH) is Fault.CLIENT
    assert fault_from_rerun(CLASH, None, None) is Fault.SERVER, "it comes and goes"
    assert fault_from_rerun(CLASH, CLASH, CLASH) is Fault.SERVER, "everything fails"
    assert fault_from_error(REFUSED, ran_before=False) is Fault.CLIENT
    assert fault_from_error(REFUSED, ran_before=True) is Fault.SERVER, "the very input ran"


def test_fingerprints_have_shapes_sizes_and_indices() -> None:
    image: Feeds = {"x": np.zeros((1, 3, 8, 8), np.uint8), "scale": np.ones(2, np.float32)}
    other: Feeds = {"x": np.ones((1, 3, 8, 8), np.uint8), "scale": np.ones(2, np.float32)}
    assert fingerprint(image) == fingerprint(other), "pixels do not clash"
    assert fingerprint(image) != fingerprint(image | {"scale": np.zeros(2, np.float32)})
    tokens = {"ids": np.arange(64).reshape(1, 64)}
    assert fingerprint(tokens) != fingerprint({"ids": tokens["ids"] + 1}), "indices may"
    assert fingerprint(tokens) != fingerprint({"ids": tokens["ids"].reshape(2, 32)})
