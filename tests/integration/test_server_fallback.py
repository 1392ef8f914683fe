"""A server that cannot run the model where it was promised: refused, or served and reported."""

import hashlib
import json
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest
from enginewright.contract.execution import Execution, OutsideProfiles
from enginewright.contract.manifest import EngineInfo, Manifest
from enginewright.contract.reasons import ExitCode, Reason
from enginewright.contract.report import StageReport, read_termination_message
from enginewright.contract.task import Promise, ServeTask, ShapeProfile
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.serve import fetch_artifact
from enginewright_runtime.serve.server.grpc.messages import InferRequest, InferResponse
from enginewright_runtime.serve.server.outside_profiles import load_outside
from enginewright_runtime.serve.server.startup import prepare
from enginewright_runtime.session import loading
from enginewright_runtime.session.placement import LiveSession, Running
from onnx import TensorProto, helper

from tests.support.engines import EnginePlace, matmul, sizes
from tests.support.serving import (
    REPLACES_SESSION,
    Answer,
    Feeds,
    Server,
    Wire,
    asks_openvino_for,
    linear_model,
    model,
    tensor,
    write_artifact,
)

SAMPLE: Feeds = {"x": np.ones((2, 8), np.float32)}
ALLOW = Promise(policy="Allow")


def served_by(root: Path, backend: str, promise: Promise | None = None) -> ServeTask:
    task = write_artifact(root, linear_model(), [SAMPLE])
    return task.model_copy(update={"backend": backend, "promise": promise or Promise()})


def execution(server: Server) -> Execution:
    return Execution.model_validate(server.get("/v2/models/m/execution").json())


def answers(server: Server) -> None:
    """Check that the server gives the right numbers."""
    given = {"name": "x", "datatype": "FP32", "shape": [1, 8], "data": [1.0] * 8}
    answer = server.post({"inputs": [given]}).json()
    assert answer["outputs"][0]["data"] == [14, 15, 16, 17]


def refused(root: Path, task: ServeTask, **how: Any) -> tuple[int, StageReport]:
    """Start a server that must not become ready; return exit code and termination message."""
    server = Server(root, task, **how)
    try:
        code = server.wait()
        termination_message = read_termination_message((root / "dev/termination-log").read_text())
    finally:
        server.stop()
    assert termination_message is not None, server.log()
    assert "Traceback" not in server.log()
    return code, termination_message


# The incident: onnxruntime-gpu where CUDA is not.


def test_under_forbid_a_whole_fallback_never_serves(gpu_python: Path, tmp_path: Path) -> None:
    code, termination_message = refused(tmp_path, served_by(tmp_path, "cuda"), python=gpu_python)
    assert (code, termination_message.reason) == (ExitCode.PERMANENT, Reason.PROVIDER_MISSING)
    assert "libcublasLt.so.13" in termination_message.outcome


@pytest.mark.parametrize("policy", ["Allow", "Budget"])
def test_where_it_is_allowed_it_serves_and_tells_the_truth(
    policy: str, gpu_python: Path, tmp_path: Path
) -> None:
    promise = Promise.model_validate({"policy": policy, "max_node_share": 1.0})
    with Server(tmp_path, served_by(tmp_path, "cuda", promise), python=gpu_python) as server:
        answers(server)
        reported = execution(server)
        log = server.log()
    assert reported.provider == "CUDAExecutionProvider"
    assert reported.providers == ("CPUExecutionProvider",)
    assert reported.placement.nodes == {"CPUExecutionProvider": 2}
    assert len(reported.placement.elsewhere) == 2
    assert reported.provider_reason is Reason.PROVIDER_MISSING
    assert "libcublasLt.so.13" in reported.provider_message
    assert reported.driver.needed
    assert reported.driver.reason is Reason.DRIVER_MISSING
    assert reported.ort_distributions == ("onnxruntime-gpu",)
    assert reported.backend_version == "13"
    assert f"fallback, which policy {policy} allows" in log
    assert "Failed to load library" in log, "ONNX Runtime's own words are not swallowed"


