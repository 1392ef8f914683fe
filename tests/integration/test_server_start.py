"""The server's start: what it proves before it is ready, and how it says why it is not."""

import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from enginewright_contract.execution import Execution
from enginewright_contract.manifest import Manifest, VaryingOutput
from enginewright_contract.reasons import ExitCode, Reason
from enginewright_contract.report import StageReport, read_termination_message
from enginewright_contract.task import ServeTask, ShapeProfile
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.session import processor
from enginewright_runtime.session.runner import Runner
from enginewright_serving.server.startup import known_times
from enginewright_serving.server.startup.baseline import measure
from enginewright_serving.server.startup.prepare import prepare
from onnx import TensorProto, helper

from tests.support.broken_models import initializer, parse_text
from tests.support.optional import present
from tests.support.programs import run_program
from tests.support.serving import (
    Feeds,
    Server,
    linear_model,
    model,
    read_report,
    tensor,
    write_artifact,
)
from tests.support.sidecar import change_manifest
from tests.support.waiting import until

SAMPLE: Feeds = {"x": np.ones((2, 8), np.float32)}


@pytest.fixture
def task(tmp_path: Path) -> ServeTask:
    return write_artifact(tmp_path, linear_model(), [SAMPLE])


def wait_refusal(root: Path, task: ServeTask) -> tuple[int, StageReport]:
    """Start a server that must not become ready; return exit code and termination message."""
    server = Server(root, task)
    try:
        code = server.wait()
        termination_message = read_report(root)
    finally:
        server.stop()
    assert termination_message.stage == "serve"
    assert not termination_message.ok
    assert termination_message.outcome.replace('"', '\\"') in server.log()
    assert "Traceback" not in server.log()
    return code, termination_message


def refusal(root: Path, task: ServeTask) -> StageFailure:
    """Prove the model in this process, which must fail; return why."""
    with pytest.raises(StageFailure) as caught:
        prepare(task, root / "artifact", lambda _: None)
    return caught.value


def change_golden(root: Path, name: str, change: Callable[[Any], Any]) -> None:
    path = root / "artifact/golden/outputs.npz"
    arrays = dict(np.load(path))
    arrays[name] = change(arrays[name])
    np.savez(path, **arrays)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("s0/y", lambda y: y * 1.5, "is outside the tolerance in 100.0% of its elements"),
        ("s0/y", lambda y: y[:1], "has shape [2, 4], expected [1, 4]"),
        ("s0/total", lambda _: np.float32(np.nan), "has NaN or infinity in other places"),
    ],
)
def test_other_numbers_than_the_golden_ones_are_not_served(
    tmp_path: Path, task: ServeTask, name: str, change: Callable[[Any], Any], message: str
) -> None:
    change_golden(tmp_path, name, change)
    why = refusal(tmp_path, task)
    assert why.reason is Reason.PARITY_FAILED
    assert message in why.message


def test_a_refused_start_is_reported_in_exit_code_termination_message_and_log(
    tmp_path: Path, task: ServeTask
) -> None:
    change_golden(tmp_path, "s0/y", lambda y: y * 1.5)
    code, termination_message = wait_refusal(tmp_path, task)
    assert (code, termination_message.reason) == (ExitCode.PERMANENT, Reason.PARITY_FAILED)
    assert (
        "output 'y' of golden sample 's0' is outside the tolerance" in termination_message.outcome
    )


