"""What a laptop installs is what the images have: the extras pin the versions that the lock files have."""

import re
import tomllib
from pathlib import Path

import pytest
from enginewright_cli.preflight.options import RUNTIME_LIMITS
from enginewright_cli.preflight.targets import find_locked_runtime
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("variant", ["cpu", "openvino", "gpu", "rtx"])
def test_what_decides_a_verdict_is_pinned_as_locked(variant: str) -> None:
    lock = (ROOT / f"requirements/runtime-{variant}.txt").read_text()
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)", lock, re.MULTILINE))
    own = [Requirement(text) for text in EXTRAS[variant]]
    shared = [Requirement(text) for text in EXTRAS["runtime"] if text.startswith("onnx")]
    pins = {item.name: str(item.specifier) for item in (*own, *shared)}
    assert {"onnx", "onnxruntime-extensions"} < pins.keys()
    assert pins == {name: f"=={locked[name]}" for name in pins}
    runtime = next(
        locked[name] for name in pins if re.fullmatch("onnxruntime(-openvino|-gpu)?", name)
    )
    assert find_locked_runtime(variant) == runtime
    assert ".".join(runtime.split(".")[:2]) in RUNTIME_LIMITS
