"""An engine Job from look-up to store, through the real command and the real TensorRT-RTX."""

import contextlib
import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from enginewright_contract.manifest import BackendLatency, EngineInfo, Manifest
from enginewright_contract.reasons import ExitCode, Reason
from enginewright_contract.report import Progress
from enginewright_contract.task import ENGINE_STAGES, LOOKUP_STAGE, ServeTask
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.engine import build, comparison, verify
from enginewright_runtime.engine.handoff import EngineBenchmarked, EngineBuilt, shorten
from enginewright_runtime.proof.golden_run import GoldenFiles, JudgedRun, run_judged
from enginewright_runtime.proof.latency.comparing import measure
from enginewright_runtime.store import ENGINE, Store, open_store

from tests.support import broken_models as broken
from tests.support.engines import EnginePlace, build_mixed, matmul, recipe, sizes
from tests.support.optional import present
from tests.support.ports import free_port
from tests.support.preparing import replace_file
from tests.support.waiting import until

DEADLINE_SECONDS = 60.0
ALL = (LOOKUP_STAGE, *ENGINE_STAGES)


@pytest.fixture
def place(tmp_path: Path) -> EnginePlace:
    """Return a place with a prepared model of two nodes."""
    made = EnginePlace(tmp_path, in_process=True)
    made.prepare_model(matmul())
    return made


def test_the_whole_job_and_again(tmp_path: Path) -> None:
    place = EnginePlace(tmp_path, in_process=True)
    place.prepare_model(build_mixed())
    place.in_process = False
    task = place.engine_task()
    outcomes = place.build_engine(task)
    assert list(outcomes) == list(ALL)
    assert [outcome.code for outcome in outcomes.values()] == [0] * 5
    assert outcomes["lookup"].report.engine is None
    assert "it will be built" in outcomes["lookup"].message
    assert "8 of 10 compute nodes" in outcomes["build"].message
    assert "not in the engine: 2 of 10 compute nodes, det_bad (Det)" in outcomes["build"].message
    assert "the serving pods check its outputs" in outcomes["verify"].message
    assert outcomes["benchmark"].message.startswith("not measured: ")
    published = present(outcomes["publish-engine"].report.engine)
    assert published.cached is False
    assert published.elsewhere == ("det_bad (Det)", "add_out (Add)")
    assert (published.nodes_total, published.nodes_accelerated) == (10, 8)
    assert published.compute_share_elsewhere is not None
    assert 0 < published.compute_share_elsewhere < 1
    assert published == published.model_copy(
        update={
            "latency_p99": None,
            "latencies": (),
            "parity_max_abs_error": None,
            "parity_max_rel_error": None,
            "versions": {"backend": "1.7.1.116", "ort": task.recipe.ort_version, "cuda": "13"},
        }
    ), "nothing that needs a device"

    manifest = place.engine_manifest(task)
    engine = present(manifest.engine)
    assert (manifest.key, engine.prepared_key) == (task.engine_key, task.prepared_key)
    assert engine.recipe == task.recipe
    assert (engine.sha256, engine.size_bytes) == (published.sha256, published.size_bytes)
    assert manifest.versions["tensorrt-rtx"] == "1.7.1.116"
    assert manifest.node_costs, "of the prepared model"
    assert {file.path for file in manifest.files} == {
        "build.log",
        "golden/inputs.npz",
        "golden/outputs.npz",
        "golden/parts.npz",
        "layers.json",
        "model/model.onnx",
        "model/part-0.engine",
    }
    log = (place.engine_folder(task) / "build.log").read_text()
    assert "Input filename" in log

    shutil.rmtree(tmp_path / "work")
    (tmp_path / "work").mkdir()
    again = place.build_engine(task)
    assert [outcome.code for outcome in again.values()] == [0] * 5
    assert again["lookup"].report.engine == published.model_copy(update={"cached": True})
    assert again["publish-engine"].report.engine == again["lookup"].report.engine
    for stage in ENGINE_STAGES[:3]:
        assert again[stage].message.startswith("cached: the store has")
    left = {path.name for path in (tmp_path / "work").iterdir()}
    assert left == {"enginebuilt.json", "engineverified.json", "enginebenchmarked.json"}

    serve = ServeTask(
        model="m",
        revision="r",
        prepared_key=task.prepared_key,
        engine_key=task.engine_key,
        backend="tensorrt-rtx",
    )
    fetched = place._run(["fetch-artifact"], serve.to_json())
    assert fetched.code == 0
    assert fetched.message.startswith(f"engine {task.engine_key[:12]}, ")
    path = tmp_path / "artifact" / manifest.model
    with pytest.raises(Exception, match="EPContext node generated by 'NvTensorRTRTX"):
        ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def test_a_damaged_engine_is_not_there_and_is_built_again(place: EnginePlace) -> None:
    task = place.engine_task()
    place.build_engine(task)
    path = place.engine_folder(task) / "model/model.engine"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    assert place.engine_stage("lookup", task).report.engine is None
    published = present(place.build_engine(task)["publish-engine"].report.engine)
    assert published.cached is False
    assert Store(place.root / "store", ENGINE).find_intact(task.engine_key) is not None


