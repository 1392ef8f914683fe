"""Parts of outputs that a lower precision loses, or that the samples do not show: what the stages say."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from enginewright_contract.reasons import Reason
from enginewright_contract.task import OutputTolerance
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.handoff import GOLDEN_FOLDER
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.proof.golden_run import GoldenFiles, JudgedRun, run_judged
from enginewright_runtime.proof.parity.parts import PARTS, read_parts
from enginewright_runtime.store import open_store
from enginewright_serving.sidecar.samples import GoldenSamples
from numpy.typing import NDArray
from onnx import ModelProto

from tests.support.broken_models import parse_text
from tests.support.converting import recipe, run
from tests.support.preparing import Workplace
from tests.support.quantizing import make_calibration, random, weight, work

Array = NDArray[Any]
RTX = "tensorrt-rtx"
WIDTH = 32
SCORES = 4  # index of the first of two
DATA = {"x": random(64, 100, WIDTH, seed=7)}
SAMPLES = [{"x": random(1, 100, WIDTH, seed=seed)} for seed in range(3)]


def make_head(dead: int | None = None) -> ModelProto:
    """Return four columns of boxes in pixels and two of scores, a thousand times smaller, of x [n, 100, 32].

    The scores' weights lie in one tensor with those of the boxes, whose range they share. Column `dead`
    is constant.
    """
    columns = random(WIDTH, 6, seed=2)
    columns[:, :SCORES] *= 120
    columns[:, SCORES:] *= 0.03
    if dead is not None:
        columns[:, dead] = 0
    bias = np.array([320, 320, 200, 200, 0.5, 0.5], np.float32)
    nodes = """["fc"] h = MatMul(x, w) ["relu"] r = Relu(h) ["head"] m = MatMul(r, v) ["bias"] y = Add(m, b)"""
    return parse_text(
        f'(float["n", 100, {WIDTH}] x) => (float["n", 100, 6] y) {{ {nodes} }}',
        weight("w", random(WIDTH, WIDTH, seed=1, scale=0.3)),
        weight("v", columns),
        weight("b", bias),
    )


def test_int8_head_whose_scores_share_the_range_of_pixels_is_refused_by_their_columns(
    tmp_path: Path,
) -> None:
    # fault: one column of an output is lost by quantization, and the others are right
    quantization = make_calibration(0.0).model_copy(update={"per_channel": False})
    how = recipe(precision="INT8", quantization=quantization)
    with pytest.raises(StageFailure) as caught:
        work(tmp_path, make_head(), SAMPLES, how, DATA).run()
    assert caught.value.reason is Reason.QUANTIZATION_FAILED
    assert "of axis 2" in caught.value.cause
    assert "allowed: 50% by INT8" in caught.value.cause


class Lost(NamedTuple):
    """A model of which INT8 with one range per tensor loses a part, its golden samples and data, and what is said."""

    model: ModelProto
    samples: list[dict[str, Array]]
    data: dict[str, Array]
    said: str


def lose_offsets() -> Lost:
    """Return a head whose last columns are small offsets from a grid of anchors."""
    model = make_head()
    bias = next(tensor for tensor in model.graph.initializer if tensor.name == "b")
    grid = np.tile(onnx.numpy_helper.to_array(bias), (100, 1))
    grid[:, SCORES:] = np.linspace(0, 8, 100)[:, None]
    bias.CopyFrom(weight("b", grid))
    return Lost(model, SAMPLES, DATA, "of axis 2")


def lose_classes() -> Lost:
    """Return rows of a large number and a class: 0, or one of two neighbours, which a small number tells apart."""
    columns = random(WIDTH, 2, seed=2) * np.array([120, 0.03])
    numbers = {"none": 0, "c0": 0, "c1": 78, "c2": 79}
    model = parse_text(
        f"""(float["n", 100, {WIDTH}] x) => (float["n", 100, 2] y) {{
        ["fc"] h = MatMul(x, w) ["relu"] r = Relu(h) ["head"] m = MatMul(r, v) a, b = Split <axis = 2> (m)
        is_any = Greater(a, none) is_first = Greater(b, none)
        one = Where(is_first, c1, c2) class = Where(is_any, one, c0) y = Concat <axis = 2> (a, class) }}""",
        weight("w", random(WIDTH, WIDTH, seed=1, scale=0.3)),
        weight("v", columns),
        *(weight(name, np.array([number])) for name, number in numbers.items()),
    )
    return Lost(model, SAMPLES, DATA, "in index 1 of axis 2, over all samples")


def lose_object() -> Lost:
    """Return a mask of an object of 3% of the pixels, the score of which is small beside another class's."""

    def draw(seed: int) -> Array:
        image = np.random.default_rng(seed).random((1, 3, 64, 64), np.float32) * np.float32(0.2)
        top = 4 + 9 * (seed % 5)  # elsewhere in each sample: what never changes cannot be judged
        image[:, :, top : top + 10, 20:32] += np.float32(0.8)
        return image

    scores = np.zeros((3, 3, 1, 1))
    scores[1], scores[2] = 0.01, np.array([3, -3, 0]).reshape(3, 1, 1)
    model = parse_text(
        """(float["n", 3, 64, 64] x) => (int64["n", 1, 64, 64] y) {
        ["conv"] s = Conv(x, w, b) ["best"] y = ArgMax <axis = 1> (s) }""",
        weight("w", scores),
        weight("b", np.array([0.0, -0.015, -9.0])),
    )
    data = {"x": np.concatenate([draw(seed) for seed in range(10, 74)])}
    return Lost(model, [{"x": draw(seed)} for seed in range(3)], data, "values are others")


