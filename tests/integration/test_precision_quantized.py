"""INT8 and FP8: arithmetic, the form that each backend takes, and what is left with the reason."""

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from enginewright_contract.manifest import MODEL_NAME
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.scoped.passes import PassResult
from enginewright_runtime.prepare.quantize import observing, scales, static
from enginewright_runtime.prepare.quantize.dynamic import DynamicQuantization
from enginewright_runtime.prepare.quantize.forms import (
    FP8,
    INT8,
    REDUCED_INT8,
    UINT8,
    Form,
    dynamic_form,
    form_of,
)
from enginewright_runtime.prepare.quantize.static import StaticQuantization
from enginewright_runtime.prepare.quantize.subject import PrecisionPass, SourceModel
from enginewright_runtime.session.optimization import LEVELS
from onnx import ModelProto

from tests.support.broken_models import extend, parse_text, value
from tests.support.converting import run
from tests.support.processors import TIMEOUT, needs_exact_products, without_vnni
from tests.support.programs import run_program
from tests.support.quantizing import (
    Arrays,
    build_engine,
    convolutions,
    copy_weights,
    cosine,
    dense,
    operators,
    random,
    subject,
    weight,
)

X = {"x": random(4, 64)}
IMAGE = {"x": random(2, 3, 16, 16)}
TENSORRT = form_of("INT8", "tensorrt-rtx")
BASIC = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
CPU = form_of("INT8", "cpu")
DYNAMIC = dynamic_form()
EXACT = form_of("INT8", "cpu", "exact")  # for processors that are known to have VNNI or the like
ROOT = Path(__file__).parents[2]


def ranges(about: SourceModel, feeds: Arrays) -> dict[str, tuple[float, float]]:
    names = observing.single_values(about.model)
    observed = observing.limits(about.folder / "model.onnx", names, [feeds])
    return {name: (limits.low, limits.high) for name, limits in observed.items() if limits.seen}


def write_quantized(
    about: SourceModel,
    form: Form,
    feeds: Arrays,
    out: Path,
    *,
    per_channel: bool = True,
    excluded: frozenset[int] = frozenset(),
) -> tuple[Path, PassResult]:
    """Quantize a model and write it; ONNX's checker must agree that it is one."""
    layers = static.find_layers(about, form, per_channel=per_channel)
    how: PrecisionPass = DynamicQuantization(about, layers, form)
    if form not in {DYNAMIC, dynamic_form("exact")}:
        how = StaticQuantization(about, layers, ranges(about, feeds), form)
    result = how.write(out, excluded)
    path = out / MODEL_NAME
    onnx.checker.check_model(str(path), full_check=True)
    return path, result


def test_a_scale_covers_the_range_and_zero_lies_on_the_grid() -> None:
    quantizer = scales.quantizer(-2.0, 6.35, INT8, symmetric=True)
    assert (round(quantizer.scale, 9), quantizer.zero_point) == (0.05, 0)
    quantizer = scales.quantizer(-1.0, 4.1, UINT8, symmetric=False)
    assert (round(quantizer.scale, 9), quantizer.zero_point) == (0.02, 50)
    assert scales.quantizer(1.0, 5.1, UINT8, symmetric=False).zero_point == 0  # 0 is always there
    assert scales.quantizer(-2.55, -1.0, UINT8, symmetric=False).zero_point == 255
    assert scales.quantizer(0.0, 0.0, INT8, symmetric=True).scale > 0
    assert scales.quantizer(0.0, 896.0, FP8, symmetric=True).scale == 2


@pytest.mark.parametrize("axis", [0, 1, None])
def test_weights_are_within_half_a_step_of_themselves(axis: int | None) -> None:
    array = random(8, 16) * np.logspace(-3, 3, 16, dtype=np.float32)
    array[3] = 0
    quantized = scales.quantize_weight(array, INT8, axis)
    assert quantized.values.dtype == np.int8
    assert np.abs(quantized.values).max() == 127
    steps = quantized.scales if axis is None else np.expand_dims(quantized.scales, 1 - axis)
    assert (np.abs(quantized.values * steps - array) <= steps * 0.5001).all()
    floats = scales.quantize_weight(array, FP8, axis)
    exact = floats.values.astype(np.float32) * steps * 127 / 448
    assert (np.abs(exact - array) <= np.maximum(np.abs(array) / 16, steps)).all()


