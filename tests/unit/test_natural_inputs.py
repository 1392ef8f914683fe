"""What looks like a picture, speech or a text, what is drawn for it, and the range in which a model takes it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from enginewright_contract.manifest import TensorSpec
from enginewright_contract.task import ShapeProfile
from enginewright_runtime.prepare.golden.blank import Blank, count_blank, find_blank
from enginewright_runtime.proof.golden_inputs import IntegerRange, Sample, draw
from enginewright_runtime.proof.natural.choosing import run_natural
from enginewright_runtime.proof.natural.drawing import (
    NO_SAMPLES,
    NaturalSamples,
    add_noise,
    draw_natural,
    fill_naturally,
    set_masks,
)
from enginewright_runtime.proof.natural.images import PICTURES
from enginewright_runtime.proof.natural.kinds import find_kinds
from enginewright_runtime.proof.natural.scaling import ColorRange, scale
from enginewright_runtime.proof.natural.sound import RATE, draw_sound
from enginewright_runtime.proof.natural.vocabulary import find_vocabularies

from tests.support.broken_models import initializer, parse_text

Arrays = dict[str, Any]
VOCABULARY = 30522


def spec(name: str, dtype: str, *shape: int | str | None) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape)


def make_profiles(*inputs: TensorSpec) -> list[ShapeProfile]:
    """Return profiles of one size, 2 for each dimension that is not fixed."""
    shapes = {
        item.name: tuple(size if isinstance(size, int) else 2 for size in item.shape)
        for item in inputs
    }
    return [
        ShapeProfile(input=name, min=shape, opt=shape, max=shape) for name, shape in shapes.items()
    ]


@pytest.mark.parametrize(
    ("inputs", "kinds"),
    [
        ([("images", "float32", 1, 3, 640, 640)], "image"),
        ([("x", "float16", 1, 224, 224, 3)], "image"),
        ([("x", "uint8", 1, 48, 320, 3)], "image"),
        ([("x", "float32", 1, 1, 28, 28)], "image"),
        ([("x", "float32", 3, 64, 64)], "image"),
        ([("x", "float32", 1, 4, 64, 64)], ""),
        ([("x", "float32", 1, 3, 8, 8)], ""),
        ([("past_key", "float32", 1, 3, 64, 64)], ""),
        ([("x", "int64", 1, 3, 64, 64)], ""),
        ([("audio", "float32", 1, 4096)], "sound"),
        ([("x", "float32", 1, 16000)], "sound"),
        ([("x", "float32", 1, 1000)], ""),
        ([("input", "float32", 1, 512), ("state", "float32", 2, 1, 128), ("sr", "int64")], "sound rate"),
        ([("input", "float32", 1, 512)], ""),
        ([("audio_features", "float32", 1, 80, 3000)], ""),
        ([("input_ids", "int64", 1, 16), ("attention_mask", "int64", 1, 16), ("token_type_ids", "int64", 1, 16)], "text mask segments"),
        ([("tokens", "int32", 1, 16), ("mask", "float32", 1, 16)], "text mask"),
        ([("other", "int64", 1, 16)], ""),
        ([("attention_mask", "int64", 1, 16)], ""),
        ([("pixels", "float32", 1, 3, 64, 64), ("input_ids", "int64", 1, 16)], "image text"),
        ([("x", "float32", 0, 3, 64, 64)], ""),
    ],
)  # fmt: skip
def test_inputs_are_recognized_by_name_type_and_sizes(
    inputs: Sequence[tuple[Any, ...]], kinds: str
) -> None:
    specs = [spec(*item) for item in inputs]
    shapes = {item[0]: tuple(item[2:]) for item in inputs}
    vocabularies = {item[0]: VOCABULARY for item in inputs if item[0] in {"input_ids", "tokens"}}
    assert " ".join(find_kinds(specs, shapes, vocabularies).values()) == kinds


def test_the_tables_that_inputs_index_bound_their_values() -> None:
    model = parse_text(
        """(int64["b", 8] ids, int32["b", 8] kinds, int64["b", 8] other) => (float["b", 8, 2] y) {
        flat = Reshape(ids, all) words = Gather(table, flat)
        wide = Cast <to = 7> (kinds) numbers = DequantizeLinear(small, scale)
        types = Gather(numbers, wide) column = Gather <axis = 1> (table, other) y = Identity(types) }""",
        initializer("table", np.zeros((50, 2))),
        initializer("small", np.zeros((3, 2)), np.int8),
        initializer("scale", 1.0),
        initializer("all", [-1], np.int64),
    )
    assert find_vocabularies(model) == {"ids": 50, "kinds": 3}


IMAGE = spec("x", "float32", "batch", 3, "h", "w")


def image_profile(batch: tuple[int, int, int], **span: float) -> ShapeProfile:
    low, usual, most = batch
    return ShapeProfile(
        input="x", min=(low, 3, 32, 32), opt=(usual, 3, 64, 96), max=(most, 3, 128, 128), **span
    )


@pytest.mark.parametrize(
    ("batch", "samples", "rows"), [((1, 8, 32), 5, 1), ((4, 8, 32), 2, 4), ((8, 8, 8), 1, 8)]
)
def test_all_pictures_are_in_few_samples_of_the_least_batch(
    batch: tuple[int, int, int], samples: int, rows: int
) -> None:
    drawn = draw_natural([IMAGE], [image_profile(batch)], {}, IntegerRange.DIGITS)
    assert [sample.name for sample in drawn.samples] == [
        f"image-{number}" for number in range(1, samples + 1)
    ]
    arrays = [sample.inputs["x"] for sample in drawn.samples]
    assert {array.shape for array in arrays} == {(rows, 3, 64, 96)}
    assert drawn.images == {"x": 1}
    pictures = np.concatenate(arrays)
    assert pictures.dtype == np.float32
    assert (pictures.min(), pictures.max()) == (
        pytest.approx(0, abs=0.05),
        pytest.approx(1, abs=0.05),
    )
    different = {picture.tobytes() for picture in pictures}
    assert len(different) == len(pictures) >= len(PICTURES)
    assert all(picture.std() > 0.1 for picture in pictures), "a picture has contrast"


def test_pictures_are_in_the_range_that_is_declared() -> None:
    profile = image_profile((1, 1, 1), low=-2, high=6)
    drawn = draw_natural([IMAGE], [profile], {}, IntegerRange.DIGITS)
    values = np.stack([sample.inputs["x"] for sample in drawn.samples])
    assert values.min() < -1.5
    assert values.max() > 5.5
    assert (values.min() >= -2, values.max() <= 6) == (True, True)
    assert drawn.images == {}, "no other range is tried"


def test_bytes_and_channels_at_the_end() -> None:
    inputs = spec("x", "uint8", 1, 64, 64, 3)
    drawn = draw_natural([inputs], make_profiles(inputs), {}, IntegerRange.DIGITS)
    array = drawn.samples[0].inputs["x"]
    assert (array.dtype.name, array.shape, dict(drawn.images)) == ("uint8", (1, 64, 64, 3), {})
    assert array.max() > 200


def test_wide_images_are_lines_of_text() -> None:
    inputs = spec("x", "float32", 1, 1, 48, 320)
    drawn = draw_natural([inputs], make_profiles(inputs), {}, IntegerRange.DIGITS)
    for sample in drawn.samples:
        line = sample.inputs["x"][0, 0]
        assert np.median(line) > 0.9, "the paper is light"
        assert line.min() < 0.3, "and the letters are dark"
        assert line[:4].min() > 0.5, "above the letters is a margin"


def test_large_images_are_few() -> None:
    inputs = spec("x", "float32", 1, 3, 2048, 1024)
    drawn = draw_natural([inputs], make_profiles(inputs), {}, IntegerRange.DIGITS)
    assert len(drawn.samples) == 2
    inputs = spec("x", "float32", 1, 3, 4096, 2048)
    assert draw_natural([inputs], make_profiles(inputs), {}, IntegerRange.DIGITS).samples == ()


def test_speech_has_a_voice_and_pauses() -> None:
    sound = draw_sound(2 * RATE, 0)
    assert sound.dtype == np.float32
    assert 0.1 < np.abs(sound).max() <= 1
    frames = sound.reshape(-1, 400)
    loudness = np.sqrt((frames**2).mean(axis=1))
    assert loudness.max() > 20 * loudness.min()
    spectrum = np.abs(np.fft.rfft(sound))
    frequencies = np.fft.rfftfreq(sound.size, 1 / RATE)
    low, high = spectrum[frequencies < 1000], spectrum[frequencies > 4000]
    assert (low**2).sum() > 20 * (high**2).sum()


def test_a_sound_goes_with_its_rate_and_state() -> None:
    inputs = (
        spec("input", "float32", None, 512), spec("state", "float32", 2, None, 128), spec("sr", "int64"),
        spec("fmin", "float32"), spec("fmax", "float32"),
    )  # fmt: skip
    drawn = draw_natural(inputs, make_profiles(*inputs), {}, IntegerRange.DIGITS)
    for sample in drawn.samples:
        assert sample.name.startswith("sound-")
        assert sample.inputs["sr"] == RATE
        assert 20 < sample.inputs["fmin"] < 100
        assert sample.inputs["fmax"] > 1000
        assert (sample.inputs["input"].shape, sample.inputs["state"].shape) == (
            (2, 512),
            (2, 2, 128),
        )
        assert sample.inputs["input"].min() < 0


TEXT = (
    spec("input_ids", "int64", "batch", "length"),
    spec("attention_mask", "int32", "batch", "length"),
    spec("token_type_ids", "int64", "batch", "length"),
)
TEXT_PROFILES = [
    ShapeProfile(input=item.name, min=(1, 4), opt=(8, 64), max=(32, 128)) for item in TEXT
]


@pytest.mark.parametrize("rows", [VOCABULARY, 50265, 120, 8])
def test_texts_have_tokens_of_the_vocabulary_and_masks_of_their_lengths(rows: int) -> None:
    tables = {"input_ids": rows, "token_type_ids": 2}
    drawn = draw_natural(TEXT, TEXT_PROFILES, tables, IntegerRange.DIGITS)
    lengths = set()
    for sample in drawn.samples:
        ids, mask, segments = (sample.inputs[item.name] for item in TEXT)
        assert (ids.shape, ids.dtype.name, mask.dtype.name) == ((1, 64), "int64", "int32")
        (length,) = mask.sum(axis=1)
        lengths.add(int(length))
        assert np.array_equal(mask[0], np.arange(64) < length)
        assert (ids[mask == 0] == 0).all()
        assert 0 <= ids.min() <= ids.max() < rows
        assert set(segments.ravel()) <= {0, 1}
        if rows == VOCABULARY:
            assert (ids[0, 0], ids[0, length - 1]) == (101, 102)
            assert ids[0, 1 : length - 1].min() >= 1000
    assert max(lengths) == 64
    assert len(lengths) > 2
    if rows == VOCABULARY:
        assert len(np.unique([sample.inputs["input_ids"] for sample in drawn.samples])) > 100
    assert any(sample.inputs["token_type_ids"].any() for sample in drawn.samples)


def test_masks_are_zeros_and_ones_behind_a_one() -> None:
    inputs = (
        spec("ids", "int64", 4, 9), spec("attention_mask", "float32", 4, 9), spec("valid", "bool", 4, 9),
        spec("x", "float32", 4, 9),
    )  # fmt: skip
    drawn = draw(inputs, {item.name: (4, 9) for item in inputs}, {}, IntegerRange.DIGITS, "min")
    for every in (False, True):
        masked = set_masks(drawn, inputs, {}, 0, every=every)
        changed = {
            name
            for name in drawn.inputs
            if not np.array_equal(masked.inputs[name], drawn.inputs[name])
        }
        assert changed == ({"ids", "attention_mask", "valid"} if every else {"attention_mask"})
        for name in changed:
            mask = masked.inputs[name]
            assert mask.dtype == drawn.inputs[name].dtype
            assert mask[:, 0].all()
            assert not mask[:, -1].all()
            assert set(np.unique(mask)) == {0, 1}
    ranged = set_masks(drawn, inputs, {"attention_mask": (0.0, None)}, 0)
    assert np.array_equal(ranged.inputs["attention_mask"], drawn.inputs["attention_mask"])


def test_a_corner_is_filled_at_its_own_shape() -> None:
    plain = draw([IMAGE], {"x": (2, 3, 32, 40)}, {}, IntegerRange.DIGITS, "min")
    filled = fill_naturally(plain, [IMAGE], {}, {}, 0)
    assert (filled.name, filled.inputs["x"].shape) == ("min", (2, 3, 32, 40))
    assert not np.array_equal(filled.inputs["x"], plain.inputs["x"])


def test_the_ranges_of_colours() -> None:
    image = np.array([0.0, 0.5, 1.0], np.float16).reshape(1, 1, 3, 1)
    assert scale(image, ColorRange.UNIT, 1) is image
    assert scale(image, ColorRange.SIGNED, 1).ravel().tolist() == [-1, 0, 1]
    assert scale(image, ColorRange.BYTES, 1).ravel().tolist() == [0, 128, 255]
    colored = np.full((1, 2, 2, 3), 0.5, np.float32)
    scaled = scale(colored, ColorRange.IMAGENET, 3)
    assert scaled[0, 0, 0].tolist() == pytest.approx([0.0655, 0.1964, 0.4178], abs=1e-3)
    assert {item.dtype for item in (scale(image, item, 1) for item in ColorRange)} == {image.dtype}


def pictures() -> Arrays:
    drawn = draw_natural([IMAGE], [image_profile((1, 1, 1))], {}, IntegerRange.DIGITS)
    return {sample.name: dict(sample.inputs) for sample in drawn.samples}


def features(pixels: Any) -> Any:
    """Return 16 numbers that differ from picture to picture, of pixels from 0 to 1: means of tiles."""
    return pixels.reshape(1, 3, 4, 16, 4, 24).mean(axis=(1, 3, 5)).reshape(1, 16)


def softmax(logits: Any) -> Any:
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


@pytest.mark.parametrize(
    ("model", "colors"),
    [
        (lambda x: softmax(40 * features(x)), ColorRange.UNIT),
        (lambda x: softmax(40 * features(x / 255)), ColorRange.BYTES),
        (lambda x: 1 / (1 + np.exp(9 - 12 * features(x / 255))), ColorRange.BYTES),
        (lambda x: 1 / (1 + np.exp(9 - 12 * features(x))), ColorRange.UNIT),
        (lambda x: 3 * features(x), ColorRange.UNIT),
        (lambda x: 3 * features(x) + 1, ColorRange.UNIT),
        (lambda x: 100 + features(x / 255), ColorRange.BYTES),
    ],
    ids=["classes of 0 to 1", "classes of bytes", "detector of bytes", "detector of 0 to 1", "linear", "affine", "offset"],
)  # fmt: skip
def test_pictures_get_the_range_in_which_outputs_move(model: Any, colors: ColorRange) -> None:
    samples = pictures()
    done = run_natural(lambda feeds: {"y": model(feeds["x"])}, samples, {"x": 1})
    assert list(done.inputs) == list(samples)
    for name, feeds in done.inputs.items():
        limits = {
            item: scale(samples[name]["x"], item, 1) for item in (ColorRange.UNIT, ColorRange.BYTES)
        }
        is_bytes = np.array_equal(feeds["x"], limits[ColorRange.BYTES])
        assert is_bytes is (colors is ColorRange.BYTES)
        assert np.array_equal(done.outputs[name]["y"], model(feeds["x"]))


@pytest.mark.parametrize("colors", [ColorRange.UNIT, ColorRange.BYTES])
def test_rows_of_one_sample_count_as_samples_and_places_do_not(colors: ColorRange) -> None:
    """A detector's boxes differ from place to place in any picture, and so in the dark."""
    drawn = draw_natural([IMAGE], [image_profile((8, 8, 8))], {}, IntegerRange.DIGITS)
    places = np.arange(16.0).reshape(1, 1, 16)

    def detect(feeds: Mapping[str, Any]) -> Arrays:
        pixels = feeds["x"] / (255 if colors is ColorRange.BYTES else 1)
        shown = np.stack([features(row[np.newaxis]) for row in pixels])
        score = 1 / (1 + np.exp(9 - 12 * shown))
        return {"y": np.concatenate([shown + places, 16 - places + shown, score], axis=1)}

    (sample,) = drawn.samples
    done = run_natural(detect, {sample.name: dict(sample.inputs)}, drawn.images)
    (feeds,) = done.inputs.values()
    assert bool(feeds["x"].max() > 200) is (colors is ColorRange.BYTES)


