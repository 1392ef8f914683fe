"""Golden samples that make models show something: pictures, speech, texts, and masks that are masks."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from enginewright_contract.manifest import Manifest
from enginewright_contract.task import Calibration, Quantization

from tests.support.broken_models import initializer, parse_text
from tests.support.converting import LISTEN, READ, real
from tests.support.engines import sizes
from tests.support.preparing import Outcome, Workplace

CORNERS = {"min", "opt", "max"}
LENGTH = 16
ROWS = 4000  # of the vocabulary
CLASSES = 8
RTX = "tensorrt-rtx"


def golden(place: Workplace, file: str) -> dict[str, dict[str, Any]]:
    """Return the arrays of a golden file by sample."""
    samples: dict[str, dict[str, Any]] = {}
    with np.load(place.root / f"work/golden/{file}.npz", allow_pickle=False) as arrays:
        for key in arrays.files:
            sample, _, name = key.partition("/")
            samples.setdefault(sample, {})[name] = arrays[key]
    return samples


def outputs_of(
    place: Workplace, model: Path | onnx.ModelProto, **options: Any
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Make golden samples; return the outputs of noise, and of natural inputs."""
    place.complete(place.task(place.put("model.onnx", model), **options), "golden")
    outputs = golden(place, "outputs")
    assert len(outputs) <= 8, "a sidecar runs no more"
    noise = [arrays for name, arrays in outputs.items() if name in CORNERS]
    natural = [arrays for name, arrays in outputs.items() if name not in CORNERS]
    assert noise
    assert natural
    return noise, natural


def only(arrays: dict[str, Any]) -> Any:
    (array,) = arrays.values()
    return array


def test_a_detector_finds_text_in_pictures_and_none_in_noise(
    models: Path, place: Workplace
) -> None:
    detect = sizes("x", [1, 3, 160, 160], [1, 3, 320, 320], [1, 3, 320, 320])
    model = real(models, "ch_PP-OCRv4_det_infer.onnx")
    noise, natural = outputs_of(place, model, shapes=[detect])
    assert max(only(arrays).max() for arrays in noise) < 0.25
    candidates = [np.count_nonzero(only(arrays) > 0.25) for arrays in natural]
    assert sum(count > 500 for count in candidates) >= 1, candidates
    assert min(candidates) < 500, "and not everywhere"


def test_a_reader_reads_lines_and_nothing_in_noise(models: Path, place: Workplace) -> None:
    model = real(models, "ch_PP-OCRv4_rec_infer.onnx")
    noise, natural = outputs_of(place, model, shapes=[READ])

    def read(outputs: list[dict[str, Any]]) -> set[int]:
        """Return the characters of which the model is certain; the first is none."""
        return {
            int(row.argmax())
            for arrays in outputs
            for row in only(arrays).reshape(-1, only(arrays).shape[-1])
            if row.max() > 0.5
        } - {0}

    assert len(read(natural)) >= len(read(noise)) + 10, (read(noise), read(natural))


def test_a_classifier_tells_pictures_apart(models: Path, place: Workplace) -> None:
    model = real(models, "ch_ppocr_mobile_v2.0_cls_infer.onnx")
    noise, natural = outputs_of(place, model, shapes=[READ])
    assert spread(natural) > 2 * spread(noise), (spread(natural), spread(noise))


def spread(outputs: list[dict[str, Any]]) -> float:
    """Return the least standard deviation of a class's column."""
    rows = np.concatenate([only(arrays).reshape(-1, only(arrays).shape[-1]) for arrays in outputs])
    return float(rows.std(axis=0).min())


def test_a_detector_of_speech_hears_some(models: Path, place: Workplace) -> None:
    model = real(models, "silero_vad_openvino_16k.onnx")
    noise, natural = outputs_of(place, model)
    name = min(noise[0], key=lambda key: noise[0][key].size)  # the probability, beside the state
    heard = [float(arrays[name].max()) for arrays in natural]
    assert max(heard) - min(heard) > 0.2, heard
    assert max(heard) > max(float(arrays[name].max()) for arrays in noise) + 0.2, heard


def test_a_tracker_of_pitch_hears_a_voice(models: Path, place: Workplace) -> None:
    noise, natural = outputs_of(place, real(models, "swift_f0/model.onnx"), shapes=[LISTEN])
    pitch = np.concatenate([arrays["pitch"].ravel() for arrays in natural])
    assert [np.sum(abs(pitch - hertz) < 10) > 20 for hertz in (110, 155)] == [True, True]
    assert all(np.isfinite(arrays["pitch"]).any() for arrays in noise), "drawn again"