# OpenVINO, asked for what it has not.


@pytest.mark.parametrize(
    ("options", "wording"),
    [
        ({"device_type": "GPU"}, "Device GPU is not available"),
        ({"device_type": "CPU", "precision": "FP16"}, "Unsupported inference precision"),
    ],
)
def test_a_refused_provider_is_reported_verbatim(
    options: dict[str, str], wording: str, openvino_python: Path, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"python": openvino_python, "before": asks_openvino_for(**options)}
    task = served_by(tmp_path, "openvino")
    code, termination_message = refused(tmp_path, task, **how)
    assert (code, termination_message.reason) == (ExitCode.PERMANENT, Reason.PROVIDER_REFUSED)
    assert wording in termination_message.outcome
    with Server(tmp_path, task.model_copy(update={"promise": ALLOW}), **how) as server:
        answers(server)
        reported = execution(server)
    assert reported.provider_reason is Reason.PROVIDER_REFUSED
    assert wording in reported.provider_message
    assert reported.placement.nodes == {"CPUExecutionProvider": 2}
    assert not reported.driver.needed


# Sudden: the session is replaced while it serves.


def test_a_session_replaced_while_serving_is_seen(openvino_python: Path, tmp_path: Path) -> None:
    task = served_by(tmp_path, "openvino")
    with Server(tmp_path, task, python=openvino_python, before=REPLACES_SESSION) as server:
        before = execution(server)
        assert before.session == 1
        assert before.placement.nodes["OpenVINOExecutionProvider"] >= 1
        assert before.provider_reason is None
        server.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + 20
        while (after := execution(server)).session == 1:
            assert time.monotonic() < deadline, server.log()
        assert execution(server).session == after.session, "one replacement counts once"
        answers(server)
    assert after.session == 2
    assert after.providers == ("CPUExecutionProvider",)
    assert after.placement.nodes == {"CPUExecutionProvider": 2}
    assert len(after.placement.elsewhere) == 2


def test_in_the_midst_of_a_replacement_the_last_session_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(linear_model(), tmp_path / "model.onnx")
    loaded = loading.create("cpu", tmp_path / "model.onnx")
    live = LiveSession(loaded.session, loaded.placement)
    create: Callable[..., None] = loaded.session._create_inference_session
    midway: list[Running] = []

    def look_and_create(*arguments: Any) -> None:
        midway.append(live.read())
        create(*arguments)

    monkeypatch.setattr(loaded.session, "_create_inference_session", look_and_create)
    first = live.read()
    loaded.session.set_providers(["CPUExecutionProvider"])
    assert midway == [first]
    assert live.read() == Running(2, ("CPUExecutionProvider",), loaded.placement)


# Sizes outside the shape profiles.


def sized(rows: int) -> dict[str, Any]:
    """Return a request of so many rows; the profile admits two."""
    return {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [rows, 8], "data": [1.0] * 8 * rows}]
    }


def profiled(
    root: Path, policy: str, backend: str = "openvino", *, made: onnx.ModelProto | None = None
) -> ServeTask:
    shapes = [ShapeProfile(input="x", min=(1, 8), opt=(1, 8), max=(2, 8))]
    task = write_artifact(root, made or linear_model(), [SAMPLE], shapes=shapes)
    promise = Promise.model_validate({"policy": policy, "max_node_share": 1.0})
    return task.model_copy(update={"backend": backend, "promise": promise})


def counted(server: Server, name: str) -> float:
    lines = server.get("/metrics").body.decode().splitlines()
    return sum(float(each.rsplit(" ", 1)[1]) for each in lines if each.startswith(f"{name}{{"))