def lose_quiet_samples() -> Lost:
    """Return layers, and a sample that is 400 times as loud as the others."""
    loud = random(4, 16, seed=9) * np.float32(400)
    model = parse_text(
        """(float["n", 16] x) => (float["n", 1] y) {
        ["a"] h = MatMul(x, w) ["r"] i = Relu(h) ["b"] j = MatMul(i, v) ["s"] k = Relu(j) ["c"] y = MatMul(k, u) }""",
        weight("w", random(16, 32, seed=1, scale=0.3)),
        weight("v", random(32, 32, seed=2, scale=0.3)),
        weight("u", random(32, 1, seed=3, scale=0.3)),
    )
    samples = [{"x": random(4, 16, seed=seed)} for seed in range(7)]
    data = {"x": np.concatenate([random(63, 16, seed=20), loud[:1]])}
    return Lost(model, [*samples, {"x": loud}], data, "samples, each by its own scale")


@pytest.mark.parametrize("lose", [lose_offsets, lose_classes, lose_object, lose_quiet_samples])
def test_int8_that_loses_what_larger_values_hide_is_refused(
    lose: Callable[[], Lost], tmp_path: Path
) -> None:
    # fault: a part of an output is lost by quantization, and a grid, other classes, the background or a loud sample hides it
    lost = lose()
    quantization = make_calibration(0.0).model_copy(update={"per_channel": False})
    how = recipe(precision="INT8", quantization=quantization)
    with pytest.raises(StageFailure) as caught:
        work(tmp_path, lost.model, lost.samples, how, lost.data).run()
    assert caught.value.reason is Reason.QUANTIZATION_FAILED
    assert lost.said in caught.value.cause


def test_fp16_with_a_column_that_no_sample_moves_is_held_until_it_is_accepted_by_name(
    tmp_path: Path,
) -> None:
    # fault: a part of an output that no sample shows is taken for right
    how = recipe(RTX, precision="FP16")
    with pytest.raises(StageFailure) as caught:
        work(tmp_path, make_head(dead=5), SAMPLES, how).run()
    assert caught.value.reason is Reason.PARITY_UNKNOWN
    assert "1 of 6 indices of axis 2 (5) of output 'y'" in caught.value.cause
    assert "acceptUnjudged" in str(Reason.PARITY_UNKNOWN.remedy)
    accepted = how.model_copy(
        update={"outputs": (OutputTolerance(name="y", accept_unjudged=True),)}
    )
    (tmp_path / "accepted").mkdir()
    about = work(tmp_path / "accepted", make_head(dead=5), SAMPLES, accepted)
    assert about.run().ok
    (parity,) = about.quantized.parity
    assert [(part.axis, part.indices) for part in parity.unjudged] == [(2, (5,))]


def test_fp16_head_is_right_in_every_column_and_later_proofs_know_what_rounding_costs(
    tmp_path: Path,
) -> None:
    about = work(tmp_path, make_head(), SAMPLES, recipe(RTX, precision="FP16"))
    assert about.run().ok
    (parity,) = about.quantized.parity
    assert parity.unjudged == ()
    parts = read_parts(about.folder / GOLDEN_FOLDER / PARTS)
    (columns,) = (part for part in parts["y"] if part.axis == 2)
    assert np.all(columns.error > 0)
    assert np.all(columns.error < 0.01 * columns.spread)