def test_a_bias_that_32_bits_do_not_hold_is_reported(tmp_path: Path) -> None:
    assert scales.quantize_bias(np.array([1e6], np.float32), np.array([1e-6])) is None
    source = convolutions(2)
    bias = next(item for item in source.graph.initializer if item.name == "b1")
    bias.CopyFrom(weight("b1", np.full(8, 1e9)))
    _, result = write_quantized(subject(tmp_path, source), CPU, IMAGE, tmp_path / "out")
    assert result.kept == {"conv-1 (Conv)": "its bias does not fit into 32-bit integers"}


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize(
    ("source", "feeds"),
    [
        (dense(), X),
        (dense(operator="MatMul"), X),
        (convolutions(), IMAGE),
        (copy_weights(convolutions()), IMAGE),
    ],
    ids=["gemm", "matmul", "conv", "copies"],
)
def test_every_form_keeps_the_outputs(
    source: ModelProto, feeds: Arrays, per_channel: bool, tmp_path: Path
) -> None:
    expected = run(source, feeds)[0]
    for index, (form, least) in enumerate(
        [
            (TENSORRT, 0.999),
            (form_of("FP8", "tensorrt-rtx"), 0.995),
            (CPU, 0.999),
            (form_of("INT8", "openvino"), 0.999),
        ]
    ):
        about = subject(tmp_path, source, form.opset)
        path, result = write_quantized(
            about, form, feeds, tmp_path / f"out-{index}", per_channel=per_channel
        )
        assert len(result.nodes) == len(source.graph.initializer) // 2
        assert not result.kept
        actual = run(path, feeds, LEVELS[form.proof_level])[0]
        assert least < cosine(expected, actual) < 1, form
        assert graphs.outputs_of(graphs.parse(path)) == graphs.outputs_of(source)


def test_reduced_weights_never_exceed_16_bits() -> None:
    """VPMADDUBSW adds two products in 16 bits."""
    assert 2 * UINT8.high * REDUCED_INT8.high <= np.iinfo(np.int16).max
    assert 2 * UINT8.high * REDUCED_INT8.low >= np.iinfo(np.int16).min
    assert 2 * UINT8.high * INT8.high > np.iinfo(np.int16).max
    quantized = scales.quantize_weight(random(8, 16), REDUCED_INT8, 0)
    assert np.abs(quantized.values).max() == 64


def test_processors_that_are_not_known_get_weights_that_do_not_saturate(tmp_path: Path) -> None:
    for source, feeds in ((dense(), X), (dense(operator="MatMul"), X), (convolutions(), IMAGE)):
        folder = tmp_path / source.graph.node[0].name
        folder.mkdir()
        path, _ = write_quantized(subject(folder, source), CPU, feeds, folder / "out")
        arrays = map(onnx.numpy_helper.to_array, graphs.parse(path).graph.initializer)
        weights = [array for array in arrays if array.dtype == np.int8 and array.ndim > 1]
        assert weights
        assert max(np.abs(item.astype(int)).max() for item in weights) == 64
        exact, served = run(path, feeds, BASIC)[0], run(path, feeds)[0]
        step = np.abs(exact).max() / 255  # of a result that is rounded to the other side
        assert np.abs(exact - served).max() <= 4 * step


@needs_exact_products
@pytest.mark.parametrize(
    ("form", "source", "feeds"),
    [
        (EXACT, dense(), X),
        (EXACT, convolutions(), IMAGE),
        (form_of("INT8", "openvino", "exact"), convolutions(), IMAGE),
        (dynamic_form("exact"), dense(operator="MatMul"), X),
    ],
    ids=["gemm", "conv", "openvino", "dynamic"],
)
def test_processors_with_exact_products_get_all_8_bits(
    form: Form, source: ModelProto, feeds: Arrays, tmp_path: Path
) -> None:
    expected = run(source, feeds)[0]
    errors = []
    for item in (form, replace(form, weights=REDUCED_INT8)):
        out = tmp_path / str(item.weights.high)
        path, _ = write_quantized(subject(tmp_path, source), item, feeds, out)
        errors.append(1 - cosine(expected, run(path, feeds)[0]))
    assert errors[0] < errors[1] < 1e-3


# fault: Processors | INT8 products saturate without VNNI | 7-bit weights, unless all classes sum
#   exactly | prevented
@pytest.mark.timeout(TIMEOUT)
def test_every_form_holds_without_vnni() -> None:
    """The tests of this module that run kernels, on a processor whose UINT8 x INT8 products saturate."""
    cases = "keeps_the_outputs or saturate or fused_and_close or keeps_its_name"
    command = [
        *without_vnni(),
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", __file__, "-k", cases),
    ]
    ended = run_program(command, cwd=ROOT, timeout=TIMEOUT)
    assert "11 passed" in ended.stdout


