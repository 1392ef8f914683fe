"""Half precision: what is lowered, what stays, and that a proof sees what a device would compute."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from enginewright_contract.manifest import MODEL_NAME
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.scoped.passes import PassResult
from enginewright_runtime.prepare.quantize.halves import Halves
from enginewright_runtime.prepare.quantize.subject import SourceModel
from enginewright_runtime.prepare.quantize.widening import widen
from enginewright_runtime.proof.rounding import half_rules
from enginewright_runtime.proof.rounding.half_rules import HALVES
from onnx import ModelProto, TensorProto
from onnx.reference import ReferenceEvaluator
from onnxruntime.transformers.float16 import convert_float_to_float16

from tests.support.broken_models import build_unsorted, extend, initializer, parse_text
from tests.support.converting import real, run
from tests.support.quantizing import (
    build_engine,
    convolutions,
    copy_weights,
    cosine,
    dense,
    random,
    subject,
    text,
    weight,
)

FLOAT16, BFLOAT16 = TensorProto.FLOAT16, TensorProto.BFLOAT16
X = {"x": random(2, 64)}


def lower_model(
    about: SourceModel,
    folder: Path,
    precision: str = "FP16",
    *,
    excluded: frozenset[int] = frozenset(),
    largest: Mapping[str, float] | None = None,
) -> tuple[Path, PassResult]:
    """Lower a model and write it; ONNX's checker must agree that it is one."""
    result = Halves(about, HALVES[precision], largest or {}).write(folder, excluded)
    path = folder / MODEL_NAME
    onnx.checker.check_model(str(path), full_check=True)
    return path, result


def simulate(path: Path) -> ModelProto:
    model = onnx.load(path)
    widen(model)
    return model


def elements(model: ModelProto) -> dict[str, int]:
    return {tensor.name: tensor.data_type for tensor in model.graph.initializer}


@pytest.mark.parametrize(("precision", "error"), [("FP16", 1e-6), ("BF16", 1e-4)])
def test_weights_and_nodes_are_halves_and_the_interface_is_not(
    precision: str, error: float, tmp_path: Path
) -> None:
    source = dense()
    path, result = lower_model(subject(tmp_path, source, 22), tmp_path / "out", precision)
    model = onnx.load(path)
    assert set(elements(model).values()) == {HALVES[precision].element}
    assert [item.type for item in model.graph.input] == [item.type for item in source.graph.input]
    assert [item.type for item in model.graph.output] == [item.type for item in source.graph.output]
    assert [node.op_type for node in model.graph.node].count("Cast") == 2  # at the borders
    assert len(result.nodes) == 8
    assert not result.kept
    outputs = run(simulate(path), X)[0]
    assert 0 < 1 - cosine(run(source, X)[0], outputs) < error


def test_copies_of_weights_are_halves_too(tmp_path: Path) -> None:
    path, result = lower_model(subject(tmp_path, copy_weights(dense())), tmp_path / "out")
    assert set(elements(onnx.load(path)).values()) == {TensorProto.FLOAT16}
    assert not result.kept
    assert cosine(run(dense(), X)[0], run(simulate(path), X)[0]) > 1 - 1e-6


def test_unsorted_nodes_become_sorted(tmp_path: Path) -> None:
    path, _ = lower_model(subject(tmp_path, build_unsorted()), tmp_path / "out")
    feeds = {"x": np.array([[-1, 2, 3, 4]], np.float32)}
    assert np.array_equal(run(path, feeds)[0], run(build_unsorted(), feeds)[0])


def test_an_overflow_that_onnx_runtime_hides_is_seen(tmp_path: Path) -> None:
    """1,000,000 is infinite in FP16; ONNX Runtime's CPU provider computes it in FP32 and says 1,000."""
    source = parse_text(
        """(float[1, 4] x) => (float[1, 4] y) {
        ["product-0"] a = MatMul(x, up) ["product-1"] b = MatMul(a, up)
        ["product-2"] y = MatMul(b, down) }""",
        weight("up", np.eye(4) * 1000),
        weight("down", np.eye(4) / 1000),
    )
    feeds = {"x": np.ones((1, 4), np.float32)}
    about = subject(tmp_path, source)
    path, _ = lower_model(about, tmp_path / "naive")
    assert np.isfinite(run(path, feeds)[0]).all()
    assert not np.isfinite(run(simulate(path), feeds)[0]).any()

    seen, result = lower_model(about, tmp_path / "seen", largest={"a": 1000.0, "b": 1e6})
    assert set(result.kept) == {"product-1 (MatMul)", "product-2 (MatMul)"}
    assert result.kept["product-1 (MatMul)"] == "values of b approach the limit of FP16"
    assert np.allclose(run(simulate(seen), feeds)[0], 1000, rtol=1e-3)

    path, _ = lower_model(about, tmp_path / "wide", "BF16")  # which has the range of FP32
    assert np.allclose(run(simulate(path), feeds)[0], 1000, rtol=1e-2)