def over_grpc(server: Server, rows: int) -> list[float]:
    message = InferRequest(
        model_name="m",
        inputs=[{"name": "x", "datatype": "FP32", "shape": [rows, 8]}],
        raw_input_contents=[np.ones((rows, 8), np.float32).tobytes()],
    )
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        answer = InferResponse()
        answer.ParseFromString(infer(message.SerializeToString(), timeout=20))
    named = [(each.key, each.value.string_param) for each in answer.parameters]
    assert named == [("execution_provider", "CPUExecutionProvider")]
    values: list[float] = np.frombuffer(answer.raw_output_contents[0], np.float32).tolist()
    return values


def test_under_allow_sizes_outside_the_profiles_run_on_the_cpu(
    openvino_python: Path, tmp_path: Path
) -> None:
    with Server(tmp_path, profiled(tmp_path, "Allow"), python=openvino_python) as server:
        before = execution(server)
        assert before.outside_profiles == OutsideProfiles(provider="CPUExecutionProvider")
        for rows in (1, 5, 2, 3):
            answer = server.post(sized(rows)).json()
            assert answer["outputs"][0]["data"] == [14, 15, 16, 17] * rows
            named = {"execution_provider": "CPUExecutionProvider"} if rows > 2 else None
            assert answer.get("parameters") == named
        assert over_grpc(server, 5) == [14, 15, 16, 17] * 5
        assert counted(server, "enginewright_fallback_requests_total") == 3
        assert counted(server, "enginewright_out_of_profile_total") == 0
        assert counted(server, "enginewright_requests_total") == 5
        after = execution(server)
        assert after.outside_profiles is not None
        assert after.outside_profiles.requests == 3
        runs = sum(each.count + each.untimed for each in after.buckets)
        assert runs - sum(each.count + each.untimed for each in before.buckets) == 2, (
            "latencies of the backend are of its own runs"
        )
        wrong = server.post(sized(5) | {"inputs": [sized(5)["inputs"][0] | {"shape": [8, 5]}]})
        assert wrong.status == 400, "what the model itself excludes"


def widening() -> onnx.ModelProto:
    """Return a model that needs 16 KiB for each row of 32 bytes."""
    return model(
        [
            helper.make_node("MatMul", ["x", "w"], ["wide"]),
            helper.make_node("Relu", ["wide"], ["positive"]),
            helper.make_node("ReduceMax", ["positive"], ["most"], keepdims=0),
        ],
        [tensor("x", TensorProto.FLOAT, "batch", 8)],
        [tensor("most", TensorProto.FLOAT)],
        {"w": np.ones((8, 4096), np.float32)},
    )


def recurrent() -> onnx.ModelProto:
    """Return an LSTM, which aborts the process on an empty batch."""
    weights = {
        "w": np.ones((1, 16, 8), np.float32),
        "r": np.ones((1, 16, 4), np.float32),
    }
    return model(
        [
            helper.make_node("Unsqueeze", ["x", "first"], ["steps"]),
            helper.make_node("LSTM", ["steps", "w", "r"], ["y"], hidden_size=4),
        ],
        [tensor("x", TensorProto.FLOAT, "batch", 8)],
        [tensor("y", TensorProto.FLOAT, 1, 1, "batch", 4)],
        weights | {"first": np.zeros(1, np.int64)},
    )


def wide(server: Server, rows: int) -> Answer:
    """Send a binary request of so many rows."""
    array = np.ones((rows, 8), np.float32)
    given = {"name": "x", "datatype": "FP32", "shape": [rows, 8]}
    described = given | {"parameters": {"binary_data_size": array.nbytes}}
    with server.wire() as wire:
        wire.send(server.infer_request({"inputs": [described]}, array.tobytes()))
        return wire.receive()


def cubic() -> onnx.ModelProto:
    """Return a model whose run time is proportional to the cube of its rows."""
    nodes = [helper.make_node("MatMul", ["x", "turned"], ["n0"])]
    for turn in range(10):
        nodes.append(helper.make_node("MatMul", [f"n{turn}", f"n{turn}"], [f"m{turn}"]))
        nodes.append(helper.make_node("Tanh", [f"m{turn}"], [f"n{turn + 1}"]))
    return model(
        [
            helper.make_node("Transpose", ["x"], ["turned"]),
            *nodes,
            helper.make_node("ReduceMax", ["n10"], ["most"], keepdims=0),
        ],
        [tensor("x", TensorProto.FLOAT, "batch", 8)],
        [tensor("most", TensorProto.FLOAT)],
    )