# fault: Processors | an already quantized model differs where products saturate | the server's
#   golden samples: `ProcessorMismatch` | before the pod is ready
@pytest.mark.parametrize("factor", [1.005, 1.5])
def test_a_model_that_came_quantized_is_judged_by_golden_samples_on_another_processor(
    tmp_path: Path, task: ServeTask, factor: float, caplog: pytest.LogCaptureFixture
) -> None:
    here = processor.read()
    other = here.model_copy(update={"exact_products": not here.exact_products})
    change_manifest(tmp_path, processor=other, saturable=True)
    change_golden(tmp_path, "s0/y", lambda y: y * factor)
    if factor < 1.01:
        assert prepare(task, tmp_path / "artifact", lambda _: None).slowest_run > 0
    else:
        why = refusal(tmp_path, task)
        assert why.reason is Reason.PROCESSOR_MISMATCH
        assert "is outside the tolerance" in why.message
        assert "INT8 products are" in why.message
    assert "ProcessorMismatch: INT8 products are" in caplog.text


def test_numbers_close_to_the_golden_ones_are_served(tmp_path: Path, task: ServeTask) -> None:
    change_golden(tmp_path, "s0/y", lambda y: y * 1.005)
    assert prepare(task, tmp_path / "artifact", lambda _: None).slowest_run > 0


def test_a_truncated_model_is_a_corrupt_artefact(tmp_path: Path, task: ServeTask) -> None:
    path = tmp_path / "artifact/model.onnx"
    path.write_bytes(path.read_bytes()[:-20])
    why = refusal(tmp_path, task)
    assert why.reason is Reason.ARTIFACT_CORRUPT
    assert "model.onnx does not match its digest in the manifest" in why.message


def test_a_model_that_onnx_runtime_refuses_is_invalid(tmp_path: Path, task: ServeTask) -> None:
    path = tmp_path / "artifact/model.onnx"
    broken = onnx.load(path)
    broken.graph.node[0].op_type = "NoSuchOperator"
    path.write_bytes(broken.SerializeToString())
    list_again(tmp_path)
    why = refusal(tmp_path, task)
    assert why.reason is Reason.INVALID_MODEL
    assert "NoSuchOperator" in why.message
    assert "[ONNXRuntimeError]" not in why.message


def list_again(root: Path) -> None:
    """Write the files' present digests into the manifest."""
    import hashlib  # noqa: PLC0415 - here only

    path = root / "artifact/manifest.json"
    manifest = Manifest.model_validate_json(path.read_bytes())
    files = tuple(
        file.model_copy(
            update={
                "sha256": hashlib.sha256((root / "artifact" / file.path).read_bytes()).hexdigest()
            }
        )
        for file in manifest.files
    )
    path.write_text(manifest.model_copy(update={"files": files}).to_json())


def test_without_an_artefact_the_start_is_tried_again(tmp_path: Path, task: ServeTask) -> None:
    (tmp_path / "artifact/manifest.json").unlink()
    code, termination_message = wait_refusal(tmp_path, task)
    assert (code, termination_message.reason) == (ExitCode.TRANSIENT, Reason.ARTIFACT_MISSING)


def test_another_artefact_than_asked_for_is_refused(tmp_path: Path, task: ServeTask) -> None:
    other = task.model_copy(update={"prepared_key": "0" * 64})
    why = refusal(tmp_path, other)
    assert why.reason is Reason.ARTIFACT_CORRUPT
    assert "the task asks for 000000000000" in why.message


@pytest.mark.parametrize("name", ["inputs.npz", "outputs.npz", "parts.npz"])
def test_damaged_golden_samples_are_a_corrupt_artefact(
    tmp_path: Path, task: ServeTask, name: str
) -> None:
    if name == "parts.npz":
        change_manifest(tmp_path, golden_parts="golden/parts.npz")
    (tmp_path / "artifact/golden" / name).write_bytes(b"no archive")
    why = refusal(tmp_path, task)
    assert why.reason is Reason.ARTIFACT_CORRUPT


def test_a_backend_that_the_image_has_not_is_missing(tmp_path: Path, task: ServeTask) -> None:
    why = refusal(tmp_path, task.model_copy(update={"backend": "tensorrt"}))
    assert why.reason is Reason.PROVIDER_MISSING
    assert "backend 'tensorrt' is not in this image" in why.message