def scale_model(constant: float, *, operator: str = "Mul", then: str | None = None) -> ModelProto:
    last = f"[constant] a = {operator}(x, c) [then] y = {then}(x, a)"
    nodes = last if then else f"[constant] y = {operator}(x, c)"
    return parse_text(
        f"(float[1, 4] x) => (float[1, 4] y) {{ {nodes} }}", initializer("c", [constant])
    )


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        (
            scale_model(97_903_600.0),
            {"constant (Mul)": "weight c has 9.79e+07, beyond FP16's 6.55e+04"},
        ),
        (scale_model(-3.4e38), {"constant (Mul)": "weight c has 3.4e+38, beyond FP16's 6.55e+04"}),
        (
            scale_model(1e-12, operator="Max", then="Div"),
            {
                "constant (Max)": "weight c, at most 1e-12, loses 100% to underflow",
                "then (Div)": "it divides by a value that underflows in half precision",
            },
        ),
        (scale_model(65504.0), {}),
        (scale_model(float("-inf"), operator="Max"), {}),  # a half has infinity
        (scale_model(0.0), {}),
    ],
    ids=["large", "mask", "divisor", "largest", "infinite", "zero"],
)
def test_constants_that_a_half_cannot_hold(
    source: ModelProto, kept: dict[str, str], tmp_path: Path
) -> None:
    path, result = lower_model(subject(tmp_path, source), tmp_path / "out")
    assert result.kept == kept
    feeds = {"x": np.array([[0.25, 0.5, 1, 0]], np.float32)}
    actual, expected = run(simulate(path), feeds)[0], run(source, feeds)[0]
    assert np.allclose(actual, expected, rtol=1e-2, equal_nan=True)


# a fault that was seen: verified in FP16 on golden samples, and NaN, infinite or another picture on what clients send
@pytest.mark.parametrize(
    ("source", "feeds", "precision", "kept"),
    [
        pytest.param(
            """(int64[1] t) => (float[1, 8] y) {
            [cast] f = Cast <to = 1> (t) [product] a = Mul(f, w) [sin] s = Sin(a) y = Sub(s, zero) }""",
            {"t": np.array([999])},
            precision,
            {"product (Mul)"} | ({"sin (Sin)"} if precision == "FP16" else set()),  # BF16 has none
            id=f"timestep {precision}",
        )
        for precision in ("FP16", "BF16")
    ]
    + [
        pytest.param(
            """(float[2, 8] x) => (float[2, 8] y) {
            [softmax] p = Softmax(x) [shape] q = Reshape(p, n) [log] l = Log(q) y = Sub(l, zero) }""",
            {"x": np.linspace(-25, 25, 16, dtype=np.float32).reshape(2, 8)},
            "FP16",
            {"softmax (Softmax)", "shape (Reshape)", "log (Log)"},
            id="logarithm",
        ),
        pytest.param(
            """(float[2, 8] x) => (float[2, 8] y) {
            [norm] l = ReduceL2 <axes = [-1]> (x) [floor] c = Clip(l, eps) [expand] e = Expand(c, n)
            [divide] d = Div(x, e) y = Sub(d, zero) }""",
            {"x": np.zeros((2, 8), np.float32)},
            "FP16",
            {"norm (ReduceL2)", "floor (Clip)", "expand (Expand)", "divide (Div)"},
            id="normalized",
        ),
        pytest.param(
            """(float[2, 8] x) => (float[2, 8] y) {
            [expand] e = Expand(eps, n) [divide] d = Div(x, e) y = Mul(d, zero) }""",
            {"x": np.zeros((2, 8), np.float32)},
            "FP16",
            {"expand (Expand)", "divide (Div)"},
            id="expanded constant",
        ),
        pytest.param(
            """(float[2, 8] x) => (float[2, 8] y) {
            q = Mul(x, x) [sum] l = ReduceMean <axes = [-1]> (q) [add] c = Add(l, eps)
            [root] e = Sqrt(c) [inverse] i = Reciprocal(e) [scale] d = Mul(x, i) y = Sub(d, zero) }""",
            {"x": np.zeros((2, 8), np.float32)},
            "FP16",
            {"sum (ReduceMean)", "add (Add)", "root (Sqrt)", "inverse (Reciprocal)", "scale (Mul)"},
            id="inverse root",
        ),
    ],
)  # fmt: skip
def test_values_that_golden_samples_do_not_show_stay_exact(
    source: str,
    feeds: dict[str, np.ndarray[Any, Any]],
    precision: str,
    kept: set[str],
    tmp_path: Path,
) -> None:
    frequencies = (10_000.0 ** (-np.arange(8) / 8))[None]
    tensors = (
        initializer("eps", np.float32(1e-12)),
        initializer("zero", np.float32(0)),
        initializer("w", frequencies.astype(np.float32)),
        initializer("n", [2, 8], np.int64),
    )
    model = parse_text(source, *tensors)
    path, result = lower_model(subject(tmp_path, model), tmp_path / "out", precision)
    assert set(result.kept) == kept
    expected, actual = run(model, feeds)[0], run(simulate(path), feeds)[0]
    assert np.isfinite(actual).all()
    assert np.allclose(actual, expected, rtol=1e-2, atol=1e-2)


