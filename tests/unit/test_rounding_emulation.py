"""The emulation of rounding: every value is what the format makes of it, and the model stays the same in all else."""

from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
import onnx
import pytest
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.proof.rounding.emulation import emulate_rounding
from hypothesis import given, settings
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.support.broken_models import initializer, parse_text
from tests.support.effort import examples, spread
from tests.support.nested_models import answers, draw_nested, is_valid
from tests.support.quantizing import convolutions, dense, random, weight

Array = NDArray[Any]
PRECISIONS: Final = ("FP32", "FP16", "BF16", "INT8", "FP8")
VALUES: Final = np.concatenate(
    (random(500), random(500, seed=1, scale=1e-7), random(500, seed=2, scale=1e3))
).reshape(1, -1)
BEYOND: Final = np.array([[1e30, -3.4028235e38, np.inf, -np.inf, np.nan, 0.0, -0.0]], np.float32)
COPY: Final = "(float[n, m] x) => (float[n, m] y) { y = Mul(x, one) }"


def evaluate(model: ModelProto, *inputs: Array) -> Array:
    """Return the first output, by ONNX's reference implementation."""
    specs = graphs.inputs_of(model)
    feeds = dict(zip((spec.name for spec in specs), inputs, strict=True))
    outputs: Any = ReferenceEvaluator(model).run(None, feeds)
    return np.asarray(outputs[0])


def copies(opset: int = 17) -> ModelProto:
    """Return a model that computes its input, by one operator that rounds."""
    return parse_text(COPY, initializer("one", 1.0), opset=opset)


def multiply(matrix: Array, opset: int = 17) -> ModelProto:
    rows, columns = matrix.shape
    text = f"(float[n, {rows}] x) => (float[n, {columns}] y) {{ y = MatMul(x, w) }}"
    return parse_text(text, weight("w", matrix), opset=opset)


def cut_to_tf32(array: Array) -> Array:
    bits = array.astype(np.float32).view(np.uint32)
    bits = bits + 0xFFF + ((bits >> 13) & 1)
    return (bits & ~np.uint32(0x1FFF)).view(np.float32)


def emulate(model: ModelProto, precision: str) -> ModelProto:
    """Return the emulation, which ONNX's checker must accept."""
    made = emulate_rounding(model, precision)
    onnx.checker.check_model(made, full_check=True)
    return made


def test_values_are_rounded_as_by_a_cast_to_fp16() -> None:
    have = evaluate(emulate(copies(), "FP16"), VALUES)
    np.testing.assert_array_equal(have, VALUES.astype(np.float16).astype(np.float32))
    assert not np.array_equal(have, VALUES)


