"""Constant tensors are read a piece at a time, wherever and however they lie."""

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from enginewright_runtime.rules import contents
from enginewright_runtime.rules.contents import UnreadableError, summarize
from onnx import TensorProto, helper, numpy_helper

MEBIBYTE = 1 << 20
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def outside(
    folder: Path, size: int, *, offset: int = 0, kind: int = TensorProto.FLOAT
) -> TensorProto:
    bits = contents.element_bits(kind)
    assert bits is not None
    tensor = TensorProto(name="w", data_type=kind, dims=[size * 8 // bits])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    tensor.external_data.add(key="offset", value=str(offset))
    return tensor


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("kind", FLOATS)
def test_every_type_and_field(kind: int, raw: bool, tmp_path: Path) -> None:
    numbers = [1.0, float("nan"), float("inf"), float("-inf"), -2.0, float("nan")]
    tensor = helper.make_tensor("w", kind, [6], numbers)
    if raw:
        tensor = numpy_helper.from_array(numpy_helper.to_array(tensor), "w")
    assert tensor.HasField("raw_data") is raw
    summary = summarize(tensor, tmp_path)
    assert (summary.nan, summary.positive_infinities, summary.negative_infinities) == (2, 1, 1)
    assert (summary.minimum, summary.maximum) == (-2.0, 1.0)
    assert not summary.finite


def test_nan_at_the_edge_of_a_piece(tmp_path: Path) -> None:
    array = np.ones(9 * MEBIBYTE // 4, np.float32)
    places = [0, 4 * MEBIBYTE // 4 - 1, 4 * MEBIBYTE // 4, array.size - 1]
    array[places] = np.nan
    (tmp_path / "w.bin").write_bytes(b"abc" + array.tobytes())
    assert summarize(outside(tmp_path, array.nbytes, offset=3), tmp_path).nan == len(places)


def test_memory_is_that_of_a_piece(tmp_path: Path) -> None:
    array = np.ones(64 * MEBIBYTE // 4, np.float32)
    (tmp_path / "w.bin").write_bytes(array.tobytes())
    tensor = outside(tmp_path, array.nbytes)
    del array
    tracemalloc.start()
    try:
        assert summarize(tensor, tmp_path).finite
        assert tracemalloc.get_traced_memory()[1] < 24 * MEBIBYTE
    finally:
        tracemalloc.stop()


def test_holes_are_zeros(tmp_path: Path) -> None:
    """A sparse file of a terabyte is read in no time, and what lies in it is seen."""
    size = 1 << 40
    with (tmp_path / "w.bin").open("wb") as writer:
        writer.truncate(size)
        writer.seek(size // 2)
        writer.write(np.array([np.nan, 5.0], np.float32).tobytes())
    summary = summarize(outside(tmp_path, size), tmp_path)
    assert (summary.nan, summary.minimum, summary.maximum) == (1, 0.0, 5.0)


def test_truncated_file_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(64))
    (tmp_path / "v.bin").write_bytes(bytes(64))
    assert summarize(outside(tmp_path, 64), tmp_path).finite
    for tensor in (
        outside(tmp_path, 68),
        outside(tmp_path, 64, offset=4),
        outside(tmp_path, 64, offset=-4),
        TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], raw_data=bytes(4)),
        TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[-4], raw_data=bytes(4)),
        TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], float_data=[1.0]),
    ):
        with pytest.raises(UnreadableError):
            summarize(tensor, tmp_path)
    for change in (
        lambda path: path.symlink_to("v.bin"),
        os.mkfifo,
        lambda path: path.mkdir(),
        Path.exists,  # nothing there
    ):
        path = tmp_path / "w.bin"
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        change(path)
        with pytest.raises(UnreadableError):
            summarize(outside(tmp_path, 64), tmp_path)


def test_packed_types() -> None:
    for kind, count, size in (
        (TensorProto.INT4, 3, 2),
        (TensorProto.UINT4, 4, 2),
        (TensorProto.FLOAT4E2M1, 5, 3),
        (TensorProto.FLOAT8E4M3FN, 5, 5),
        (TensorProto.COMPLEX128, 1, 16),
        (TensorProto.BOOL, 7, 7),
    ):
        assert contents.byte_size(TensorProto(data_type=kind, dims=[count])) == size
    assert contents.byte_size(TensorProto(data_type=TensorProto.STRING, dims=[1])) is None
    assert contents.byte_size(TensorProto(data_type=999, dims=[1])) is None