def test_without_the_prepared_model(place: EnginePlace) -> None:
    prepared = place.root / "store/prepared" / place.prepared
    (prepared / "model/model.onnx").write_bytes(b"damaged")
    outcome = place.build_engine(place.engine_task())["build"]
    assert outcome.report.reason is Reason.ARTIFACT_CORRUPT
    (prepared / "manifest.json").unlink()
    outcome = place.build_engine(place.engine_task())["build"]
    assert (outcome.report.reason, outcome.code) == (Reason.ARTIFACT_MISSING, ExitCode.TRANSIENT)
    assert not (place.root / "store/engines").exists()


def test_a_refusal_reaches_every_reader(place: EnginePlace) -> None:
    text = "(float[2, 4, 4] x) => (float[2] y) { [determinant] y = Det(x) }"
    place.prepare_model(broken.parse_text(text))
    outcomes = place.build_engine(place.engine_task())
    assert list(outcomes) == ["lookup", "build"]
    outcome = outcomes["build"]
    assert (outcome.report.reason, outcome.code) == (
        Reason.UNSUPPORTED_OPERATOR,
        ExitCode.PERMANENT,
    )
    assert outcome.full["failure"]["nodes"] == ["determinant (Det)"]


def test_an_engine_that_was_changed_after_the_build(place: EnginePlace) -> None:
    task = place.engine_task()
    for stage in ("lookup", "build"):
        assert place.engine_stage(stage, task).code == 0
    path = place.root / "work/engine/model/model.engine"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    outcome = place.engine_stage("verify", task)
    assert outcome.report.reason is Reason.ENGINE_CORRUPT
    path.write_bytes(content)
    wrapper = path.with_name("model.onnx")
    model = onnx.load(wrapper)
    model.graph.output[0].name = "z"
    model.graph.node[0].output[0] = "z"
    onnx.save(model, wrapper)
    outcome = place.engine_stage("verify", task)
    assert outcome.report.reason is Reason.BUILD_FAILED
    assert "its inputs and outputs are not the prepared model's" in outcome.message
    wrapper.write_bytes(b"")
    assert place.engine_stage("verify", task).report.reason is Reason.BUILD_FAILED


def test_stages_before_their_turn(place: EnginePlace) -> None:
    for stage in ENGINE_STAGES[1:]:
        outcome = place.engine_stage(stage, place.engine_task())
        assert outcome.report.reason is Reason.INTERNAL_ERROR
        assert "cannot read the result of an earlier stage" in outcome.message


def test_an_engine_that_goes_while_the_job_runs(place: EnginePlace) -> None:
    task = place.engine_task()
    EngineBuilt().write(place.root / "work")
    outcome = place.engine_stage("publish-engine", task)
    assert (outcome.report.reason, outcome.code) == (Reason.ARTIFACT_MISSING, ExitCode.TRANSIENT)


def prepare_larger(place: EnginePlace, models: Path) -> None:
    """Prepare a model that takes a second or two to build."""
    source = next(models.rglob("*rec_infer.onnx"))
    profile = sizes("x", [1, 3, 48, 64], [1, 3, 48, 64], [1, 3, 48, 96])
    place.prepare_model(source, [profile])


