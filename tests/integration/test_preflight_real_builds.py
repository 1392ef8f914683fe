"""What preflight says of a GPU that is not here, held against the real builder, called by hand."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from onnx import helper

from tests.support import bare_builder
from tests.support import broken_models as broken
from tests.support.engines import build_mixed
from tests.support.preflight_runs import Desk
from tests.support.quantizing import random, weight

Sizes = Mapping[str, list[list[int]]]  # minimum, usual and maximum by input

READ: Sizes = {"x": [[1, 3, 48, 64], [2, 3, 48, 160], [2, 3, 48, 320]]}
DETECT: Sizes = {"x": [[1, 3, 64, 64], [1, 3, 160, 160], [2, 3, 160, 320]]}
LISTEN: Sizes = {"audio": [[1, 4096], [1, 8000], [1, 16000]]}
STATE = [[2, 1, 128], [2, 2, 128], [2, 4, 128]]
SPEAK: Sizes = {"input": [[1, 576], [2, 576], [4, 576]], "state": STATE}
TWO_RATES = "data/silero_vad.onnx"  # chooses by an input between branches that differ in rank
MODELS: dict[str, Sizes] = {
    "standard_v3_3/model.onnx": {"bytes": [[1, 2048], [8, 2048], [32, 2048]]},
    "det_infer.onnx": DETECT,
    "rec_infer.onnx": READ,
    "cls_infer.onnx": READ,
    "silero_vad_16k_sequence.onnx": {},
    "silero_vad_op18_ifless.onnx": SPEAK,
    "silero_vad_openvino_16k.onnx": {},
    "silero_vad_half.onnx": SPEAK,
    "silero_vad_16k_op15.onnx": SPEAK,
    TWO_RATES: SPEAK,
}


def by_hand(model: Path, sizes: Sizes) -> bool:
    """Tell whether the real builder builds the whole model."""
    command = [sys.executable, bare_builder.__file__, str(model), json.dumps(sizes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode == 0


def holds(desk: Desk, model: Path, sizes: Sizes) -> str:
    """Compare the two; return the verdict."""
    fixed = desk.root / "fixed.onnx"
    shapes = [
        text
        for name, corners in sizes.items()
        for text in (
            "--shapes",
            f"{name}={':'.join('x'.join(map(str, corner)) for corner in corners)}",
        )
    ]
    reported = desk.run_json(model, "--target", "sm89", "--fix", fixed, *shapes)[1]
    target = reported["targets"]["sm89"]
    if target["verdict"] == "fail":
        assert not by_hand(model, sizes), target["message"]
    else:
        whole = target["nodes_accelerated"] == target["nodes_total"]
        assert by_hand(fixed, sizes) is whole, target
        assert target["engine_bytes"] > 0
    return str(target["verdict"])


@pytest.mark.parametrize("file", MODELS)
def test_real_models(file: str, models: Path, tmp_path: Path) -> None:
    source = next(path for path in sorted(models.rglob("*.onnx")) if str(path).endswith(file))
    verdict = holds(Desk(tmp_path), source, MODELS[file])
    assert (verdict == "fail") is (file == TWO_RATES)


# fault: Engines | inputs or outputs of types that the provider refuses (float64) | `validate` |
#   before the build
def test_an_engine_that_cannot_be_served(models: Path, desk: Desk) -> None:
    """By the provider's word: it refuses an output of float64."""
    source = next(path for path in models.rglob("model.onnx") if "swift_f0" in str(path))
    assert by_hand(source, LISTEN)
    shapes = ("--shapes", "audio=1x4096:1x8000:1x16000")
    code, reported = desk.run_json(source, "--target", "sm89", *shapes)
    target = reported["targets"]["sm89"]
    assert (code, target["verdict"], target["reason"]) == (1, "fail", "ProviderRefused")
    assert "of these types: pitch (float64); export these" in target["message"]


def test_a_model_in_parts_is_one_that_backend_tensorrt_would_refuse(desk: Desk) -> None:
    code, reported = desk.run_json(
        desk.save(build_mixed()), "--target", "sm89", "--budget", "allow"
    )
    assert (code, reported["verdict"]) == (0, "warn")
    (cause,) = [
        item for item in reported["findings"] if "backend tensorrt would" in item["message"]
    ]
    assert "loads an engine only if it contains the whole model" in cause["message"]
    assert (cause["severity"], cause["nodes"]) == ("warning", ["det_bad (Det)", "add_out (Add)"])


def test_a_precision_refused_by_the_parser_is_built_from_the_body(
    desk: Desk,
) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], name="product"),
        helper.make_node("HardSwish", ["product"], ["y"], name="swish"),
    ]
    sides = broken.value("x", 1, 64), broken.value("y", 1, 64)
    model = broken.build(nodes, sides[:1], sides[1:], [weight("w", random(64, 64))], opset=22)
    fixed = desk.root / "fixed.onnx"
    arguments = ("--target", "sm89", "--precision", "BF16", "--fix", fixed)
    code, reported = desk.run_json(desk.save(model), *arguments)
    assert (code, reported["verdict"]) == (0, "warn")
    assert reported["findings"][0]["nodes"] == ["swish (HardSwish)"]
    assert "has no kernel for" in reported["findings"][0]["message"]
    assert not by_hand(fixed, {})