def test_an_input_that_the_protocol_cannot_carry_is_refused(tmp_path: Path) -> None:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    listing = model(
        [helper.make_node("ConcatFromSequence", ["x"], ["y"], axis=0)],
        [helper.make_value_info("x", kind)],
        [tensor("y", TensorProto.FLOAT, "n")],
    )
    task = write_artifact(tmp_path, listing, [])
    why = refusal(tmp_path, task)
    assert why.reason is Reason.INVALID_MODEL
    assert "input 'x' is a seq(tensor(float))" in why.message


def test_every_corner_of_a_shape_profile_is_run_before_ready(tmp_path: Path) -> None:
    pairing = parse_text(
        "(float[n] x) => (float[2, half] y) { y = Reshape(x, shape) }",
        initializer("shape", np.array([2, -1]), None),
    )
    profile = ShapeProfile(input="x", min=(2,), opt=(4,), max=(7,))
    task = write_artifact(tmp_path, pairing, [{"x": np.ones(4, np.float32)}], shapes=[profile])
    why = refusal(tmp_path, task)
    assert why.reason is Reason.PARITY_FAILED
    assert "the backend fails on the max shapes (x [7])" in why.message


def test_a_profile_for_no_input_is_refused(tmp_path: Path) -> None:
    profile = ShapeProfile(input="z", min=(1, 8), opt=(1, 8), max=(1, 8))
    task = write_artifact(tmp_path, linear_model(), [SAMPLE], shapes=[profile])
    why = refusal(tmp_path, task)
    assert why.reason is Reason.SHAPE_PROFILE_INVALID
    assert "a shape profile names 'z', which is not an input" in why.message


def noisy(scale: float) -> onnx.ModelProto:
    """Return a model whose only output is drawn from normal(0, `scale`)."""
    return parse_text(
        f"(float[n] x) => (float[n] y) {{ y = RandomNormalLike <scale = {scale}> (x) }}"
    )


def test_an_unknown_distribution_is_not_compared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = write_artifact(tmp_path, noisy(1.0), [{"x": np.ones(64, np.float32)}])
    change_manifest(tmp_path, varying=(VaryingOutput(name="y"),))
    # the first run of every session in one process draws the same numbers
    change_golden(tmp_path, "s0/y", lambda noise: noise + 5)
    with caplog.at_level(logging.WARNING):
        prepare(task, tmp_path / "artifact", lambda _: None)
    assert "no output can be compared" in caplog.text


def test_a_random_output_of_another_distribution_is_refused(tmp_path: Path) -> None:
    task = write_artifact(tmp_path, noisy(1.0), [{"x": np.ones(64, np.float32)}])
    prepare(task, tmp_path / "artifact", lambda _: None)
    onnx.save(noisy(1000.0), tmp_path / "artifact/model.onnx")
    why = refusal(tmp_path, task)
    assert why.reason is Reason.PARITY_FAILED
    assert "output 'y'" in why.message


@pytest.fixture
def held(tmp_path: Path, task: ServeTask) -> Iterator[tuple[Server, Callable[[], None]]]:
    """A server that waits for its manifest, and what lets it go on."""
    path = tmp_path / "artifact/manifest.json"
    text = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    server = Server(tmp_path, task, fresh=True)
    writer = threading.Thread(target=lambda: path.write_bytes(text), daemon=True)
    try:
        until(lambda: get(server, "/v2/health/live") == 200)
        yield server, writer.start
    finally:
        server.stop()


def get(server: Server, path: str) -> int:
    try:
        return server.get(path).status
    except OSError:
        return 0