def test_a_long_run_outside_the_profiles_delays_none_within_and_is_in_no_queue_time(
    openvino_python: Path, tmp_path: Path
) -> None:
    task = profiled(tmp_path, "Allow", made=cubic())
    waits = 'enginewright_request_duration_seconds_count{model="m",revision="r1",stage="queue"}'
    with Server(tmp_path, task, python=openvino_python) as server, server.wire() as running:
        long = np.ones((4_000, 8), np.float32)  # ten products of 128 GFLOP
        given = {"name": "x", "datatype": "FP32", "shape": [4_000, 8]}
        described = given | {"parameters": {"binary_data_size": long.nbytes}}
        running.send(server.infer_request({"inputs": [described]}, long.tobytes()))
        ran = 0
        # another one waits behind it, until its timeout
        while server.post(sized(3) | {"parameters": {"timeout": 1_000}}).status != 504:
            ran += 1
            assert ran < 1_000
        assert wide(server, 2).status == 200
        assert counted(server, "enginewright_fallback_requests_total") == ran, "it still runs"
        text = server.get("/metrics").body.decode()
    assert f"{waits} 1.0" in text, "only the one within the profiles has waited for the backend"


def test_a_model_that_has_fallen_back_runs_sizes_outside_the_profiles_too(
    openvino_python: Path, tmp_path: Path
) -> None:
    before = asks_openvino_for(device_type="GPU")
    task = profiled(tmp_path, "Allow")
    with Server(tmp_path, task, python=openvino_python, before=before) as server:
        answer = server.post(sized(5)).json()
        reported = execution(server)
    assert answer["outputs"][0]["data"] == [14, 15, 16, 17] * 5
    assert answer["parameters"] == {"execution_provider": "CPUExecutionProvider"}
    assert reported.provider_reason is Reason.PROVIDER_REFUSED
    ran = OutsideProfiles(provider="CPUExecutionProvider", requests=1)
    assert reported.outside_profiles == ran


def suppressing() -> onnx.ModelProto:
    """Return a model of one slow node, whose time is proportional to the square of the rows."""
    return model(
        [
            helper.make_node("Reshape", ["x", "as_boxes"], ["boxes"]),
            helper.make_node("ReduceMax", ["boxes"], ["highest"], axes=[2], keepdims=0),
            helper.make_node("Unsqueeze", ["highest", "second"], ["scores"]),
            helper.make_node("NonMaxSuppression", ["boxes", "scores", "most"], ["chosen"]),
        ],
        [tensor("x", TensorProto.FLOAT, "batch", 8)],
        [tensor("chosen", TensorProto.INT64, "selected", 3)],
        {
            "as_boxes": np.array([1, -1, 4]),
            "second": np.array([1]),
            "most": np.array([1 << 40]),
        },
    )


def hang(server: Server, wire: Wire) -> None:
    """Send a request whose run takes minutes in one node, which cannot be terminated."""
    rows = 400_000
    given = {"name": "x", "datatype": "FP32", "shape": [rows, 8]}
    described = given | {"parameters": {"binary_data_size": rows * 32}}
    wire.send(server.infer_request({"inputs": [described]}, bytes(rows * 32)))