@pytest.mark.timeout(TIMEOUT)
def test_full_weights_are_wrong_without_vnni(tmp_path: Path) -> None:
    """What the two forms are there for: the emulated kernels saturate, else the test before says nothing."""
    path, _ = write_quantized(subject(tmp_path, dense()), EXACT, X, tmp_path / "out")
    np.savez(tmp_path / "x.npz", x=X["x"])
    program = (
        "import numpy as np, onnxruntime as ort, sys\n"
        "from enginewright_runtime.session import processor\n"
        "assert processor.read().exact_products is False, processor.read()\n"
        "assert processor.read().features[-1] in ('AVX2', 'AVX512'), processor.read()\n"
        "session = ort.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])\n"
        "np.save(sys.argv[3], session.run(None, dict(np.load(sys.argv[2])))[0])\n"
    )
    files = (path, tmp_path / "x.npz", tmp_path / "y.npy")
    subprocess.run([*without_vnni(), "-c", program, *map(str, files)], check=True, timeout=TIMEOUT)
    assert 1 - cosine(run(dense(), X)[0], np.load(tmp_path / "y.npy")) > 5e-4


def test_tensorrts_form_is_in_front_of_inputs_alone_and_symmetric(tmp_path: Path) -> None:
    path, _ = write_quantized(subject(tmp_path, convolutions(2)), TENSORRT, IMAGE, tmp_path / "out")
    q, dq = "QuantizeLinear", "DequantizeLinear"
    assert operators(path) == [q, dq, dq, "Conv", "Relu", q, dq, dq, "Conv", "Relu"]
    model = graphs.parse(path)
    arrays = {item.name: onnx.numpy_helper.to_array(item) for item in model.graph.initializer}
    zeros = [array for name, array in arrays.items() if name.endswith("zero_point")]
    assert all(array.dtype == np.int8 and not array.any() for array in zeros)
    assert arrays["w1_quantized_scale"].shape == (8,)
    assert arrays["b1"].dtype == np.float32  # biases are left alone
    assert "w1" not in arrays


@pytest.mark.parametrize(
    ("precision", "per_channel"), [("INT8", True), ("FP8", True), ("FP8", False)]
)
def test_tensorrt_builds_it(precision: str, per_channel: bool, tmp_path: Path) -> None:
    form = form_of(precision, "tensorrt-rtx")
    source = convolutions(2)
    del source.graph.output[:]
    text = '() => (float["n", 32] z) { [flat] flat = Flatten(y) [product] z = MatMul(flat, m) }'
    extend(source, text, weight("m", random(2048, 32) / 45))
    about = subject(tmp_path, source, form.opset)
    path, result = write_quantized(about, form, IMAGE, tmp_path / "out", per_channel=per_channel)
    assert len(result.nodes) == 3
    built = build_engine(tmp_path / "engine", path, "8.9", [2, 3, 16, 16])
    assert built.engine.nodes_accelerated == built.engine.nodes_total


