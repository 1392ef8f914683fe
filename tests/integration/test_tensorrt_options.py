"""Why some of TensorRT's options are not offered, by the real TensorRT-RTX without a device.

docs/builders.md gives these results as reasons; another version may give others.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import option_builder

TARGET = "SM89"


@pytest.fixture(scope="module")
def model(models: Path) -> Path:
    return next(models.rglob("standard_v3_3/model.onnx"))


def built(model: Path, targets: str = TARGET, *option: str) -> Any:
    command = [sys.executable, str(option_builder.__file__), str(model), targets, *option]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def plain(model: Path) -> Any:
    found = built(model)
    assert found["bytes"]
    return found


def test_hardware_compatibility_has_no_levels(model: Path, plain: Any) -> None:
    found = built(model, TARGET, "AMPERE_PLUS")
    assert "setHardwareCompatibilityLevel() is unsupported" in "\n".join(found["messages"])
    assert found["sha256"] == plain["sha256"]


def test_an_engine_for_five_capabilities_is_hardly_larger(model: Path, plain: Any) -> None:
    found = built(model, "SM80,SM86,SM89,SM120,SM121")
    assert plain["bytes"] < found["bytes"] < plain["bytes"] + (4 << 10)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("VERSION_COMPATIBLE", "libnvinfer_lean.so.1: cannot open shared object file"),
        ("REFIT", "CHECK(status == CUDA_SUCCESS) failed"),
        ("STRIP_PLAN", "CHECK(status == CUDA_SUCCESS) failed"),
    ],
)
def test_what_does_not_build(option: str, message: str, model: Path) -> None:
    found = built(model, TARGET, option)
    assert found["bytes"] is None
    assert message in "\n".join(found["messages"])


def test_weight_streaming_builds_an_engine_of_the_same_size(model: Path, plain: Any) -> None:
    found = built(model, TARGET, "WEIGHT_STREAMING")
    assert found["bytes"] == plain["bytes"]
    assert found["sha256"] != plain["sha256"]
