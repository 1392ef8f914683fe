"""Which backend has which precision; tests/integration/test_tensorrt_precisions.py holds the builder to it."""

import pytest
from enginewright_contract.images import COMPILED_BACKENDS
from enginewright_contract.precisions import RUNS, why_no_rest, why_unsupported
from enginewright_contract.task import Precision


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
def test_support_table(
    precision: Precision, capability: str | None, backend: str, wording: str | None
) -> None:
    assert why_unsupported(precision, capability, backend) == wording


def test_engines_alone_have_a_rest_in_fp16() -> None:
    refused = {backend: why_no_rest("FP16", backend) for backend in RUNS}
    assert {backend for backend, why in refused.items() if why is None} == COMPILED_BACKENDS
    assert (
        refused["openvino"] == "backend openvino runs the rest of a quantized model in FP32 alone"
    )
    assert not any(why_no_rest(None, backend) for backend in RUNS)
