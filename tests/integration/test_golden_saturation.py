"""A quantized source for a device has exact golden outputs, also of a processor whose INT8 products saturate."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import pytest
from enginewright_contract.processors import Feature, Processor
from enginewright_runtime.core.handoff import Golden
from enginewright_runtime.prepare.quantize import saturation
from enginewright_runtime.prepare.quantize.exact_products import shift_weights
from enginewright_runtime.prepare.quantize.forms import form_of
from enginewright_runtime.session import processor
from enginewright_runtime.session.arrays import read_arrays
from enginewright_runtime.session.optimization import LEVELS
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from tests.integration.test_tensorrt_precisions import model
from tests.support.broken_models import initializer, parse_text
from tests.support.converting import run
from tests.support.preparing import Workplace
from tests.support.processors import TIMEOUT, needs_exact_products, python_without_vnni
from tests.support.quantizing import dense, quantize_by, random


def compare(place: Workplace, source: Path, level: str) -> float:
    """Return how far golden outputs are at most from those with a level of graph optimization."""
    inputs = read_arrays(place.root / "work/golden/inputs.npz")
    outputs = read_arrays(place.root / "work/golden/outputs.npz")
    return max(
        float(np.abs(run(source, feeds, LEVELS[level])[0] - outputs[name]["y"]).max())
        for name, feeds in inputs.items()
    )


# fault: Processors | a quantized source is prepared for a device where INT8 products saturate, and its golden outputs are
#   wrong | the reference computes it in single precision there, or multiplies equal types of integers | prevented
@pytest.mark.parametrize(
    ("backend", "exact", "saturates", "level"),
    [
        ("cuda", False, True, "BASIC"),
        ("cuda", False, False, "ALL"),
        ("cuda", True, True, "ALL"),
        ("cpu", False, True, "ALL"),
    ],
)
def test_the_reference_of_a_device_runs_no_kernels_that_saturate(
    backend: str,
    exact: bool,
    saturates: bool,
    level: str,
    place: Workplace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The model is one whose outputs tell the level, as integers are rounded from node to node."""
    here = Processor(architecture="x86_64", features=(Feature.AVX2,), exact_products=exact)
    monkeypatch.setattr(processor, "read", lambda: here)
    monkeypatch.setattr(saturation, "saturable", lambda *_: saturates)
    task = place.task(place.put("m.onnx", model("INT8")), backend=backend)
    place.complete(task, until="golden")
    source = place.root / "source/m.onnx"
    other = "BASIC" if level == "ALL" else "ALL"
    assert compare(place, source, level) < 1e-5
    assert compare(place, source, other) > 1e-4, "the levels differ, else nothing is tested"
    golden = Golden.read(place.root / "work")
    assert golden.graph_optimization == (None if level == "BASIC" else "ALL"), (
        "what serves is optimized all the same"
    )


WEIGHT: Final = np.random.default_rng(0).integers(-127, 128, (64, 8)).astype(np.int8)
MICROSOFT: Final = "com.microsoft"


def multiply_integers(node: str, kind: str = "uint8") -> ModelProto:
    """Return a model with a node of integers, of x through q to y."""
    text = f"""(float["n", 64] x) => (float["n", 8] y) {{ q = QuantizeLinear(x, s, z)
        {node} }}"""
    constants = (
        initializer("s", 1 / 128),
        initializer("z", 128 if kind == "uint8" else 0, np.dtype(kind)),
        initializer("w", WEIGHT, np.int8),
        initializer("sw", 1 / 128),
        initializer("zw", 3, np.int8),
        initializer("sy", 1 / 16),
        initializer("sa", 1 / 16384),
    )
    return parse_text(text, *constants, opset=21, ir_version=10, domains=[(MICROSOFT, 1)])


def quantize_as_integers(root: Path) -> Path:
    """Write a model in QOperator format."""
    source = multiply_integers(
        "p = QLinearMatMul(q, s, z, w, sw, zw, sy, z) y = DequantizeLinear(p, sy, z)"
    )
    onnx.save(source, root / "integers.onnx")
    return root / "integers.onnx"


def quantize_with_scales(root: Path) -> Path:
    """Write a model in Q/DQ format: 8-bit weights and unsigned activations."""
    form = form_of("INT8", "cpu", "exact")
    return quantize_by(form, dense(), {"x": random(4, 64)}, root / "quantized")


@needs_exact_products
@pytest.mark.parametrize(
    ("write", "level"),
    [(quantize_with_scales, "BASIC"), (quantize_as_integers, "ALL")],
    ids=["QDQ", "QOperator"],
)
@pytest.mark.timeout(TIMEOUT)
def test_golden_outputs_made_without_vnni_are_those_of_a_device(
    write: Callable[[Path], Path], level: str, place: Workplace
) -> None:
    """On emulated kernels, which do saturate."""
    source = write(place.root)
    task = place.task(place.put("m.onnx", source), backend="cuda")
    place.complete(task, until="convert")
    python = python_without_vnni(place.root / "haswell")
    subprocess.run(
        [python, "-m", "enginewright_runtime", "stage", "golden"],
        env=place._environment(task.to_json()),
        check=True,
        timeout=TIMEOUT,
    )
    assert compare(place, source, level) < 1e-4