def test_angles_that_a_network_computes_are_lowered(tmp_path: Path) -> None:
    source = parse_text(
        """(float[1, 3, 8] x) => (float[1, 3, 8] y) {
        c = Conv(x, w) s = Sin(c) m = MatMul(s, v) y = Sin(m) }""",
        weight("w", np.ones((3, 3, 1))),
        weight("v", np.eye(8)),
    )
    _, result = lower_model(subject(tmp_path, source), tmp_path / "out")
    assert result.kept == {}


def test_a_small_weight_among_others_is_no_loss() -> None:
    array = np.append(random(1000), np.float32(1e-9))
    assert half_rules.loss("w", array, HALVES["FP16"]) is None
    assert half_rules.loss("w", array * np.float32(1e-8), HALVES["FP16"]) is not None
    assert half_rules.loss("w", array * np.float32(1e-8), HALVES["BF16"]) is None


def branches() -> ModelProto:
    """Return an If both of whose branches use values of the outer graph, one without any node of its own."""
    model = dense(2)
    extend(
        model,
        """(bool c) => (float["n", 64] z) { [if] z = If (c) <
            then_branch = yes () => (float["n", 64] "yes-out") {
                [inside] "yes-out" = MatMul(r0, inner) },
            else_branch = no () => (float["n", 64] "no-out") {
                [same] "no-out" = Identity(r0) }> }""",
    )
    for attribute in model.graph.node[-1].attribute:
        attribute.g.initializer.append(weight("inner", random(64, 64)))
    return model


@pytest.mark.parametrize("excluded", [frozenset[int](), frozenset({4})])
def test_bodies_are_lowered_and_keep_their_interface(
    excluded: frozenset[int], tmp_path: Path
) -> None:
    source = branches()
    path, result = lower_model(subject(tmp_path, source), tmp_path / "out", excluded=excluded)
    assert ("inside (MatMul)" in result.nodes) is not bool(excluded)
    for condition in (True, False):
        feeds = {**X, "c": np.array(condition)}
        for model in (path, simulate(path)):
            for expected, actual in zip(run(source, feeds), run(model, feeds), strict=True):
                assert cosine(expected, actual) > 0.99999


def siblings(*, integers_first: bool) -> ModelProto:
    """Return an If whose branches call values of different types by one name."""
    floats = """() => (float["n", 64] floats) {
        [relu] t = Relu(x) [product] floats = MatMul(t, inner) }"""
    integers = """() => (float["n", 64] integers)
        <int64[1] inner = {70000}, int64[1] seventy = {69999}> {
        [add] t = Add(i, inner) [rest] rest = Sub(t, seventy)
        [factor] factor = Cast <to = 1> (rest) [scaled] integers = Mul(x, factor) }"""
    first, second = (integers, floats) if integers_first else (floats, integers)
    model = parse_text(
        f"""(float["n", 64] x, int64[1] i, bool c) => (float["n", 64] y) {{ [if] y = If (c) <
            then_branch = first {first}, else_branch = second {second}> }}"""
    )
    (body,) = (item.g for item in model.graph.node[0].attribute if len(item.g.node) == 2)
    body.initializer.append(weight("inner", random(64, 64)))
    return model