def test_what_the_model_refuses_and_what_shows_no_number_is_left_out() -> None:
    samples = {
        name: {"x": np.full((1, 4), value)} for name, value in zip("abcd", range(4), strict=True)
    }

    def run(feeds: Mapping[str, Any]) -> Arrays:
        value = feeds["x"][0, 0]
        if value == 0:
            raise RuntimeError("out of bounds")
        shown = np.full(3, np.nan) if value == 2 else feeds["x"]
        return {"y": shown, "none": np.zeros((0, 4))}

    done = run_natural(run, samples, {})
    assert list(done.outputs) == list(done.inputs) == ["b", "d"]
    assert run_natural(run, {"a": samples["a"]}, {}).outputs == {}
    assert run_natural(run, {}, {"x": 1}).inputs == {}


def test_outputs_that_show_no_number_are_counted() -> None:
    nan, empty, full = (
        np.full(2, np.nan, np.float32),
        np.zeros((0, 4), np.float32),
        np.ones(2, np.float32),
    )
    outputs = {
        "min/a": nan, "min/b": full, "min/c": empty, "min/d": nan,
        "opt/a": nan, "opt/b": empty, "opt/c": empty, "opt/d": np.array([np.inf, 1], np.float32),
        "image-1/d": nan,
    }  # fmt: skip
    assert find_blank(outputs, {}) == ["a", "c"]
    assert count_blank(outputs, {}, {"min", "opt"}) == Blank(outputs=2, of_samples=3)
    assert Blank(0, 9) < Blank(1, 0)
    bits = {"min/a": np.full(2, 0x7FC0, np.uint16)}  # NaN of BF16
    assert find_blank(bits, {"a": "bfloat16"}) == ["a"]
    assert find_blank(bits, {"a": "uint16"}) == []


