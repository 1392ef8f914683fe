"""Which backend has which precision: the table, and the real builder at its borders."""

from pathlib import Path

import pytest
from enginewright_contract.manifest import MODEL_NAME
from enginewright_contract.precisions import supported
from enginewright_contract.task import Precision
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.prepare.quantize.forms import form_of
from enginewright_runtime.prepare.quantize.half_rules import HALVES
from enginewright_runtime.prepare.quantize.halves import Halves
from enginewright_runtime.prepare.quantize.static import StaticQuantization, find_layers

from tests.support.quantizing import build_engine, convolutions, subject


@pytest.mark.parametrize(
    ("precision", "capability", "backend", "wording"),
    [
        ("FP16", "7.5", "tensorrt-rtx", None),
        ("FP16", None, "cpu", "backend cpu supports FP32, INT8"),
        ("FP16", None, "openvino", None),
        (
            "BF16",
            "7.5",
            "tensorrt",
            "it needs compute capability 8.0 or higher, but the class has 7.5",
        ),
        ("BF16", None, "openvino", "backend openvino supports FP16, FP32, INT8"),
        (
            "FP8",
            "8.6",
            "tensorrt-rtx",
            "it needs compute capability 8.9 or higher, but the class has 8.6",
        ),
        ("FP8", "12.0", "tensorrt-rtx", None),  # compared as numbers
        ("FP8", None, "tensorrt", None),  # the class is not known yet
        ("INT8", "8.0", "cuda", "backend cuda supports BF16, FP16, FP32"),
        ("FP32", "7.5", "tensorrt-rtx", None),
    ],
)
def test_the_table(
    precision: Precision, capability: str | None, backend: str, wording: str | None
) -> None:
    assert supported(precision, capability, backend) == wording


@pytest.mark.parametrize(
    ("precision", "capability"),
    [("BF16", "7.5"), ("BF16", "8.0"), ("FP8", "8.6"), ("FP8", "8.9")],
)
def test_the_builder_agrees(precision: Precision, capability: str, tmp_path: Path) -> None:
    about = subject(tmp_path, convolutions(1), 22)
    if precision == "FP8":
        form = form_of("FP8", "tensorrt-rtx")
        layers = find_layers(about, form, per_channel=True)
        StaticQuantization(about, layers, {"x": (-1.0, 1.0)}, form).write(tmp_path / "out")
    else:
        Halves(about, HALVES[precision], {}).write(tmp_path / "out")
    path = tmp_path / "out" / MODEL_NAME
    if supported(precision, capability, "tensorrt-rtx") is None:
        build_engine(tmp_path, path, capability, [1, 3, 16, 16])
    else:
        with pytest.raises(StageFailure):
            build_engine(tmp_path, path, capability, [1, 3, 16, 16])