def define_output(model: ModelProto, feeds: dict[str, Any]) -> Any:
    """Return the first output, by ONNX's reference implementation."""
    outputs: Any = ReferenceEvaluator(model).run(None, feeds)
    return outputs[0]


# fault: Outputs | values of one name in sibling branches mistaken for each other (an INT64 of
#   70,001 cast to FP16) | they get names of their own | at the conversion
@pytest.mark.parametrize("integers_first", [True, False])
def test_names_that_sibling_branches_share_are_values_apart(
    integers_first: bool, tmp_path: Path
) -> None:
    """An integer of 70,001 is no half; by definition, since ONNX Runtime's CPU casts halves back."""
    source = siblings(integers_first=integers_first)
    onnx.checker.check_model(source, full_check=True)
    path, result = lower_model(subject(tmp_path, source), tmp_path / "out")
    assert "product (MatMul)" in result.nodes
    for condition in (True, False):
        feeds: dict[str, Any] = {
            **X,
            "i": np.array([1], np.int64),
            "c": np.array(condition),
        }
        expected, actual = (define_output(model, feeds) for model in (source, onnx.load(path)))
        assert cosine(expected, actual) > 0.99999
        assert np.abs(actual).max() == pytest.approx(np.abs(expected).max(), rel=1e-2)
        assert cosine(run(source, feeds)[0], run(simulate(path), feeds)[0]) > 0.99999


def test_sizes_and_indices_stay_exact(tmp_path: Path) -> None:
    """Sizes that go over floats, as exporters of Resize write them; 2,049 is no half."""
    source = parse_text(
        """(float["n"] x) => (float[?] y) <float[1] one = {1}> {
        [shape] shape = Shape(x) [single] single = Cast <to = 1> (shape)
        [scaled] scaled = Mul(single, one) [size] size = Cast <to = 7> (scaled)
        [relu] a = Relu(x) [reshape] y = Reshape(a, size) }"""
    )
    path, result = lower_model(subject(tmp_path, source), tmp_path / "out")
    assert result.kept == {"scaled (Mul)": "it computes sizes"}
    shape = next(node for node in graphs.parse(path).graph.node if node.op_type == "Shape")
    assert list(shape.input) == ["x"]  # nothing is won by halves there
    assert run(simulate(path), {"x": random(2049)})[0].shape == (2049,)


def test_unsafe_operators_stay_and_are_reported(tmp_path: Path) -> None:
    source = parse_text(
        """(float[1, 4096] x) => (float[1, 4096] y) {
        [exp] a = Exp(x) [sum] b = ReduceSum(a) [share] y = Div(a, b) }"""
    )
    path, result = lower_model(subject(tmp_path, source), tmp_path / "out")
    assert result.kept == {
        "exp (Exp)": "its results exceed half precision's range for common inputs",
        "sum (ReduceSum)": "it sums or multiplies many elements",
        "share (Div)": "it reads values that exceed half precision's range for common inputs",
    }
    feeds = {"x": random(1, 4096) * 8}
    assert cosine(run(source, feeds)[0], run(simulate(path), feeds)[0]) > 0.999


@pytest.mark.parametrize(("opset", "stays"), [(11, True), (12, False)])
def test_operators_that_gpus_have_in_half_precision_from_a_later_opset_stay(
    opset: int, stays: bool, tmp_path: Path
) -> None:
    """Seen on an H200: the CUDA provider leaves a Clip of opset 11 in FP16 to the CPU."""
    text = "(float[1, 4] x) => (float[1, 4] y) { [product] h = MatMul(x, w) [clip] y = Clip(h) }"
    source = parse_text(text, weight("w", np.eye(4)), opset=opset)
    _, result = lower_model(subject(tmp_path, source), tmp_path / "out")
    assert [name for name in result.kept if "clip" in name] == ["clip (Clip)"] * stays


