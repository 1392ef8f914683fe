"""TensorRT-RTX serves on the device: every size has run before it is ready, and kernels outlive restarts."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from enginewright.contract.engines import why_unusable
from enginewright.contract.task import ServeTask
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.serve import fetch_artifact
from enginewright_runtime.session.driver import Device

from tests.support.engines import EnginePlace, mixed, recipe, sizes

# a process per start, as of a container: prints the fields of /execution and the steps
_START = """
import json, sys
from pathlib import Path
from enginewright.contract.task import ServeTask
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.serve.server.startup import prepare
steps = []
paths = Paths.under(Path(sys.argv[1]))
served = prepare(ServeTask.model_validate_json(sys.argv[2]), paths.artifact, steps.append, paths.runtime_cache)
print(json.dumps({"execution": json.loads(served.execution.document()), "steps": steps}))
"""


@pytest.fixture
def task(tmp_path: Path, device: Device) -> ServeTask:
    """Return the task to serve an engine of 1 to 8 rows that was built on this device."""
    if unusable := why_unusable("tensorrt-rtx", device.compute_capability):
        pytest.skip(unusable)
    place = EnginePlace(tmp_path, fresh=True)
    place.prepare_model(mixed(), [sizes("x", (1, 3, 32, 32), (2, 3, 32, 32), (8, 3, 32, 32))])
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
    assert [each for each in steps if each.startswith("warming up 4 rows")]


def test_kernels_outlive_a_restart_and_garbage_does_not_prevent_it(
    tmp_path: Path, task: ServeTask
) -> None:
    caches = Paths.under(tmp_path).runtime_cache

    def kept() -> dict[str, Any]:
        found: dict[str, Any] = start(tmp_path, task)["execution"]["details"]["runtime_cache"]
        return found

    first = kept()
    assert not first["reused"]
    assert first["bytes"] > 0, "the plug-in writes it when the session ends"
    assert kept() == {"reused": True, "bytes": first["bytes"]}
    files = [path for path in caches.rglob("*") if path.is_file()]
    assert files
    for file in files:
        file.write_bytes(np.random.default_rng(0).bytes(file.stat().st_size))
    assert kept()["reused"], "the plug-in rejects it and the model is served"
    for file in files:
        file.write_bytes(b"")
    kept()
