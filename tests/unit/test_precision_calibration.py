"""Calibration data of every form is read in pieces, and what does not fit is refused by name."""

import pickle
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from enginewright_contract.manifest import TensorSpec
from enginewright_contract.reasons import Reason
from enginewright_contract.task import Preprocessing
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.prepare.quantize import calibration
from enginewright_runtime.prepare.quantize.calibration import CalibrationData
from PIL import Image
from typing_extensions import override

from tests.support.quantizing import random


def spec(name: str = "x", *shape: int | str | None, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape)


X = spec("x", "n", 3)


def npz(root: Path, **arrays: Any) -> Path:
    np.savez(root / "data.npz", **arrays)
    return root


def npy(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)


def all_of(data: CalibrationData) -> list[dict[str, np.ndarray]]:
    once, again = list(data), list(data)
    assert len(once) == len(again) == data.samples
    for first, second in zip(once, again, strict=True):
        assert all(np.array_equal(first[name], second[name]) for name in first)
    return once


def refuse(root: Path, inputs: Sequence[TensorSpec], **more: Any) -> str:
    with pytest.raises(StageFailure) as caught:
        list(calibration.read(root, inputs, **more))
    assert caught.value.reason is Reason.CALIBRATION_INVALID
    return caught.value.message


@pytest.mark.parametrize("order", ["C", "F"])
def test_samples_lie_along_the_first_axis(order: Any, tmp_path: Path) -> None:
    array = np.asarray(random(5, 3), order=order)
    data = calibration.read(npz(tmp_path, x=array), [X])
    samples = all_of(data)
    assert [sample["x"].shape for sample in samples] == [(1, 3)] * 5
    assert np.array_equal(np.concatenate([sample["x"] for sample in samples]), array)


@pytest.mark.parametrize(
    ("shape", "array", "samples", "item"),
    [
        ((2, 3), (6, 3), 3, (2, 3)),  # a fixed batch takes several rows
        ((2, 3), (7, 3), 3, (2, 3)),  # the rest is too few
        ((2, 1, 3), (5, 2, 1, 3), 5, (2, 1, 3)),  # samples of the input's whole shape, as a state
        (("n", 3), (5, 4, 3), 5, (4, 3)),  # likewise, batches of 4
        ((), (4,), 4, ()),  # a number a sample
        ((None, None), (4, 9), 4, (1, 9)),
    ],
)
def test_samples(
    shape: tuple[int | str | None, ...],
    array: tuple[int, ...],
    samples: int,
    item: tuple[int, ...],
    tmp_path: Path,
) -> None:
    data = calibration.read(npz(tmp_path, x=random(*array)), [spec("x", *shape)])
    assert [sample["x"].shape for sample in all_of(data)] == [item] * samples


def test_inputs_go_together(tmp_path: Path) -> None:
    ids, mask = np.arange(12).reshape(4, 3), np.arange(4)
    inputs = [spec("ids", "n", 3, dtype="int64"), spec("length", "n", dtype="int64")]
    samples = all_of(calibration.read(npz(tmp_path, length=mask, ids=ids), inputs))
    assert samples[2]["ids"].tolist() == [[6, 7, 8]]
    assert samples[2]["length"].tolist() == [2]


def test_fewer_samples_are_taken_evenly(tmp_path: Path) -> None:
    """Data is often sorted by class."""
    array = np.repeat(np.arange(10, dtype=np.float32)[:, None], 3, axis=1)
    data = calibration.read(npz(tmp_path, x=array), [X], limit=5)
    assert [float(sample["x"][0, 0]) for sample in all_of(data)] == [0, 2, 4, 6, 8]
    assert (data.samples, data.given) == (5, 10)
    assert calibration.read(tmp_path, [X], limit=50).samples == 10


def test_pieces_are_read_and_not_the_whole(tmp_path: Path) -> None:
    """A file of 64 MiB, of which one sample at a time is in memory."""
    npz(tmp_path, x=np.zeros((64, 1 << 18), np.float32))
    data = calibration.read(tmp_path, [spec("x", "n", 1 << 18)])
    tracemalloc.start()
    assert sum(1 for _ in data) == 64
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20


@pytest.mark.parametrize(
    ("arrays", "wording"),
    [
        (
            {"x": random(4, 3).astype(np.float64)},
            "array 'x' has type float64, the model takes float32",
        ),
        (
            {"x": random(4, 5)},
            "array 'x' has shape [4, 5]; the model takes [n, 3], so it must be [samples, 3]",
        ),
        ({"x": random(4)}, "array 'x' has shape [4]"),
        ({"x": random(0, 3)}, "array 'x' has 0 rows"),
        ({"y": random(4, 3)}, "array 'y' matches no input; the model has x"),
        ({}, "there is no array for input 'x'"),
        ({"x": np.full((4, 3), np.nan, np.float32)}, "array 'x', sample 0 has values that are NaN"),
        ({"x": np.full((4, 3), np.inf, np.float32)}, "NaN or infinite"),
        ({"x": np.array([{}, {}], object)}, "holds Python objects"),
    ],
)
def test_misfit_is_refused_by_name(
    arrays: dict[str, np.ndarray], wording: str, tmp_path: Path
) -> None:
    assert wording in refuse(npz(tmp_path, **arrays), [X])