def test_a_shared_weight_is_there_once_in_each_type(tmp_path: Path) -> None:
    source = dense(3, operator="MatMul")
    for node in source.graph.node:
        if node.op_type == "MatMul":
            node.input[1] = "w0"
    path, _ = lower_model(subject(tmp_path, source), tmp_path / "out", excluded=frozenset({3}))
    names = [name for name in elements(graphs.parse(path)) if name.startswith("w")]
    assert names == ["w0", "w0_float16"]
    assert cosine(run(source, X)[0], run(simulate(path), X)[0]) > 0.99999


def test_external_data_is_written_anew_and_complete(tmp_path: Path) -> None:
    source = dense(2, 64)
    (tmp_path / "subject").mkdir()
    onnx.save_model(
        source,
        tmp_path / "subject/model.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    before = (tmp_path / "subject/weights.bin").read_bytes()
    about = SourceModel.load(tmp_path / "subject/model.onnx")
    path, _ = lower_model(about, tmp_path / "out", excluded=frozenset({2}))
    assert (tmp_path / "subject/weights.bin").read_bytes() == before
    kinds = {tensor.name: tensor.data_type for tensor in graphs.parse(path).graph.initializer}
    assert kinds["w0_float16"] == FLOAT16
    assert kinds["w1"] == TensorProto.FLOAT
    path.rename(tmp_path / "out/again.onnx")
    assert cosine(run(dense(2, 64), X)[0], run(tmp_path / "out/again.onnx", X)[0]) > 0.99999


def test_the_naive_conversion_of_a_text_detector_is_wrong_and_ours_is_not(
    models: Path, tmp_path: Path
) -> None:
    """A variance of 97,903,600 in a Constant node, cut off at 65,504 without a word by a common tool."""
    source = real(models, "ch_PP-OCRv4_det_infer.onnx")
    feeds = {"x": text(96, 160)}
    expected = run(source, feeds)[0]
    assert expected.max() > 0.5  # it sees text
    naive = run(convert_float_to_float16(onnx.load(source), keep_io_types=True), feeds)[0]
    assert cosine(expected, naive) < 0.99

    path, result = lower_model(SourceModel.load(source), tmp_path / "out")
    [kept] = result.kept.values()
    assert kept == "weight batch_norm_0.w_2 has 9.79e+07, beyond FP16's 6.55e+04"
    assert cosine(expected, run(simulate(path), feeds)[0]) > 0.999


@pytest.mark.parametrize(
    ("file", "precision"),
    [
        ("silero_vad_half.onnx", "FP16"),  # branches
        ("silero_vad_16k_op15.onnx", "BF16"),
        ("standard_v3_3/model.onnx", "BF16"),
        ("swift_f0/model.onnx", "FP16"),  # double outputs, nodes without names
    ],
)
def test_real_models_keep_their_rules(
    file: str, precision: str, models: Path, tmp_path: Path
) -> None:
    about = SourceModel.load(real(models, file), 22 if precision == "BF16" else None)
    path, result = lower_model(about, tmp_path / "out", precision)
    assert len(result.nodes) > 50
    source = graphs.parse(real(models, file))
    assert graphs.inputs_of(graphs.parse(path)) == graphs.inputs_of(source)
    assert graphs.outputs_of(graphs.parse(path)) == graphs.outputs_of(source)


@pytest.mark.parametrize(("precision", "capability"), [("FP16", "7.5"), ("BF16", "8.9")])
def test_tensorrt_builds_them(precision: str, capability: str, tmp_path: Path) -> None:
    """Strongly typed, so for compute capability 7.5 without products of single precision, which fail."""
    about = subject(tmp_path, dense(3), 22)
    path, _ = lower_model(about, tmp_path / "out", precision)
    built = build_engine(tmp_path / "engine", path, capability, [2, 64])
    assert built.engine.nodes_accelerated == built.engine.nodes_total


def test_tensorrt_has_no_deconvolution_in_bf16(tmp_path: Path) -> None:
    source = convolutions(1)
    del source.graph.output[:]
    text = '() => (float["n", 4, 32, 32] z) { [up] z = ConvTranspose <strides = [2, 2]> (y, up) }'
    extend(source, text, weight("up", random(8, 4, 2, 2)))
    path, result = lower_model(subject(tmp_path, source, 22), tmp_path / "out", "BF16")
    assert result.kept == {"up (ConvTranspose)": "TensorRT has no deconvolution in BF16"}
    build_engine(tmp_path / "engine", path, "8.9", [1, 3, 16, 16])
