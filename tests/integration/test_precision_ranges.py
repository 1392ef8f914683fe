"""Ranges learnt from data: by limits, percentile and entropy, with bounded memory."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from enginewright_contract.manifest import TensorSpec
from enginewright_runtime.core.failure import SessionError
from enginewright_runtime.prepare.quantize import calibration, observing, ranges, scales
from enginewright_runtime.prepare.quantize.calibration import CalibrationData
from enginewright_runtime.prepare.quantize.observing import ValueLimits

from tests.support.broken_models import parse_text
from tests.support.converting import run
from tests.support.quantizing import dense, random


def write_model(root: Path, model: onnx.ModelProto) -> Path:
    onnx.save_model(model, root / "model.onnx")
    return root / "model.onnx"


def data(root: Path, **arrays: np.ndarray) -> CalibrationData:
    (root / "calibration").mkdir()
    np.savez(root / "calibration/data.npz", **arrays)  # type: ignore[arg-type]  # numpy's stub
    inputs = [
        TensorSpec(name=name, dtype=str(array.dtype), shape=("n", *array.shape[1:]))
        for name, array in arrays.items()
    ]
    return calibration.read(root / "calibration", inputs)


def test_limits_cover_all_samples(tmp_path: Path) -> None:
    path = write_model(tmp_path, dense(2))
    samples = [{"x": random(3, 64, seed=seed)} for seed in range(4)]
    limits = observing.limits(path, ["x", "s0", "y"], samples)
    every = np.concatenate([sample["x"] for sample in samples])
    assert (limits["x"].low, limits["x"].high) == (every.min(), every.max())
    whole = np.concatenate([run(path, sample)[0] for sample in samples])
    assert limits["y"].high == pytest.approx(whole.max(), rel=1e-5)
    assert limits["y"].elements == 3 * 64
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_values_that_are_never_finite_have_no_range(tmp_path: Path) -> None:
    path = write_model(
        tmp_path, parse_text('(float["n", 4] x) => (float["n", 4] y) { [log] y = Log(x) }')
    )
    limits = observing.limits(path, ["x", "y"], [{"x": np.full((1, 4), -1, np.float32)}])
    assert limits["x"].seen
    assert not limits["y"].seen
    assert limits["y"].largest == 0


def test_a_sample_that_the_model_refuses_is_reported_and_nothing_is_left(tmp_path: Path) -> None:
    path = write_model(tmp_path, dense(1))
    with pytest.raises(SessionError, match="x"):
        observing.limits(path, ["y"], [{"x": random(1, 63)}])
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_only_single_values_of_the_main_graph_are_observed() -> None:
    model = parse_text(
        """(float[1] x, int64[1] i) => (double[1] d) {
        a = Cast <to = 1> (i) y = Add(a, x) d = Cast <to = 11> (y) }"""
    )
    assert observing.single_values(model) == ["x", "a", "y"]


def test_tensors_observed_at_once_are_bounded() -> None:
    million = 1 << 20
    groups = observing.groups(
        {"a": 40 * million, "b": 40 * million, "c": 10 * million, "d": 90 * million}
    )
    assert groups == [
        ["a"],
        ["b", "c"],
        ["d"],
    ]  # of 4 bytes each, 256 MiB at once; a large one alone


def test_histograms_count_every_value_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observing, "_RUN_BYTES", 64 * 4 * 4)  # two values a pass
    path = write_model(tmp_path, dense(2))
    samples = [{"x": random(2, 64, seed=seed)} for seed in range(3)]
    passes = []

    def again() -> Iterator[dict[str, np.ndarray]]:
        passes.append(1)
        yield from samples

    names = ["x", "s0", "r0", "y"]
    limits = observing.limits(path, names, samples)
    histograms = observing.histograms(path, limits, again)
    assert len(passes) == 2
    assert {
        name: histogram.counts.sum() for name, histogram in histograms.items()
    } == dict.fromkeys(names, 384)
    every = np.concatenate([sample["x"].ravel() for sample in samples])
    expected, _ = np.histogram(every, observing.BINS, (float(every.min()), float(every.max())))
    assert np.array_equal(histograms["x"].counts, expected)


def test_percentile_cuts_the_farthest_values_off() -> None:
    values = np.append(random(100_000), np.float32(1000))
    counts, edges = np.histogram(values, 2048)
    low, high = scales.percentile_limits(counts, edges[0], edges[-1], 0.9999)
    assert high < 10
    assert scales.percentile_limits(counts, edges[0], edges[-1], 1.0) == (edges[0], edges[-1])
    assert low <= values.min() + 1


def test_entropy_cuts_a_few_outliers_off_and_not_a_plain_distribution() -> None:
    plain, _ = np.histogram(np.abs(random(200_000)), 2048, (0, 4.5))
    assert scales.entropy_limit(plain, 4.5) > 2.5
    relu, _ = np.histogram(np.maximum(random(200_000), 0), 2048, (0, 4.5))
    assert scales.entropy_limit(relu, 4.5) > 2.5  # half of all values are 0
    outliers, _ = np.histogram(np.append(np.abs(random(200_000)), 45.0), 2048, (0, 45))
    assert 2 < scales.entropy_limit(outliers, 45.0) < 10
    assert scales.entropy_limit(np.zeros(2048, np.int64), 3.0) == 3.0


@pytest.mark.parametrize("method", ["MinMax", "Entropy", "Percentile"])
def test_methods_on_data_with_an_outlier(method: ranges.Method, tmp_path: Path) -> None:
    array = random(400, 64)
    array[7, 7] = 500
    path = write_model(tmp_path, dense(1))
    reported: list[float] = []
    calibrated = ranges.calibrate(
        path, ["x", "y"], data(tmp_path, x=array), method, reported.append
    )
    low, high = calibrated["x"]
    assert low == pytest.approx(array.min(), rel=0.5)
    if method == "MinMax":
        assert (low, high) == (array.min(), 500)
    else:
        assert 2 < high < 50
    assert reported == sorted(reported)
    assert 0.9 < reported[-1] < 1


def test_entropy_of_both_signs_is_of_absolute_values() -> None:
    histogram = observing.ValueHistogram(-1.0, 3.0, np.array([4, 0, 0, 2], np.int64))
    assert ranges.fold(histogram) == [4, 0, 0, 2]  # middles 0.5, 0.5, 1.5 and 2.5 of 3


def test_limits_of_nothing() -> None:
    assert not ValueLimits().seen