def name_noise(
    inputs: TensorSpec, profile: ShapeProfile, natural: NaturalSamples = NO_SAMPLES
) -> list[str]:
    drawn = add_noise(natural, [inputs], [profile], IntegerRange.DIGITS)
    noise = drawn.samples[len(natural.samples) :]
    assert {sample.inputs["x"].shape for sample in noise} <= {profile.opt}
    return [sample.name for sample in noise]


NOISE = ["noise-1", "noise-2", "noise-3"]


def test_a_model_of_one_shape_without_such_inputs_has_more_noise_of_several_strengths() -> None:
    inputs = spec("x", "float32", 1, 4)
    profiles = make_profiles(inputs)
    assert draw_natural([inputs], profiles, {}, IntegerRange.DIGITS) == NO_SAMPLES
    samples = add_noise(NO_SAMPLES, [inputs], profiles, IntegerRange.DIGITS).samples
    assert [sample.name for sample in samples] == NOISE
    largest = [float(sample.inputs["x"].max()) for sample in samples]
    assert largest[0] < 0.3 < largest[1] < 1 < largest[2] < 3
    assert [float(sample.inputs["x"].min()) < 0 for sample in samples] == [False, True, True]
    limited = [profile.model_copy(update={"low": 2.0, "high": 3.0}) for profile in profiles]
    samples = add_noise(NO_SAMPLES, [inputs], limited, IntegerRange.DIGITS).samples
    assert all(2 <= value <= 3 for sample in samples for value in sample.inputs["x"].flat)