def encoder() -> onnx.ModelProto:
    """Return an encoder of texts: each eighth of the vocabulary speaks for one class, where the mask has a token."""
    table = np.eye(CLASSES)[np.arange(ROWS) * CLASSES // ROWS]
    return parse_text(
        f"""(int64["batch", {LENGTH}] input_ids, int64["batch", {LENGTH}] attention_mask)
        => (float["batch", {CLASSES}] logits, float["batch", {CLASSES}] squares)
        <float one = {{1}}, int64[1] last = {{2}}, int64[1] tokens = {{1}}> {{
        words = Gather(table, input_ids)
        mask = Cast <to = 1> (attention_mask) padding = Sub(one, mask)
        hidden = Mul(padding, lowest) wide = Unsqueeze(hidden, last) masked = Add(words, wide)
        attention = Softmax <axis = 1> (masked) weighted = Mul(attention, words)
        pooled = ReduceSum <keepdims = 0> (weighted, tokens)
        logits = MatMul(pooled, weight) squares = Mul(logits, logits) }}""",
        initializer("table", table),
        initializer("weight", 4 * np.eye(CLASSES) - 0.25),
        initializer("lowest", np.finfo(np.float32).min),
    )


def test_an_encoder_gets_texts_of_its_whole_vocabulary(place: Workplace) -> None:
    noise, natural = outputs_of(place, encoder())
    columns = [
        np.concatenate([arrays["logits"] for arrays in side]).std(axis=0)
        for side in (noise, natural)
    ]
    assert np.isfinite(columns[0]).all(), "in noise too the masks are masks"
    assert columns[1].min() > 0.01, "every class moves"
    assert columns[0].max() < columns[1].min(), "and in noise, of few tokens, none that much"


def prepare(place: Workplace, **options: Any) -> tuple[str, Outcome]:
    return place.prepare(place.task(place.put("model.onnx", encoder()), **options))


# fault: Outputs | masks of any integers make all golden outputs NaN, with which every model agrees | masks are drawn
#   again as 0 and 1 | prepare
def test_masks_are_drawn_again_where_outputs_are_nan(place: Workplace) -> None:
    stage, outcome = prepare(place, backend=RTX, precision="FP16")
    assert stage == "publish", outcome.message
    inputs, outputs = golden(place, "inputs"), golden(place, "outputs")
    assert inputs.keys() >= CORNERS
    for sample, arrays in inputs.items():
        assert set(np.unique(arrays["attention_mask"])) <= {0, 1}, sample
        assert arrays["attention_mask"].any(axis=1).all()
        assert np.isfinite(outputs[sample]["logits"]).all(), sample
    manifest = Manifest.model_validate(outcome.full["facts"]["manifest"])
    assert manifest.precision == "FP16"
    assert {parity.name for parity in manifest.parity} == {"logits", "squares"}


def test_masks_with_other_names_are_drawn_again_with_all_integers(place: Workplace) -> None:
    model = parse_text(
        """(int64["batch", 6] valid, float["batch", 6] x) => (float["batch", 6] y)
        <float one = {1}> {
        mask = Cast <to = 1> (valid) padding = Sub(one, mask) hidden = Mul(padding, lowest)
        masked = Add(x, hidden) y = Softmax(masked) }""",
        initializer("lowest", np.finfo(np.float32).min),
    )
    place.complete(place.task(place.put("model.onnx", model)), "golden")
    outputs = golden(place, "outputs")
    assert outputs.keys() == CORNERS
    assert all(np.isfinite(arrays["y"]).all() for arrays in outputs.values())
    assert all(set(np.unique(item["valid"])) <= {0, 1} for item in golden(place, "inputs").values())


def test_declared_samples_are_the_only_ones(place: Workplace) -> None:
    samples: dict[str, Any] = {
        "own/input_ids": np.ones((1, LENGTH), np.int64),
        "own/attention_mask": np.ones((1, LENGTH), np.int64),
    }
    np.savez(place.root / "samples/golden.npz", **samples)
    stage, outcome = prepare(place, samples_uri="pvc://data/golden.npz")
    assert stage == "publish", outcome.message
    assert golden(place, "inputs").keys() == {"own"}


def test_calibration_data_come_before_our_pictures(place: Workplace) -> None:
    """They are of the requests, in the range that the model takes."""
    model = parse_text(
        """(float["batch", 3, 32, 32] x) => (float["batch", 4, 32, 32] y) {
        y = Conv <pads = [1, 1, 1, 1]> (x, w) }""",
        initializer("w", np.random.default_rng(0).normal(size=(4, 3, 3, 3))),
    )
    (place.root / "calibration").mkdir()
    rng = np.random.default_rng(1)
    data = rng.normal(-7, 0.1, (20, 3, 32, 32)).astype(np.float32)
    np.savez(place.root / "calibration/data.npz", x=data)
    how = Quantization(calibration=Calibration(uri="pvc://data/data.npz"))
    place.complete(
        place.task(place.put("model.onnx", model), precision="INT8", quantization=how), "golden"
    )
    inputs = golden(place, "inputs")
    assert inputs.keys() > CORNERS
    for name in inputs.keys() - CORNERS:
        assert name.startswith("calibration-")
        assert inputs[name]["x"].max() < -6