@needs_exact_products
@pytest.mark.parametrize(
    "node",
    [
        "p = QLinearMatMul(q, s, z, w, sw, zw, sy, z) y = DequantizeLinear(p, sy, z)",
        "p = MatMulInteger(q, w, z) f = Cast <to = 1> (p) y = Mul(f, sa)",
        "p = MatMulInteger(q, w, z, zw) f = Cast <to = 1> (p) y = Mul(f, sa)",
        "y = com.microsoft.MatMulIntegerToFloat(q, w, s, sw, z)",
        "y = com.microsoft.DynamicQuantizeMatMul(x, w, sw)",
        "p = com.microsoft.QGemm(q, s, z, w, sw, zw, , sy, z) y = DequantizeLinear(p, sy, z)",
    ],
)
def test_integer_operators_of_equal_types_compute_the_same(node: str) -> None:
    source = multiply_integers(node)
    exact = ModelProto.FromString(source.SerializeToString())
    shift_weights(exact)
    feeds = {"x": np.random.default_rng(1).uniform(-1, 1, (16, 64)).astype(np.float32)}
    for level in LEVELS.values():
        (want,), (have,) = run(source, feeds, level), run(exact, feeds, level)
        assert np.ptp(want) > 1
        assert np.array_equal(want, have)


def draw(*shape: int) -> NDArray[np.int8]:
    return np.random.default_rng(0).integers(-127, 128, shape).astype(np.int8)


@needs_exact_products
@pytest.mark.parametrize(
    ("text", "weights"),
    [
        (
            """(float[1, 8, 6, 6] x) => (float[1, 4, 4, 4] y) { q = QuantizeLinear(x, s, z)
            p = QLinearConv(q, s, z, w, sw, zw, sy, z) y = DequantizeLinear(p, sy, z) }""",
            {"w": draw(4, 8, 3, 3), "zw": np.zeros(4, np.int8), "sw": np.full(4, 0.01, np.float32)},
        ),
        (
            """(float[1, 8, 6, 6] x) => (int32[1, 4, 4, 4] y) { q = QuantizeLinear(x, s, z)
            y = ConvInteger(q, w, z) }""",
            {"w": draw(4, 8, 3, 3)},
        ),
        (
            """(float[2, 4, 16] x) => (float[2, 4, 16] y) { q = QuantizeLinear(x, s, z)
            y = com.microsoft.QAttention <num_heads = 2> (q, w, b, s, s, , z) }""",
            {"w": draw(16, 48), "b": random(48)},
        ),
        (
            """(float[5, 2, 16] x) => (float[5, 1, 2, 8] y) {
            y = com.microsoft.DynamicQuantizeLSTM <hidden_size = 8>
                (x, w, u, b, , , , , sw, zw, sw, zw) }""",
            {"w": draw(1, 16, 32), "u": draw(1, 8, 32), "b": random(1, 64)}
            | {"sw": np.array([0.01], np.float32), "zw": np.zeros(1, np.int8)},
        ),
    ],
    ids=["QLinearConv", "ConvInteger", "QAttention", "DynamicQuantizeLSTM"],
)
def test_further_operators_of_equal_types_compute_the_same(
    text: str, weights: dict[str, NDArray[Any]]
) -> None:
    constants = (numpy_helper.from_array(array, name) for name, array in weights.items())
    source = parse_text(
        text,
        *(initializer("s", 1 / 128), initializer("z", 128, np.uint8), initializer("sy", 1 / 16)),
        *constants,
        domains=[(MICROSOFT, 1)],
    )
    exact = ModelProto.FromString(source.SerializeToString())
    shift_weights(exact)
    reading = {name for node in exact.graph.node for name in node.input if node.op_type != "Cast"}
    assert "w" not in reading
    shape = [size.dim_value for size in source.graph.input[0].type.tensor_type.shape.dim]
    feeds = {"x": random(*shape) / 4}
    (want,), (have,) = run(source, feeds), run(exact, feeds)
    assert np.ptp(want) > 0.1
    assert np.array_equal(want, have)


def test_products_of_signed_activations_stay_as_they_are() -> None:
    """Their kernels do not saturate, and take no weights of another type."""
    node = "p = QLinearMatMul(q, s, z, w, sw, zw, sy, z) y = DequantizeLinear(p, sy, z)"
    source = multiply_integers(node, "int8")
    exact = ModelProto.FromString(source.SerializeToString())
    shift_weights(exact)
    assert list(exact.graph.node) == list(source.graph.node)
