"""TensorRT-RTX serves on the device: every size has run before it is ready, and kernels outlive restarts."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from enginewright_contract.engines import why_unusable
from enginewright_contract.task import ServeTask
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.session import loading
from enginewright_runtime.session.direct_inputs import DirectInputs
from enginewright_runtime.session.driver import Device
from enginewright_runtime.session.tensorrt_rtx import TensorRtRtxBackend
from enginewright_serving import fetch_artifact
from enginewright_serving.manifest import read_manifest

from tests.support.engines import EnginePlace, matmul, recipe, sizes

# a process per start, as of a container, that ends as the server does, without ending its session:
# prints the fields of /execution and the steps
_START = """
import json, os, sys
from pathlib import Path
from enginewright_contract.task import ServeTask
from enginewright_runtime.core.paths import Paths
from enginewright_serving.server.startup.prepare import prepare
steps = []
paths = Paths.under(Path(sys.argv[1]))
served = prepare(ServeTask.model_validate_json(sys.argv[2]), paths.artifact, steps.append, paths.runtime_cache)
print(json.dumps({"execution": json.loads(served.execution.document()), "steps": steps}), flush=True)
os._exit(0)
"""


@pytest.fixture
def task(tmp_path: Path, device: Device) -> ServeTask:
    """Return the task to serve an engine of 1 to 8 rows that was built on this device."""
    if unusable := why_unusable("tensorrt-rtx", device.compute_capability):
        pytest.skip(unusable)
    place = EnginePlace(tmp_path, fresh=True)
    place.prepare_model(matmul(), [sizes("x", (1, 8), (2, 8), (8, 8))])
    engine = place.engine_task(recipe(device.compute_capability, ahead_of_time=False))
    outcomes = place.build_engine(engine)
    assert {name: outcome.code for name, outcome in outcomes.items() if outcome.code} == {}
    made = ServeTask(
        model="m",
        revision="r1",
        prepared_key=engine.prepared_key,
        engine_key=engine.engine_key,
        backend="tensorrt-rtx",
        compute_capability=device.compute_capability,
    )
    fetch_artifact.run(made, Paths.under(tmp_path))
    return made


def start(root: Path, task: ServeTask) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", _START, str(root), task.to_json()],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return orjson.loads(done.stdout.splitlines()[-1])


def test_every_number_of_rows_has_run_before_it_is_ready(tmp_path: Path, task: ServeTask) -> None:
    steps = start(tmp_path, task)["steps"]
    assert [step for step in steps if step.startswith("warming up 4 rows")]


def test_inputs_that_the_device_reads_directly_give_the_same(
    tmp_path: Path, task: ServeTask, device: Device
) -> None:
    """Sizes in turn, each input overwritten at once: a copy that is still under way would show."""
    report = start(tmp_path, task)["execution"]["details"]["inputs"]
    assert report["seconds"], "both ways were timed"
    artifact = Paths.under(tmp_path).artifact
    manifest = read_manifest(task, artifact)
    session = loading.create("tensorrt-rtx", artifact / manifest.model, device=device).session
    allocate = loading.find("tensorrt-rtx").host_memory()
    assert allocate is not None, "the plug-in has page-locked memory"
    direct = DirectInputs(session, allocate)
    random = np.random.default_rng(0)
    for number in range(300):
        feeds = {"x": random.standard_normal((1 + number % 8, 8)).astype(np.float32)}
        expected = session.run(["y"], feeds)[0]
        np.testing.assert_allclose(direct.run(["y"], feeds)[0], expected, rtol=1e-3, atol=1e-5)


def test_cuda_graphs_give_the_same(
    tmp_path: Path, task: ServeTask, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in use yet: prints what they gain for one size, with `-s`, to decide by."""
    artifact = Paths.under(tmp_path).artifact
    model = artifact / read_manifest(task, artifact).model
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)}
    outputs = []
    for enabled in ("0", "1"):
        monkeypatch.setattr(
            TensorRtRtxBackend,
            "provider_options",
            lambda *_, given=enabled: {"enable_cuda_graph": given},
        )
        session = loading.create("tensorrt-rtx", model, device=device).session
        times = []
        for _ in range(300):
            began = time.perf_counter()
            session.run(["y"], feeds)
            times.append(time.perf_counter() - began)
        outputs.append(session.run(["y"], feeds)[0])
        print(f"enable_cuda_graph={enabled}: median {np.median(times[100:]) * 1e6:.0f} us")
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-3, atol=1e-5)


def test_kernels_outlive_a_restart_and_garbage_does_not_prevent_it(
    tmp_path: Path, task: ServeTask
) -> None:
    caches = Paths.under(tmp_path).runtime_cache

    def cache() -> dict[str, Any]:
        return dict(start(tmp_path, task)["execution"]["details"]["runtime_cache"])

    first = cache()
    assert not first["reused"]
    assert first["bytes"] > 0, "the plug-in writes it when the session ends"
    assert cache() == {"reused": True, "bytes": first["bytes"]}
    files = [path for path in caches.rglob("*") if path.is_file()]
    assert files
    for file in files:
        file.write_bytes(np.random.default_rng(0).bytes(file.stat().st_size))
    assert cache()["reused"], "the plug-in rejects it and the model is served"
    for file in files:
        file.write_bytes(b"")
    cache()