def test_arrays_of_different_lengths_are_refused(tmp_path: Path) -> None:
    npz(tmp_path, a=random(4, 3), b=random(5, 3))
    reported = refuse(tmp_path, [spec("a", "n", 3), spec("b", "n", 3)])
    assert "different numbers of samples: a 4, b 5" in reported


def test_nothing_pickled_is_ever_read(tmp_path: Path) -> None:
    class Trap:
        @override
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "executed",))

    folder = tmp_path / "data"
    folder.mkdir()
    np.save(folder / "trap.npy", np.array([Trap()], object), allow_pickle=True)
    assert "holds Python objects" in refuse(folder, [X])
    (folder / "trap.npy").write_bytes(pickle.dumps(Trap()))
    assert "trap.npy is not an .npy file" in refuse(folder, [X])
    assert not (tmp_path / "executed").exists()


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    npz(tmp_path, x=random(100, 3))
    content = (tmp_path / "data.npz").read_bytes()
    (tmp_path / "data.npz").write_bytes(content[:300])
    assert "data.npz is not an .npz file" in refuse(tmp_path, [X])


def test_npy_files_of_the_only_input(tmp_path: Path) -> None:
    for index in range(3):
        npy(tmp_path / f"{index}.npy", np.full((1, 3), index, np.float32))
    npy(tmp_path / "more/3.npy", np.full(3, 3, np.float32))  # without the batch
    samples = all_of(calibration.read(tmp_path, [X]))
    assert [sample["x"].tolist() for sample in samples] == [[[index] * 3] for index in range(4)]
    npy(tmp_path / "0.npy", np.zeros((1, 4), np.float32))
    assert "0.npy, for input 'x', has shape [1, 4], the model takes [n, 3]" in refuse(tmp_path, [X])


def test_npy_files_of_several_inputs_lie_in_folders(tmp_path: Path) -> None:
    inputs = [spec("a", "n", 3), spec("b", "n", 2)]
    npy(tmp_path / "a/1.npy", random(1, 3))
    assert "no .npy files for input 'b'" in refuse(tmp_path, inputs)
    npy(tmp_path / "b/1.npy", random(1, 2))
    npy(tmp_path / "b/2.npy", random(1, 2))
    assert "different numbers of .npy files: a 1, b 2" in refuse(tmp_path, inputs)
    npy(tmp_path / "a/2.npy", random(1, 3))
    assert len(all_of(calibration.read(tmp_path, inputs))) == 2


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    assert "it has no files" in refuse(tmp_path, [X])
    (tmp_path / "data.csv").write_text("1,2")
    assert "it has .csv, and must be one .npz file" in refuse(tmp_path, [X])


IMAGE = spec("images", "n", 3, 4, 6)
AS_IMAGE = Preprocessing(width=6, height=4)


def test_images_must_fit_the_input(tmp_path: Path) -> None:
    (tmp_path / "cat.jpg").touch()
    assert "add spec.quantization.calibration.preprocessing" in refuse(tmp_path, [IMAGE])
    reported = refuse(tmp_path, [IMAGE], preprocessing=Preprocessing(width=4, height=6))
    assert (
        "turns an image into float32 [1, 3, 6, 4], but input 'images' takes float32 [n, 3, 4, 6]"
        in reported
    )
    reported = refuse(
        tmp_path, [IMAGE], preprocessing=Preprocessing(width=6, height=4, mean=(1, 2))
    )
    assert "mean has 2 numbers, and RGB images have 3 channels" in reported
    assert "images are data for one input" in refuse(tmp_path, [IMAGE, X], preprocessing=AS_IMAGE)


def test_images_are_scaled_and_normalized(tmp_path: Path) -> None:
    pixels = np.zeros((8, 12, 3), np.uint8)
    pixels[...] = (255, 51, 0)
    Image.fromarray(pixels).save(tmp_path / "red.png")
    Image.fromarray(pixels).convert("L").save(tmp_path / "gray.jpg")
    how = Preprocessing(width=6, height=4, mean=(0.5, 0.2, 0), std=(0.5,))
    samples = all_of(calibration.read(tmp_path, [IMAGE], preprocessing=how))
    assert [sample["images"].shape for sample in samples] == [(1, 3, 4, 6)] * 2
    red = samples[1]["images"]
    assert np.allclose(red[0, :, 0, 0], [1.0, 0.0, 0.0])
    how = Preprocessing(width=6, height=4, layout="NHWC", color="BGR")
    inputs = [spec("images", "n", 4, 6, 3)]
    last = all_of(calibration.read(tmp_path, inputs, preprocessing=how))[1]["images"]
    assert np.allclose(last[0, 0, 0], [0.0, 0.2, 1.0])
    (tmp_path / "red.png").write_bytes(b"not an image")
    assert "red.png cannot be read as an image" in refuse(tmp_path, [IMAGE], preprocessing=AS_IMAGE)