def kernels(path: Path, root: Path) -> set[str]:
    """Return the operators that ONNX Runtime's CPU provider makes of a model."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(root / "optimized.onnx")
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return set(operators(root / "optimized.onnx"))


@pytest.mark.parametrize(
    ("source", "feeds", "kernel", "single"),
    [
        (convolutions(), IMAGE, "QLinearConv", "Conv"),
        (dense(), X, "QGemm", "Gemm"),
        (dense(operator="MatMul"), X, "QLinearMatMul", "MatMul"),
    ],
    ids=["conv", "gemm", "matmul"],
)
def test_onnx_runtimes_form_runs_on_integers(
    source: ModelProto, feeds: Arrays, kernel: str, single: str, tmp_path: Path
) -> None:
    path, _ = write_quantized(subject(tmp_path, source), CPU, feeds, tmp_path / "out")
    operator_types = kernels(path, tmp_path)
    assert kernel in operator_types
    assert single not in operator_types


def test_dynamic_quantization_is_fused_and_close(tmp_path: Path) -> None:
    source = dense(operator="MatMul")
    text = "() => () { [gemm] m2 = Gemm <alpha = 0.5, beta = 2.0, transB = 1> (r1, w2, b2) }"
    source.graph.node[6].CopyFrom(parse_text(text).graph.node[0])
    path, result = write_quantized(subject(tmp_path, source), DYNAMIC, X, tmp_path / "out")
    assert list(result.nodes) == [
        "matmul-0 (MatMul)",
        "matmul-1 (MatMul)",
        "gemm (Gemm)",
        "matmul-3 (MatMul)",
    ]
    assert cosine(run(source, X)[0], run(path, X)[0]) > 0.999
    assert kernels(path, tmp_path) & {"DynamicQuantizeMatMul", "MatMulIntegerToFloat"}


def test_unquantized_nodes_have_a_reason(tmp_path: Path) -> None:
    source = dense(2)
    extend(
        source,
        """(float[64, 64] other) => (float[64, 64] four, float["n"] five) {
        ["two-activations"] two = MatMul(y, other) [bias] bias = Neg(b0)
        ["computed-bias"] three = Gemm(two, w0, bias) [constant] four = MatMul(w0, w1)
        [vector] five = MatMul(three, vector) }""",
        weight("vector", random(64)),
    )
    about = subject(tmp_path, source)
    layers = static.find_layers(about, TENSORRT, per_channel=True)
    assert layers.left == {
        "two-activations (MatMul)": "both of its inputs are computed",
        "computed-bias (Gemm)": "its bias is computed",
        "constant (MatMul)": "it has no computed input",
        "vector (MatMul)": "its weight is not a matrix",
    }
    how = StaticQuantization(about, layers, {"x": (-1, 1)}, TENSORRT)
    result = how.write(tmp_path / "out", frozenset({0}))
    assert list(result.nodes) == []
    assert result.kept["gemm-0 (Gemm)"] == static.EXCLUDED
    assert result.kept["gemm-1 (Gemm)"] == "calibration observed no values of r0"


def test_nodes_in_bodies_are_left_and_reported(tmp_path: Path) -> None:
    source = dense(1)
    extend(
        source,
        """(bool c) => (float["n", 64] z) { [if] z = If (c) <
            then_branch = a () => (float["n", 64] a) { ["inside-a"] a = MatMul(x, w0) },
            else_branch = b () => (float["n", 64] b) { ["inside-b"] b = MatMul(x, w0) }> }""",
    )
    feeds = {**X, "c": np.array(True)}
    path, result = write_quantized(subject(tmp_path, source), TENSORRT, feeds, tmp_path / "out")
    assert set(result.kept) == {"inside-a (MatMul)", "inside-b (MatMul)"}
    assert cosine(run(source, feeds)[1], run(path, feeds)[1]) == pytest.approx(
        1
    )  # w0 is still there


def test_shared_weights_and_activations_are_quantized_once(tmp_path: Path) -> None:
    source = parse_text(
        """(float["n", 64] x) => (float["n", 64] y) {
        [first] a = MatMul(x, w) [second] b = MatMul(x, w) [sum] y = Add(a, b) }""",
        weight("w", random(64, 64)),
    )
    path, _ = write_quantized(subject(tmp_path, source), TENSORRT, X, tmp_path / "out")
    assert operators(path).count("QuantizeLinear") == 1
    assert operators(path).count("DequantizeLinear") == 2
    assert len([item for item in graphs.parse(path).graph.initializer if len(item.dims) == 2]) == 1


def test_a_result_that_is_an_output_keeps_its_name(tmp_path: Path) -> None:
    source = convolutions(2)
    source.graph.output.append(value("c0", "n", 8, 16, 16))  # in front of the activation
    path, _ = write_quantized(subject(tmp_path, source), CPU, IMAGE, tmp_path / "out")
    for expected, actual in zip(run(source, IMAGE), run(path, IMAGE), strict=True):
        assert cosine(expected, actual) > 0.999


def test_an_opset_that_has_no_quantization_by_channel_is_raised(tmp_path: Path) -> None:
    about = subject(tmp_path, convolutions(opset=11), 13)
    path, _ = write_quantized(about, TENSORRT, IMAGE, tmp_path / "out")
    assert graphs.default_opset(graphs.parse(path)) == 13
    run(path, IMAGE)


def test_forms_differ_where_they_must() -> None:
    assert form_of("INT8", "tensorrt") == TENSORRT
    assert form_of("INT8", "openvino") == replace(CPU, integers=False, proof_level="BASIC")
    assert form_of("INT8", "cpu", "any") == CPU == replace(EXACT, weights=REDUCED_INT8)
    assert form_of("INT8", "tensorrt", "any").weights is INT8  # devices sum in 32 bits
    assert form_of("FP8", "tensorrt").activations is FP8