# fault: Requests | under `Allow`, a run of a size outside the profiles hangs inside one node | those
#   that wait for it and later ones get a 503 that says so; sizes within the profiles are served | 60 s
def test_a_run_outside_the_profiles_that_hangs_blocks_none_within(
    openvino_python: Path, tmp_path: Path
) -> None:
    task = profiled(tmp_path, "Allow", made=suppressing())
    with (
        Server(tmp_path, task, python=openvino_python, run_seconds=3, stuck_seconds=6) as server,
        server.wire() as hanging,
        server.wire() as waiting,
    ):
        hang(server, hanging)
        impatient = sized(3) | {"parameters": {"timeout": 100_000}}
        while server.post(impatient).status != 504:  # until it runs
            pass
        waiting.send(server.infer_request(sized(3)))
        refused = waiting.receive()
        at_once = server.post(sized(3))
        assert server.post(sized(2)).status == 200
        health = [server.get(f"/v2/health/{each}").status for each in ("live", "ready")]
    for answer in (refused, at_once):
        assert answer.status == 503
        assert "could not be stopped after 6 s; only sizes within them" in answer.json()["error"]
    assert health == [200, 200]


def test_clients_that_leave_the_queue_of_sizes_outside_the_profiles_are_counted_once(
    openvino_python: Path, tmp_path: Path
) -> None:
    task = profiled(tmp_path, "Allow", made=suppressing())

    def sent(microseconds: int) -> dict[str, Any]:
        return sized(3) | {"parameters": {"timeout": microseconds}}

    with Server(tmp_path, task, python=openvino_python) as server, server.wire() as hanging:
        hang(server, hanging)
        with ExitStack() as stack:
            for _ in range(16):
                wire = stack.enter_context(server.wire())
                wire.send(server.infer_request(sent(3_000_000)))
            while server.post(sent(50_000)).status != 503:
                pass
        while server.post(sent(50_000)).status != 504:  # their places are free
            pass
        assert server.post(sent(4_000_000)).status == 504  # by now they would have expired
        text = server.get("/metrics").body.decode()
    assert 'enginewright_requests_total{code="499",model="m",revision="r1"} 16.0' in text


def test_the_queue_of_sizes_outside_the_profiles_is_small(
    openvino_python: Path, tmp_path: Path
) -> None:
    task = profiled(tmp_path, "Allow", made=suppressing())
    with Server(tmp_path, task, python=openvino_python) as server, ExitStack() as stack:
        hang(server, stack.enter_context(server.wire()))
        impatient = sized(3) | {"parameters": {"timeout": 50_000}}
        while server.post(impatient).status != 504:
            pass
        for _ in range(20):
            assert server.post(impatient).status == 504, "expired ones take no place"
        for _ in range(16):
            stack.enter_context(server.wire()).send(server.infer_request(sized(3)))
        deadline = time.monotonic() + 30
        while (answer := server.post(impatient)).status != 503:
            assert (answer.status, time.monotonic() < deadline) == (504, True)
        assert "full with 16 requests" in answer.json()["error"]
        assert server.post(sized(2)).status == 200


# fault: Requests | under `Allow`, a size outside the profiles needs more memory than the container has
#   | memory of the session on the CPU is limited: 400 | at once
def test_a_size_outside_the_profiles_that_needs_too_much_memory_fails_alone(
    openvino_python: Path, tmp_path: Path
) -> None:
    task = profiled(tmp_path, "Allow", made=widening())
    with Server(tmp_path, task, python=openvino_python, before=has_left(300)) as server:
        refused = wide(server, 30_000)  # half a gigabyte
        after, inside = wide(server, 1_000), wide(server, 2)
    assert refused.status == 400
    assert "Available memory" in refused.json()["error"]
    assert (after.status, inside.status) == (200, 200)


def spreading() -> onnx.ModelProto:
    """Return a model that returns 16 KiB for each row of 32 bytes."""
    return model(
        [helper.make_node("MatMul", ["x", "w"], ["wide"])],
        [tensor("x", TensorProto.FLOAT, "batch", 8)],
        [tensor("wide", TensorProto.FLOAT, "batch", 4096)],
        {"w": np.ones((8, 4096), np.float32)},
    )


def has_left(mebibytes: int) -> str:
    """Return code that limits the memory that the container has left, for `Server(before=...)`."""
    return f"""
from enginewright_runtime.core import limits
from enginewright_runtime.serve.server import memory
limits.memory = lambda: memory.resident_bytes() + ({mebibytes} << 20)
"""