def test_batches_that_move_the_outputs_have_no_noise_beside_them() -> None:
    inputs = spec("x", "float32", "n", 4)
    assert name_noise(inputs, ShapeProfile(input="x", min=(1, 4), opt=(2, 4), max=(3, 4))) == []
    assert find_vocabularies(onnx.ModelProto()) == {}


def test_one_of_two_samples_of_one_size_is_noise_where_all_others_differ_in_size() -> None:
    # fault: golden samples all differ in size, and nothing tells what moves from what lies elsewhere
    inputs = spec("x", "float32", 1, "s")
    profile = ShapeProfile(input="x", min=(1, 4), opt=(1, 6), max=(1, 9))
    assert name_noise(inputs, profile) == NOISE

    def give(*sizes: int) -> NaturalSamples:
        return NaturalSamples(
            tuple(Sample(f"s{size}", {"x": np.zeros((1, size), np.float32)}, {}) for size in sizes)
        )

    assert name_noise(inputs, profile, give(5, 7)) == NOISE
    assert name_noise(inputs, profile, give(5, 6)) == []


def test_inputs_too_large_for_several_samples_of_noise_have_one() -> None:
    inputs = spec("x", "float32", 1, 5 << 22)
    (profile,) = make_profiles(inputs)
    assert name_noise(inputs, profile) == ["noise-1"]