def test_values_are_rounded_as_by_a_cast_to_bf16() -> None:
    have = evaluate(emulate(copies(), "BF16"), VALUES)
    np.testing.assert_array_equal(have, VALUES.astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize("precision", ["FP16", "BF16"])
def test_values_out_of_reach_pass_as_they_are(precision: str) -> None:
    have = evaluate(emulate(copies(), precision), BEYOND)
    np.testing.assert_allclose(have, BEYOND, rtol=2**-8)


@pytest.mark.parametrize(("precision", "bits"), [("FP16", 11), ("BF16", 8)])
def test_states_of_recurrent_layers_are_as_far_off_as_values_near_one(
    precision: str, bits: int
) -> None:
    # fault: a voice detector in FP16 is refused on a GPU, for states near zero that rounding would hardly change
    source = parse_text(
        "(float[5, 40, 3] x) => (float[5, 1, 40, 2] y) { y = LSTM <hidden_size = 2> (x, w, r) }",
        weight("w", 0.3 * random(1, 8, 3)),
        weight("r", 0.3 * random(1, 8, 2, seed=1)),
    )
    x = random(5, 40, 3, seed=2)
    states = evaluate(emulate(source, precision), x) * 2**bits
    np.testing.assert_array_equal(states, np.rint(states))
    exact = evaluate(source, x) * 2**bits
    assert np.abs(exact).min() < 0.5
    np.testing.assert_allclose(states, exact, atol=4)


def test_products_read_tf32_in_single_precision() -> None:
    x = VALUES.reshape(-1, 10)
    have = evaluate(emulate(multiply(np.eye(10)), "FP32"), x)
    np.testing.assert_array_equal(have, cut_to_tf32(x))


def test_nothing_but_products_is_rounded_in_single_precision() -> None:
    have = evaluate(emulate(copies(), "FP32"), VALUES)
    np.testing.assert_array_equal(have, VALUES)


@pytest.mark.parametrize("opset", [11, 17, 18, 26])
def test_activations_have_the_255_steps_of_their_range(opset: int) -> None:
    x = random(16, 8) + 0.5
    have = evaluate(emulate(multiply(np.eye(8), opset), "INT8"), x)
    step = (x.max() - x.min()) / 255
    np.testing.assert_allclose(have, np.rint(x / step) * step, rtol=1e-5, atol=1e-6)
    assert len(np.unique(have)) > 30


@pytest.mark.parametrize("opset", [11, 17, 18, 26])
def test_weights_have_steps_of_their_channel(opset: int) -> None:
    matrix = random(8, 6) * np.array([1, 10, 100, 0.1, 1e-3, 0], np.float32)
    have = evaluate(emulate(multiply(matrix, opset), "INT8"), np.eye(8, dtype=np.float32))
    step = np.abs(matrix).max(0) / 127
    step[step == 0] = 1
    np.testing.assert_allclose(have, np.rint(matrix / step) * step, rtol=1e-5, atol=1e-9)


def test_a_transposed_weight_has_its_channels_first() -> None:
    matrix = random(6, 8) * np.array([1, 10, 100, 0.1, 1e-3, 1], np.float32)[:, None]
    text = "(float[n, 8] x) => (float[n, 6] y) { y = Gemm<transB=1>(x, w) }"
    model = parse_text(text, weight("w", matrix))
    have = evaluate(emulate(model, "INT8"), np.eye(8, dtype=np.float32))
    step = np.abs(matrix).max(1, keepdims=True) / 127
    np.testing.assert_allclose(have.T, np.rint(matrix / step) * step, rtol=1e-5, atol=1e-9)


def test_values_are_those_of_e4m3_in_fp8() -> None:
    x = random(64, 8)
    x[:4] *= 1e-4
    have = evaluate(emulate(multiply(np.eye(8)), "FP8"), x)
    scale = np.abs(x).max() / np.float32(448)
    exact = (x / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale
    normal = np.abs(x / scale) >= 2**-6
    np.testing.assert_allclose(have[normal], exact[normal], rtol=1e-5)
    # two roundings in a row, of a subnormal
    np.testing.assert_allclose(have, exact, rtol=1e-5, atol=float(scale) * 1.01 * 2**-9)
    assert (have[~normal] == 0).any()


@pytest.mark.parametrize("opset", spread(range(7, onnx.defs.onnx_opset_version() + 1)))
def test_every_opset_has_what_is_inserted(opset: int) -> None:
    for source in (dense(opset=opset), convolutions(opset=opset)):
        x = random(2, *(dimension.dim_value for dimension in shape(source)[1:]))
        want = evaluate(source, x)
        for precision in PRECISIONS:
            have = evaluate(emulate(source, precision), x)
            error = float(np.sqrt(np.square(have - want).mean() / np.square(want).mean()))
            assert 0 < error < {"FP32": 2e-3, "FP16": 2e-3, "BF16": 2e-2}.get(precision, 0.1)


def shape(model: ModelProto) -> Any:
    return model.graph.input[0].type.tensor_type.shape.dim


def test_the_interface_and_the_weights_are_left_alone(tmp_path: Path) -> None:
    source = dense()
    external = source.graph.initializer[0]
    (tmp_path / "weights.bin").write_bytes(external.raw_data)
    external.ClearField("raw_data")
    external.data_location = TensorProto.EXTERNAL
    external.external_data.add(key="location", value="weights.bin")
    before = source.SerializeToString()
    for precision in PRECISIONS:
        made, again = (emulate_rounding(source, precision, tmp_path) for _ in range(2))
        assert source.SerializeToString() == before
        for field in ("input", "output", "initializer"):
            assert [*getattr(made.graph, field)] == [*getattr(source.graph, field)]
        assert made.SerializeToString() == again.SerializeToString()


def test_sizes_that_are_computed_with_floats_are_exact() -> None:
    source = parse_text(
        """(float[n] x) => (float[m] y) {
        size = Shape(x) count = Cast<to=1>(size) more = Mul(count, growth) whole = Floor(more)
        length = Cast<to=7>(whole) y = Expand(zero, length) }""",
        initializer("growth", 1.001),
        initializer("zero", [0.0]),
    )
    x = np.zeros(2049, np.float32)
    for precision in PRECISIONS:
        assert evaluate(emulate(source, precision), x).shape == (2051,)


def test_scales_of_sizes_are_exact() -> None:
    source = parse_text(
        """(float[1, 1, h, w] x) => (float[1, 1, a, b] y) {
        r = Mul(x, x) y = Resize<mode="nearest">(r, , scales) }""",
        initializer("scales", [1.0, 1.0, 1.3333334, 1.3333334]),
    )
    made = emulate(source, "FP16")
    resize = next(node for node in made.graph.node if node.op_type == "Resize")
    assert resize.input[2] == "scales"


BRANCH: Final = """(float[n, 4] x, bool yes) => (float[n, 4] y) {
    y = If(yes) <then_branch = one () => (float[n, 4] a) { a = MatMul(x, w) },
                 else_branch = other () => (float[n, 4] b) { b = Mul(x, two) }> }"""


@pytest.mark.parametrize("precision", PRECISIONS)
def test_bodies_round_too(precision: str) -> None:
    source = parse_text(BRANCH, weight("w", np.eye(4)), initializer("two", 2.0))
    x = VALUES[:, :40].reshape(-1, 4)
    for taken in (True, False):
        want = evaluate(source, x, np.array(taken))
        have = evaluate(emulate(source, precision), x, np.array(taken))
        # products of bodies are not quantized, and what is no product is rounded in FP16 and BF16 alone
        assert (have != want).any() == (taken or precision in {"FP16", "BF16"})
        np.testing.assert_allclose(have, want, rtol=2**-8)


def test_products_of_two_computed_values_are_not_quantized() -> None:
    text = "(float[n, 8] x) => (float[n, m] y) { t = Transpose(x) y = MatMul(x, t) }"
    source = parse_text(text)
    x = random(16, 8)
    np.testing.assert_array_equal(
        evaluate(emulate(source, "INT8"), x), evaluate(emulate(source, "FP32"), x)
    )


@settings(max_examples=examples(20))
@given(draw_nested())
def test_nested_models_stay_valid_and_right(source: ModelProto) -> None:
    want = answers(source)
    for precision in ("FP32", "BF16"):
        made = emulate_rounding(source, precision)
        assert is_valid(made)
        np.testing.assert_allclose(answers(made), want, rtol=0.05, atol=0.05)


def test_a_source_that_casts_to_halves_is_rounded_from_beside() -> None:
    """Its results are rounded already: the emulation gives the next ones, to some of the values."""
    source = parse_text(
        """(float[n, m] x) => (float[n, m] y) {
        w = Cast<to=1>(h) exact = Mul(x, w) half = Cast<to=10>(exact) y = Cast<to=1>(half) }""",
        numpy_helper.from_array(np.array(1.25, np.float16), "h"),
    )
    want = evaluate(source, VALUES[:, :500])
    have = evaluate(emulate(source, "FP16"), VALUES[:, :500])
    changed = have != want
    assert 0.2 < changed.mean() < 0.6
    np.testing.assert_allclose(have, want, rtol=2**-10)
    # what is a half already stays: rounding of a copy is none
    halves = np.full((1, 1), 0.5, np.float32)
    np.testing.assert_array_equal(evaluate(emulate(source, "FP16"), halves), halves * 1.25)


def test_a_quantized_source_gets_some_values_one_step_beside() -> None:
    source = parse_text(
        """(float[n, m] x) => (float[n, m] y) {
        q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }""",
        initializer("s", 0.02),
        numpy_helper.from_array(np.array(128, np.uint8), "z"),
        opset=19,
    )
    x = random(10, 200)
    steps = np.rint((evaluate(emulate(source, "INT8"), x) - evaluate(source, x)) / 0.02)
    assert set(np.unique(steps)) == {-1.0, 0.0, 1.0}
    assert 0.001 < (steps != 0).mean() < 0.3


def test_functions_are_inlined() -> None:
    source = dense(1)
    function = onnx.helper.make_function(
        "own",
        "Twice",
        ["a"],
        ["b"],
        [onnx.helper.make_node("Add", ["a", "a"], ["b"])],
        [onnx.helper.make_opsetid("", 17)],
    )
    source.functions.append(function)
    source.opset_import.append(onnx.helper.make_opsetid("own", 1))
    source.graph.node[-1].output[0] = "r"
    source.graph.node.append(onnx.helper.make_node("Twice", ["r"], ["y"], domain="own"))
    x = random(4, 64)
    have = evaluate(emulate(source, "FP16"), x)
    assert 0 < np.abs(have - evaluate(source, x)).max() < 0.05
    assert np.array_equal(have, have.astype(np.float16))


def test_what_is_not_quantized_is_rounded_to_the_rest() -> None:
    source = parse_text(
        """(float[n, 8] x) => (float[n, 8] y, float[n, 8] z) {
        m = MatMul(x, w) z = Mul(m, half) y = MatMul(z, v) }""",
        weight("w", random(8, 8)),
        weight("v", random(8, 8, seed=1)),
        initializer("half", 0.3),
    )
    x = random(16, 8)
    made = emulate_rounding(source, "INT8", rest="FP16")
    onnx.checker.check_model(made, full_check=True)
    outputs: Any = ReferenceEvaluator(made).run(None, {"x": x})
    y, z = map(np.asarray, outputs)
    for array in (y, z):
        np.testing.assert_array_equal(array, array.astype(np.float16))
    # the last product quantizes its input, though that is rounded already
    last = multiply(numpy_helper.to_array(source.graph.initializer[1]))
    np.testing.assert_array_equal(evaluate(emulate_rounding(last, "INT8", rest="FP16"), z), y)
    alone = evaluate(emulate_rounding(source, "INT8"), x)
    np.testing.assert_allclose(y, alone, atol=0.2)
    assert (y != alone).any()


def test_a_node_that_the_rules_keep_single_is_not_rounded_to_the_rest() -> None:
    source = parse_text(
        "(float[n, 8] x) => (float[n, 8] y) { e = Exp(x) y = MatMul(e, w) }",
        weight("w", np.eye(8)),
    )
    made = emulate_rounding(source, "FP8", rest="FP16")
    operators = [node.op_type for node in made.graph.node]
    assert operators.count("Cast") == 2  # of the product's result
    x = random(4, 8)
    assert (evaluate(made, x) == evaluate(emulate(source, "FP8"), x).astype(np.float16)).all()