@contextmanager
def building(place: EnginePlace, models: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run `build` in a process of its own."""
    prepare_larger(place, models)
    process = place.start(["stage", "build"], place.engine_task().to_json())
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def child_of(process: "subprocess.Popen[str]") -> int | None:
    """Return the process that builds, once it does: a child of the stage's fork server."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if parent(parent(int(entry.name))) == process.pid:
                return int(entry.name)
        except OSError:
            continue
    return None


def parent(number: int) -> int:
    """Return the number of a process's parent."""
    return int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])


def test_progress_moves_while_it_builds(models: Path, tmp_path: Path) -> None:
    place = EnginePlace(tmp_path, in_process=True)
    prepare_larger(place, models)
    port, task, paths = free_port(), place.engine_task(), Paths.under(tmp_path)
    seen: list[Progress] = []
    with ThreadPoolExecutor(1) as pool:
        built = pool.submit(build.run, task, paths, port)

        def has_ended() -> bool:
            with contextlib.suppress(OSError):  # not yet, or not any more
                url = f"http://127.0.0.1:{port}/progress"
                with urllib.request.urlopen(url, timeout=5) as answer:
                    reported = Progress.model_validate_json(answer.read())
                if not seen or reported != seen[-1]:
                    seen.append(reported)
            return built.done()

        until(has_ended)
        assert built.result().ok
    percents = [reported.percent for reported in seen]
    assert percents == sorted(percents)
    assert len(set(percents)) >= 3, seen
    assert "Building engine" in " ".join(reported.phase for reported in seen)


@pytest.mark.parametrize(
    ("number", "reason", "reported"),
    [
        (signal.SIGSEGV, Reason.BACKEND_CRASHED, "crashed with SIGSEGV"),
        (signal.SIGKILL, Reason.OUT_OF_MEMORY, "spec.build.resources.limits.memory"),
    ],
)
def test_a_builder_that_dies(
    number: signal.Signals, reason: Reason, reported: str, models: Path, tmp_path: Path
) -> None:
    place = EnginePlace(tmp_path, in_process=True)
    with building(place, models) as process:
        os.kill(until(lambda: child_of(process) or 0), number)
        process.communicate(timeout=DEADLINE_SECONDS)
        outcome = place._outcome(process.returncode, "")
    assert outcome.report.reason is reason
    assert reported in outcome.message
    assert not (tmp_path / "store/engines").exists()


def test_an_interrupted_build_leaves_nothing(models: Path, tmp_path: Path) -> None:
    place = EnginePlace(tmp_path, in_process=True)
    with building(place, models) as process:
        child = until(lambda: child_of(process))
        process.terminate()
        process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == 128 + signal.SIGTERM
    until(lambda: not Path(f"/proc/{child}").exists())
    assert not (tmp_path / "store/engines").exists()
    assert not place.leftovers()
    task = place.engine_task()
    assert [outcome.code for outcome in place.build_engine(task).values()] == [0] * 5


def test_on_a_device(place: EnginePlace) -> None:
    folder = place.root / "store/prepared" / place.prepared
    outputs = folder / "golden/outputs.npz"
    files = GoldenFiles(folder / "golden/inputs.npz", outputs, outputs)
    model = folder / "model/model.onnx"
    measured = measure(model, "cpu", files.inputs, seconds=0.2)
    assert [latency.shapes for latency in measured.latencies] == ["min", "opt", "max"]
    manifest = Manifest.model_validate_json((folder / "manifest.json").read_bytes())
    judged = JudgedRun(
        model=model,
        backend="cpu",
        files=files,
        recipe=manifest.recipe,
        compared_with="prepared",
        precision=manifest.precision,
    )
    proven = run_judged(judged)
    assert (proven.samples, proven.failed) == (3, None)
    assert proven.max_abs_error == pytest.approx(0, abs=1e-5)
    assert [parity.compared_with for parity in proven.parity] == ["prepared", "expected"]
    with np.load(outputs) as kept:
        wrong = {name: kept[name] * 1.5 for name in kept.files}
    np.savez(place.root / "wrong.npz", **wrong)
    for one, against in (
        (replace(files, outputs=place.root / "wrong.npz"), "prepared"),
        (replace(files, expected=place.root / "wrong.npz"), "expected"),
    ):
        failed = present(run_judged(replace(judged, files=one)).failed)
        assert failed.against == against
        assert "output 'y' of golden sample " in failed.description
        assert "is outside the tolerance" in failed.description


