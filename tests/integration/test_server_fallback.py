"""A server that cannot run the model where it was promised: refused, or served and reported."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from enginewright_contract.execution import Execution
from enginewright_contract.manifest import EngineInfo, Manifest
from enginewright_contract.reasons import ExitCode, Reason
from enginewright_contract.report import StageReport
from enginewright_contract.task import Promise, ServeTask, ShapeProfile
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.session import loading
from enginewright_runtime.session.placement import LiveSession, Running
from enginewright_serving.server.startup.prepare import prepare

from tests.support.engines import EnginePlace, matmul, sizes
from tests.support.serving import (
    Feeds,
    Server,
    asks_openvino_for,
    json_inputs,
    linear_model,
    read_report,
    write_artifact,
)

SAMPLE: Feeds = {"x": np.ones((2, 8), np.float32)}
ALLOW = Promise(policy="Allow")


def serve_by(root: Path, backend: str, promise: Promise | None = None) -> ServeTask:
    task = write_artifact(root, linear_model(), [SAMPLE])
    return task.model_copy(update={"backend": backend, "promise": promise or Promise()})


def execution(server: Server) -> Execution:
    return Execution.model_validate(server.get("/v2/models/m/execution").json())


def answers(server: Server) -> None:
    """Check that the server gives the right numbers."""
    answer = server.post(make_request(1)).json()
    assert answer["outputs"][0]["data"] == [14, 15, 16, 17]


def wait_refusal(root: Path, task: ServeTask, **how: Any) -> tuple[int, StageReport]:
    """Start a server that must not become ready; return exit code and termination message."""
    server = Server(root, task, **how)
    try:
        code = server.wait()
        termination_message = read_report(root)
    finally:
        server.stop()
    assert "Traceback" not in server.log()
    return code, termination_message


# The incident: onnxruntime-gpu where CUDA is not.


def test_under_forbid_a_whole_fallback_never_serves(gpu_python: Path, tmp_path: Path) -> None:
    code, termination_message = wait_refusal(
        tmp_path, serve_by(tmp_path, "cuda"), python=gpu_python
    )
    assert (code, termination_message.reason) == (ExitCode.PERMANENT, Reason.PROVIDER_MISSING)
    assert "libcublasLt.so.13" in termination_message.outcome


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
    task = serve_by(tmp_path, "openvino")
    code, termination_message = wait_refusal(tmp_path, task, **how)
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


def make_request(rows: int) -> dict[str, Any]:
    """Return a request of so many rows; the profile admits two."""
    return json_inputs(x=np.ones((rows, 8), np.float32))


# fault: Requests | a request of a size outside the shape profiles, whatever `fallback.policy` | the
#   server: 400 with the allowed range, `enginewright_out_of_profile_total`; an alert above 1% of the requests | at once
def test_sizes_outside_the_profiles_are_refused_where_fallback_is_allowed_too(
    openvino_python: Path, tmp_path: Path
) -> None:
    shapes = [ShapeProfile(input="x", min=(1, 8), opt=(1, 8), max=(2, 8))]
    options = {"backend": "openvino", "promise": ALLOW}
    task = write_artifact(tmp_path, linear_model(), [SAMPLE], shapes=shapes)
    with Server(tmp_path, task.model_copy(update=options), python=openvino_python) as server:
        answer = server.post(make_request(5))
        assert answer.status == 400
        assert "dimension 0 is 5, allowed 1 to 2" in answer.json()["error"]
        assert server.post(make_request(2)).json()["outputs"][0]["data"] == [14, 15, 16, 17] * 2
        assert server.metric("enginewright_out_of_profile_total") == 1
        for code in (200, 400):
            assert server.metric(f'enginewright_requests_total{{code="{code}"') == 1


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
    code, termination_message = wait_refusal(tmp_path, engine)
    assert (code, termination_message.reason) == (ExitCode.TRANSIENT, Reason.DRIVER_MISSING)
    assert "libcuda.so.1" in termination_message.outcome


def test_a_damaged_engine_is_corrupt(tmp_path: Path, engine: ServeTask) -> None:
    path = tmp_path / "artifact/model/model.engine"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    code, termination_message = wait_refusal(tmp_path, engine)
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
    why = refusal(tmp_path, serve_by(tmp_path, "tensorrt-rtx"))
    assert why.reason is Reason.ENGINE_INCOMPATIBLE
    assert "serves only engines" in why.message


def test_an_artefact_without_an_engine_is_none(tmp_path: Path) -> None:
    task = serve_by(tmp_path, "cpu")
    why = refusal(tmp_path, task.model_copy(update={"engine_key": task.prepared_key}))
    assert why.reason is Reason.ARTIFACT_CORRUPT
    assert "the artefact holds no engine" in why.message
