"""Parts of outputs that a lower precision loses, or that the samples do not show: what the stages say."""

from pathlib import Path
from typing import Any

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
from onnx import ModelProto

from tests.support.broken_models import parse_text
from tests.support.converting import recipe, run
from tests.support.preparing import Workplace
from tests.support.quantizing import make_calibration, random, weight, work

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