def test_engine_with_reversed_scores_is_refused_on_its_backend(place: Workplace) -> None:
    # fault: a backend's scores are those of other classes, and its boxes are right
    task = place.task(place.put("model.onnx", make_head()))
    place.complete(task)
    folder = place.root / "work" / GOLDEN_FOLDER
    assert judge(folder, make_head(), place).failed is None
    model = make_head()
    weights = next(tensor for tensor in model.graph.initializer if tensor.name == "v")
    values = onnx.numpy_helper.to_array(weights).copy()
    values[:, SCORES:] = values[:, :3:-1]
    weights.CopyFrom(onnx.numpy_helper.from_array(values, "v"))
    failed = judge(folder, model, place).failed
    assert failed is not None
    assert "of axis 2 and 1 more" in failed.description


def judge(folder: Path, model: ModelProto, place: Workplace) -> Any:
    path = place.root / "judged.onnx"
    onnx.save(model, path)
    run = JudgedRun(path, "cpu", GoldenFiles.of(folder), recipe(), "prepared", None)
    return run_judged(run)


def make_span(scores: Array) -> ModelProto:
    """Return the score of each position of x [n, s, 32], and the least number where `mask` is false."""
    return parse_text(
        f"""(float["n", "s", {WIDTH}] x, bool["n", "s"] mask) => (float["n", "s"] y) {{
        ["fc"] h = MatMul(x, w) ["relu"] r = Relu(h) ["head"] m = MatMul(r, v)
        q = Squeeze(m, last) y = Where(mask, q, least) }}""",
        weight("w", random(WIDTH, WIDTH, seed=1, scale=0.3)),
        weight("v", scores),
        weight("least", np.array(np.finfo(np.float32).min)),
        onnx.numpy_helper.from_array(np.array([-1]), "last"),
    )


def test_engine_with_other_scores_beside_a_mask_is_refused(place: Workplace) -> None:
    # fault: a masked output has another model's values where no mask covers them
    arrays: dict[str, Any] = {}
    for index, size in enumerate((20, 30, 40)):
        arrays[f"s{index}/x"] = random(2, size, WIDTH, seed=index)
        arrays[f"s{index}/mask"] = np.tile(np.arange(size) < size // 2, (2, 1))
    np.savez(place.root / "samples/golden.npz", **arrays)
    model = make_span(random(WIDTH, 1, seed=2))
    task = place.task(place.put("model.onnx", model), samples_uri="pvc://data/golden.npz")
    place.complete(task)
    folder = place.root / "work" / GOLDEN_FOLDER
    assert judge(folder, model, place).failed is None
    failed = judge(folder, make_span(random(WIDTH, 1, seed=3)), place).failed
    assert failed is not None
    assert "of its elements" in failed.description


def test_what_a_canary_reads_of_the_stable_artefact_has_the_parts(
    place: Workplace, tmp_path: Path
) -> None:
    # fault: a canary compares with no stable artefact, since a file of its golden samples is not copied
    key = place.complete(place.task(place.put("model.onnx", make_head()))).published.key
    folder = tmp_path / "stable"
    manifest = open_store(Paths.under(place.root)).read_golden(key, folder)
    samples = GoldenSamples(folder, manifest)
    assert samples.parts["y"]
    assert samples.read(samples.names[0]).expected


def test_source_with_a_column_that_the_expected_outputs_move_is_refused(place: Workplace) -> None:
    # fault: the export has lost a part of an output, and the framework's outputs show it
    wrong = make_head()
    x = SAMPLES[0]["x"] * np.float32(0.2)
    right = run(wrong, {"x": x})[0]
    weights = next(tensor for tensor in wrong.graph.initializer if tensor.name == "v")
    values = onnx.numpy_helper.to_array(weights).copy()
    values[:, 5] = 0
    weights.CopyFrom(onnx.numpy_helper.from_array(values, "v"))
    arrays: dict[str, Any] = {"a/x": x, "a/y": right}
    np.savez(place.root / "samples/golden.npz", **arrays)
    task = place.task(place.put("model.onnx", wrong), samples_uri="pvc://data/golden.npz")
    stage, outcome = place.prepare(task)
    assert (stage, outcome.report.reason) == ("golden", Reason.PARITY_FAILED)
    assert "differs in index 5 of axis 2" in outcome.message
    assert "against the expected outputs in spec.parity.samples" in outcome.message