def test_while_loading_the_server_is_live_and_reports_progress(
    held: tuple[Server, Callable[[], None]],
) -> None:
    server, go_on = held
    assert server.get("/v2/health/live").json() == {"live": True}
    until(lambda: "manifest" in server.get("/v2/health/ready").json()["error"])
    ready = server.get("/v2/health/ready")
    assert ready.status == 503
    assert ready.json() == {"ready": False, "error": "reading the manifest"}
    assert server.get("/v2/models/m/ready").status == 503
    assert server.get("/v2/models/m").json()["error"].startswith("the model is not ready: reading")
    infer = server.post({"inputs": []})
    assert infer.status == 503
    assert infer.headers["retry-after"] == "1"
    assert server.get("/metrics").status == 200
    go_on()
    server.wait_until_ready()
    assert server.get("/v2/models/m/ready").json() == {"name": "m", "ready": True}
    assert (server.root / "dev/termination-log").read_text() == ""


def test_sigterm_while_it_loads_ends_it_at_once(
    held: tuple[Server, Callable[[], None]],
) -> None:
    server, _ = held
    server.terminate()
    assert server.wait(5) == ExitCode.OK
    assert (server.root / "dev/termination-log").read_text() == ""


def test_a_native_crash_while_it_loads_leaves_its_reason(
    held: tuple[Server, Callable[[], None]],
) -> None:
    server, _ = held
    server.process.send_signal(signal.SIGSEGV)
    assert server.wait(5) == -signal.SIGSEGV
    termination_message = present(
        read_termination_message((server.root / "dev/termination-log").read_text())
    )
    assert termination_message.reason is Reason.BACKEND_CRASHED


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_taken_port_is_reported(tmp_path: Path, task: ServeTask, protocol: str) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ports = {"port": port} if protocol == "http" else {"grpc_port": port}
        server = Server(tmp_path, task, **ports)
        try:
            assert server.wait() == ExitCode.INTERNAL
            assert re.search(rf"cannot serve: .* {port}\b", server.log())
        finally:
            server.stop()


def test_p99_is_measured_where_a_hundred_runs_fit_into_a_few_seconds() -> None:
    quick = present(measure(lambda: time.sleep(0.025), "opt"))
    assert (quick.samples, quick.p99 is None) == (100, False)
    slow = present(measure(lambda: time.sleep(0.2), "opt"))
    assert slow.p50 >= 0.2
    assert (slow.samples <= 10, slow.p99) == (True, None)


@pytest.mark.parametrize(
    ("module", "unneeded"),
    [
        ("enginewright_serving.server.main", {"onnx"}),
        ("enginewright_serving.fetch_artifact", {"numpy", "onnx", "onnxruntime"}),
        ("enginewright_runtime.prepare.fetch.stage", {"onnx", "onnxruntime"}),
    ],
)
def test_a_container_loads_what_it_needs_and_nothing_else(module: str, unneeded: set[str]) -> None:
    program = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    loaded = set(run_program([sys.executable, "-c", program]).stdout.split())
    assert "pydantic" in loaded
    assert not loaded & (unneeded | {"aiohttp", "obstore"})


def test_a_start_with_the_times_of_another_pod_runs_the_model_less(
    tmp_path: Path, task: ServeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = 0
    run = Runner.run

    def count(*arguments: Any) -> Any:
        nonlocal runs
        runs += 1
        return run(*arguments)

    monkeypatch.setattr(Runner, "run", count)
    monkeypatch.setattr(known_times, "_ALIKE", 1e6)  # a busy machine confirms them too
    served = prepare(task, tmp_path / "artifact", lambda _: None)
    report = Execution.model_validate_json(served.execution.document())
    first, runs = runs, 0
    times = present(report.times).model_copy(update={"usual": report.usual})
    again = prepare(task, tmp_path / "artifact", lambda _: None, earlier=times)
    assert runs < first / 3
    assert (again.batches, again.concurrent_runs) == (served.batches, served.concurrent_runs)
    assert Execution.model_validate_json(again.execution.document()).usual == report.usual
    change_golden(tmp_path, "s0/y", lambda y: y * 1.5)
    with pytest.raises(StageFailure, match="outside the tolerance"):
        prepare(task, tmp_path / "artifact", lambda _: None, earlier=times)