def ask_for_outputs(server: Server, wire: Wire, rows: int) -> None:
    """Request 16 KiB for each of so many rows, in binary."""
    given = {"name": "x", "datatype": "FP32", "shape": [rows, 8]}
    described = given | {"parameters": {"binary_data_size": rows * 32}}
    document = {"inputs": [described], "parameters": {"binary_data_output": True}}
    wire.send(server.infer_request(document, np.ones((rows, 8), np.float32).tobytes()))


def test_outputs_that_were_sent_leave_their_memory_to_larger_ones(
    openvino_python: Path, tmp_path: Path
) -> None:
    task = profiled(tmp_path, "Allow", made=spreading())
    with Server(tmp_path, task, python=openvino_python, before=has_left(100)) as server:
        for rows in (2_400, 3_200, 4_000):  # 75 MiB do not hold two of them
            with server.wire() as wire:
                ask_for_outputs(server, wire, rows)
                answer = wire.receive()
            assert (answer.status, len(answer.body) > rows << 14) == (200, True), answer.body[:400]


# fault: Requests | under `Allow`, outputs that clients read slowly take the memory that a size outside the
#   profiles needs | it waits for them, at most 2 s, then gets a 503 | 2 s
def test_outputs_that_a_client_does_not_read_make_others_wait(
    openvino_python: Path, tmp_path: Path
) -> None:
    task = profiled(tmp_path, "Allow", made=spreading())
    with (
        Server(tmp_path, task, python=openvino_python, before=has_left(100)) as server,
        server.wire() as slow,
        server.wire() as other,
    ):
        ask_for_outputs(server, slow, 3_200)
        while counted(server, "enginewright_fallback_requests_total") < 1:
            pass
        ask_for_outputs(server, other, 3_200)
        refused = other.receive()
        assert slow.receive().status == 200
        ask_for_outputs(server, other, 3_200)
        after = other.receive()
    assert refused.status == 503, refused.body[:400]
    assert "which are being sent, take the memory" in refused.json()["error"]
    assert after.status == 200


def test_an_empty_batch_outside_the_profiles_does_not_reach_kernels_that_abort(
    openvino_python: Path, tmp_path: Path
) -> None:
    task = profiled(tmp_path, "Allow", made=recurrent())
    with Server(tmp_path, task, python=openvino_python) as server:
        given = {"name": "x", "datatype": "FP32", "shape": [0, 8], "data": []}
        empty = server.post({"inputs": [given]})
        after = server.post(sized(3))
    assert (empty.status, after.status) == (400, 200)
    assert "is empty" in empty.json()["error"]


def test_a_model_that_is_not_there_leaves_sizes_outside_the_profiles_refused(
    tmp_path: Path,
) -> None:
    task = profiled(tmp_path, "Allow")
    absent = load_outside(task, tmp_path / "absent", never, never, lambda _: None)
    assert isinstance(absent, str)
    assert "no artefact was fetched" in absent
    unusable = load_outside(task, tmp_path / "artifact", never, never, lambda _: None)
    assert isinstance(unusable, str)
    assert "is still to be loaded" in unusable


def never(*_: Any) -> Any:
    raise StageFailure(Reason.ARTIFACT_CORRUPT, "it is still to be loaded")


@pytest.mark.parametrize("policy", ["Forbid", "Budget"])
def test_without_allow_sizes_outside_the_profiles_are_refused(
    policy: str, openvino_python: Path, tmp_path: Path
) -> None:
    with Server(tmp_path, profiled(tmp_path, policy), python=openvino_python) as server:
        assert execution(server).outside_profiles is None
        answer = server.post(sized(5))
        assert answer.status == 400
        assert "allowed 1 to 2" in answer.json()["error"]
        assert counted(server, "enginewright_out_of_profile_total") == 1
        assert counted(server, "enginewright_fallback_requests_total") == 0