_COMPARE = """
import sys
from pathlib import Path
from enginewright_runtime.engine import comparison, verify
work = Path(sys.argv[1])
print(comparison.measure_backend("openvino", work, verify.read_manifest(work)).to_json())
"""


def on_openvino(python: Path, work: Path) -> BackendLatency:
    """Return what an image `openvino` measures."""
    ended = subprocess.run(
        [python, "-c", _COMPARE, str(work)], capture_output=True, check=True, timeout=300
    )
    return BackendLatency.model_validate_json(ended.stdout.splitlines()[-1])


def test_a_backend_that_runs_a_part_of_the_model_is_excluded(
    openvino_python: Path, tmp_path: Path
) -> None:
    model = broken.parse_text(
        "(float[2, 3, 3] x) => (float[2] y) { [exp] e = Exp(x) [determinant] y = Det(e) }"
    )
    place = EnginePlace(tmp_path, in_process=True)
    key = place.prepare_model(model)
    open_store(Paths.under(tmp_path)).read(key, tmp_path / "work/prepared")
    result = on_openvino(openvino_python, tmp_path / "work")
    assert result.latency is None
    assert "determinant (Det)" in result.excluded


# fault: Engines | a backend is chosen as the fastest that computes something else, or only a part of the model | the
#   engine's Job compares its outputs and placement first and excludes it; its pods are proved again | prevented
def test_other_backends_are_verified_and_measured(
    place: EnginePlace, openvino_python: Path
) -> None:
    task = place.engine_task()
    for stage in ("lookup", "build", "verify"):
        place.engine_stage(stage, task)
    work = place.root / "work"
    manifest = verify.read_manifest(work)
    cpu = comparison.measure_backend("cpu", work, manifest)
    assert cpu.excluded == ""
    assert cpu.latency is not None
    assert (cpu.latency.shapes, cpu.latency.samples >= 3) == ("opt", True)
    assert 0 < cpu.latency.p50 <= cpu.latency.p99
    cuda = comparison.measure_backend("cuda", work, manifest)
    assert (cuda.latency, cuda.excluded.partition(":")[0]) == (None, "ProviderMissing")
    openvino = on_openvino(openvino_python, work)
    assert openvino.excluded == ""
    assert openvino.latency is not None
    assert openvino.latency.shapes == "opt"

    first, late = comparison.compare_backends(("cpu", "cuda"), work, manifest, seconds=0.05)
    assert (first.latency, "Timeout: " in first.excluded) == (None, True)
    assert late.excluded.startswith("not measured: ")

    outputs = work / "prepared" / manifest.golden_outputs
    with np.load(outputs) as kept:
        wrong = {name: kept[name] * 1.5 for name in kept.files}
    original = outputs.read_bytes()
    np.savez(outputs, **wrong)
    assert (
        "output 'y' of golden sample " in comparison.measure_backend("cpu", work, manifest).excluded
    )
    outputs.write_bytes(original)

    own = BackendLatency(backend="tensorrt-rtx", latency=cpu.latency)
    EngineBenchmarked(backends=(own, cpu, cuda)).write(work)
    published = present(place.engine_stage("publish-engine", task).report.engine)
    rtx, on_cpu, on_cuda = published.backends
    assert (rtx.backend, rtx.p50) == ("tensorrt-rtx", round(cpu.latency.p50, 6))
    assert (on_cpu.backend, on_cpu.shapes, on_cpu.excluded) == ("cpu", "opt", None)
    assert (on_cuda.backend, on_cuda.p50) == ("cuda", None)
    assert (on_cuda.excluded or "").startswith("ProviderMissing: ")
    kept_engine = present(place.engine_manifest(task).engine)
    assert kept_engine.backends == (own, cpu, cuda)
    again = place.engine_stage("lookup", task).report.engine
    assert again == published.model_copy(update={"cached": True})


def test_verify_and_benchmark_ask_the_device(place: EnginePlace) -> None:
    ahead, on_device = (place.engine_task(recipe(ahead_of_time=item)) for item in (True, False))
    assert place.engine_stage("build", ahead).code == 0
    for stage in ("verify", "benchmark"):
        outcome = place.engine_stage(stage, on_device)
        assert outcome.report.reason is Reason.DRIVER_MISSING