def test_a_model_of_fixed_sizes_is_not_loaded_for_others(
    openvino_python: Path, tmp_path: Path
) -> None:
    fixed = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [tensor("x", TensorProto.FLOAT, 2, 8)],
        [tensor("y", TensorProto.FLOAT, 2, 4)],
        {"w": np.ones((8, 4), np.float32)},
    )
    two = ShapeProfile(input="x", min=(2, 8), opt=(2, 8), max=(2, 8))
    task = write_artifact(tmp_path, fixed, [SAMPLE], shapes=[two])
    task = task.model_copy(update={"backend": "openvino", "promise": ALLOW})
    with Server(tmp_path, task, python=openvino_python) as server:
        assert execution(server).outside_profiles is None
        assert server.post(sized(3)).status == 400


# Engines, by real TensorRT-RTX.


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ServeTask]:
    """The folder of an engine for compute capability 8.9 in a store, and the task to serve it."""
    place = EnginePlace(tmp_path_factory.mktemp("engine"), in_process=True)
    prepared = place.prepare_model(matmul(), [sizes("x", (1, 8), (2, 8), (4, 8))])
    job = place.engine_task()
    outcomes = place.build_engine(job)
    assert outcomes["publish-engine"].code == 0, outcomes
    task = ServeTask(
        model="m",
        revision="r1",
        prepared_key=prepared,
        engine_key=job.engine_key,
        backend="tensorrt-rtx",
        compute_capability="8.9",
        promise=ALLOW,  # no policy lets an engine run elsewhere
    )
    return place.engine_folder(job), task


@pytest.fixture
def engine(built: tuple[Path, ServeTask], tmp_path: Path) -> ServeTask:
    """The task, with a copy of the engine where a pod has it."""
    folder, task = built
    shutil.copytree(folder, tmp_path / "artifact")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/termination-log").touch()
    return task


def refusal(root: Path, task: ServeTask) -> StageFailure:
    with pytest.raises(StageFailure) as caught:
        prepare(task, root / "artifact", lambda _: None)
    return caught.value


def change_manifest(root: Path, change: Callable[[Manifest], Manifest]) -> None:
    path = root / "artifact/manifest.json"
    path.write_text(change(Manifest.model_validate_json(path.read_bytes())).to_json())


def change_engine(root: Path, **facts: Any) -> None:
    def change(manifest: Manifest) -> Manifest:
        assert manifest.engine is not None
        changed = EngineInfo.model_validate(manifest.engine.model_dump() | facts)
        return manifest.model_copy(update={"engine": changed})

    change_manifest(root, change)


def test_an_engine_where_there_is_no_driver_is_driver_missing(
    tmp_path: Path, engine: ServeTask
) -> None:
    code, termination_message = refused(tmp_path, engine)
    assert (code, termination_message.reason) == (ExitCode.TRANSIENT, Reason.DRIVER_MISSING)
    assert "libcuda.so.1" in termination_message.outcome


def test_a_damaged_engine_is_corrupt(tmp_path: Path, engine: ServeTask) -> None:
    path = tmp_path / "artifact/model/model.engine"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    code, termination_message = refused(tmp_path, engine)
    assert (code, termination_message.reason) == (ExitCode.PERMANENT, Reason.ENGINE_CORRUPT)
    assert "model.engine is damaged" in termination_message.outcome


@pytest.mark.parametrize("name", ["model/model.onnx", "golden/outputs.npz"])
def test_damage_beside_the_engine_is_seen_too(name: str, tmp_path: Path, engine: ServeTask) -> None:
    path = tmp_path / "artifact" / name
    path.write_bytes(path.read_bytes() + b" ")
    why = refusal(tmp_path, engine)
    assert why.reason is Reason.ENGINE_CORRUPT
    assert f"{name} does not match its digest in the engine's manifest" in why.message


def test_an_engine_for_another_compute_capability(tmp_path: Path, engine: ServeTask) -> None:
    why = refusal(tmp_path, engine.model_copy(update={"compute_capability": "8.6"}))
    assert why.reason is Reason.ENGINE_INCOMPATIBLE
    assert "runs on compute capability 8.9, but this device has 8.6" in why.message


def test_an_engine_of_another_version_by_its_own_header(tmp_path: Path, engine: ServeTask) -> None:
    path = tmp_path / "artifact/model/model.engine"
    content = bytearray(path.read_bytes())
    content[24:28] = bytes([1, 6, 1, 120])
    path.write_bytes(content)
    change_engine(tmp_path, sha256=hashlib.sha256(content).hexdigest())
    why = refusal(tmp_path, engine)
    assert why.reason is Reason.ENGINE_VERSION_MISMATCH
    assert "built by tensorrt-rtx 1.6.1.120, but this image has 1.7.1.116" in why.message


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"engine_key": "0" * 64}, "the task asks for 000000000000"),
        ({"prepared_key": "0" * 64}, "the engine's prepared model has key"),
        ({"engine_key": None}, "the artefact has key"),
    ],
)
def test_another_engine_than_asked_for(
    changed: dict[str, Any], message: str, tmp_path: Path, engine: ServeTask
) -> None:
    why = refusal(tmp_path, engine.model_copy(update=changed))
    assert why.reason is Reason.ARTIFACT_CORRUPT
    assert message in why.message


def test_an_engine_runs_on_its_own_backend_only(tmp_path: Path, engine: ServeTask) -> None:
    why = refusal(tmp_path, engine.model_copy(update={"backend": "cpu"}))
    assert why.reason is Reason.ENGINE_INCOMPATIBLE
    assert (
        "backend cpu cannot run this engine, which was built for backend tensorrt-rtx"
        in why.message
    )


def test_a_prepared_model_is_no_engine(tmp_path: Path) -> None:
    why = refusal(tmp_path, served_by(tmp_path, "tensorrt-rtx"))
    assert why.reason is Reason.ENGINE_INCOMPATIBLE
    assert "serves only engines" in why.message


def test_an_artefact_without_an_engine_is_none(tmp_path: Path) -> None:
    task = served_by(tmp_path, "cpu")
    why = refusal(tmp_path, task.model_copy(update={"engine_key": task.prepared_key}))
    assert why.reason is Reason.ARTIFACT_CORRUPT
    assert "the artefact holds no engine" in why.message


def test_execution_is_what_the_contract_says_and_more(tmp_path: Path) -> None:
    with Server(tmp_path, served_by(tmp_path, "cpu")) as server:
        reported = server.get("/v2/models/m/execution").json()
    known = json.loads(Execution.model_validate(reported).model_dump_json(exclude_none=True))
    assert reported.keys() - known.keys() == {"details"}
    assert {key: reported[key] for key in known} == known


def test_pods_of_an_engine_get_its_prepared_model_where_the_policy_is_allow(
    built: tuple[Path, ServeTask], tmp_path: Path
) -> None:
    folder, task = built
    store = folder.parents[1]
    for policy in ("Allow", "Forbid"):
        paths = replace(Paths.under(tmp_path / policy), store=store)
        promise = Promise.model_validate({"policy": policy})
        fetch_artifact.run(task.model_copy(update={"promise": promise}), paths)
        found = (paths.outside / "manifest.json").exists()
        assert found is (policy == "Allow")
        assert (paths.artifact / "manifest.json").exists()


def test_pods_of_an_engine_of_fixed_sizes_get_no_model_for_others(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    place = EnginePlace(tmp_path / "engine", in_process=True)
    prepared = place.prepare_model(matmul(rows=2), [])
    job = place.engine_task()
    assert place.build_engine(job)["publish-engine"].code == 0
    task = ServeTask(
        model="m", revision="r1", prepared_key=prepared, engine_key=job.engine_key,
        backend="tensorrt-rtx", compute_capability="8.9", promise=ALLOW,
    )  # fmt: skip
    paths = replace(Paths.under(tmp_path / "pod"), store=place.engine_folder(job).parents[1])
    fetch_artifact.run(task, paths)
    assert (paths.artifact / "manifest.json").exists()
    assert not paths.outside.exists()