def test_the_task_of_another_job(tmp_path: Path) -> None:
    place = EnginePlace(tmp_path)
    process = place.start(["stage", "build"], place.task("pvc://models/m.onnx").to_json())
    _, log = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == ExitCode.INTERNAL
    assert "ENGINEWRIGHT_TASK is not a valid EngineTask: engine_key" in log


def test_the_wrapper_must_match_the_engine(place: EnginePlace, tmp_path: Path) -> None:
    task = place.engine_task()
    for stage in ("lookup", "build"):
        place.engine_stage(stage, task)
    built = EngineBuilt.read(place.root / "work").engine
    assert isinstance(built, EngineInfo)
    manifest = verify.read_manifest(place.root / "work")
    folder = place.root / "work/engine/model"
    verify.check_wrapper(folder, built, manifest)
    (folder / "model.engine").unlink()
    with pytest.raises(Exception, match=r"engine file model\.engine is not beside it"):
        verify.check_wrapper(folder, built, manifest)
    other = built.model_copy(update={"partitions": ()})
    with pytest.raises(Exception, match="its EPContext nodes do not match the partitions"):
        verify.check_wrapper(folder, other, manifest)


def test_a_long_label_keeps_its_operator() -> None:
    assert shorten("a (Relu)") == "a (Relu)"
    reported = shorten(f"{'x' * 80} (DequantizeLinear)")
    assert len(reported) == 60
    assert reported.endswith("x… (DequantizeLinear)")
    assert len(shorten("x" * 80)) == 60


def forget_credits(place: EnginePlace) -> None:
    """Leave the artefacts as an import, or another release."""
    shutil.rmtree(place.root / "store/caches")
    shutil.rmtree(place.root / "work")
    (place.root / "work").mkdir()


# fault: Engines | an engine that another release built and proved, or an import, is served as if this one had | the
#   engine's Job proves it again on its device, or builds another one in its place | before it is used
def test_an_engine_that_this_release_has_not_proved_is_proved_again(place: EnginePlace) -> None:
    task = place.engine_task()
    place.build_engine(task)
    built = (place.engine_folder(task) / "manifest.json").read_bytes()
    forget_credits(place)
    outcomes = place.build_engine(task)
    assert [outcome.code for outcome in outcomes.values()] == [0] * 5
    assert outcomes["lookup"].report.engine is None
    assert "which this release has not proved" in outcomes["lookup"].message
    assert "it is proved again" in outcomes["build"].message
    assert "wrapper agree" in outcomes["verify"].message
    assert present(outcomes["publish-engine"].report.engine).cached
    assert (place.engine_folder(task) / "manifest.json").read_bytes() == built
    assert present(place.engine_stage("lookup", task).report.engine).cached


def test_a_stored_engine_that_fails_its_proof_is_built_again(place: EnginePlace) -> None:
    task = place.engine_task()
    place.build_engine(task)
    wrapper = place.engine_folder(task) / "model/model.onnx"
    model = onnx.load(wrapper)
    model.graph.output[0].name = model.graph.node[0].output[0] = "z"
    replace_file(place.engine_folder(task), "model/model.onnx", model.SerializeToString())
    forget_credits(place)
    outcomes = place.build_engine(task)
    assert outcomes["build"].message.startswith("built in ")
    assert not present(outcomes["publish-engine"].report.engine).cached
    assert onnx.load(wrapper).graph.output[0].name == "y"
    assert present(place.engine_stage("lookup", task).report.engine).cached


def test_an_engine_that_another_job_has_built_meanwhile_is_replaced(place: EnginePlace) -> None:
    task = place.engine_task()
    place.build_engine(task)
    shutil.rmtree(place.root / "store/caches")
    log = place.engine_folder(task) / "build.log"
    replace_file(place.engine_folder(task), "build.log", b"of another release")
    outcome = place.engine_stage("publish-engine", task)
    assert not present(outcome.report.engine).cached
    assert log.read_bytes() != b"of another release"


def test_an_engine_that_is_replaced_while_the_job_relies_on_it(place: EnginePlace) -> None:
    task = place.engine_task()
    place.build_engine(task)
    EngineBuilt().write(place.root / "work")
    replace_file(place.engine_folder(task), "build.log", b"of another release")
    outcome = place.engine_stage("publish-engine", task)
    assert (outcome.report.reason, outcome.code) == (Reason.ARTIFACT_MISSING, ExitCode.TRANSIENT)
