"""Memory that models are likely to need: how many of them, and of their Jobs, begin."""

from pathlib import Path

import pytest
from enginewright_cli.preflight import memory

from tests.support.preflight_runs import make_request

GIB = 1 << 30


def test_memory_bounds_how_many_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = tmp_path / "small.onnx", tmp_path / "large.onnx"
    small.write_bytes(b"1")
    with large.open("wb") as file:
        file.truncate(GIB // 4)
    monkeypatch.setattr(memory, "_free_memory", lambda: 3 * GIB)
    promised = memory.Memory()
    assert promised.reserve(0, make_request(large, "cpu"), 1)
    assert not promised.reserve(1, make_request(large, "cpu"), 1)
    assert promised.reserve(2, make_request(small, "cpu"), 1)
    promised.release(0)
    assert promised.reserve(1, make_request(large, "cpu"), 1)


def test_memory_bounds_the_jobs_of_one_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"1")
    need = memory.need(make_request(path, "cpu", "sm89"))
    for free, jobs in ((2 * need, 2), (need, 1), (need // 2, 1)):
        monkeypatch.setattr(memory, "_free_memory", lambda free=free: free / memory._USABLE + 1)
        assert memory.Memory().reserve(0, make_request(path, "cpu", "sm89"), 2) == jobs
    # beside another model there may be room for one Job, or none
    monkeypatch.setattr(memory, "_free_memory", lambda: 2 * need / memory._USABLE + 1)
    promised = memory.Memory()
    assert [
        promised.reserve(number, make_request(path, "cpu", "sm89"), 1) for number in range(3)
    ] == [
        1,
        1,
        0,
    ]


@pytest.mark.parametrize(
    ("source", "names", "jobs"),
    [
        ("model.onnx", ("cpu",), 1),
        ("model.onnx", ("cpu", "sm89"), 2),
        ("model.onnx", ("cpu", "cpu:avx2"), 1),  # one prepared model
        ("model.onnx", ("sm86", "sm89", "sm120"), 3),
        ("https://models.example/model.onnx", ("cpu", "sm89"), 1),
        ("model.tar.gz", ("cpu", "sm89"), 1),
        ("model.zip", ("sm86", "sm89"), 1),
        (".", ("cpu", "sm89"), 2),
    ],
)
def test_jobs_that_may_run_at_once(source: str, names: tuple[str, ...], jobs: int) -> None:
    assert memory.independent_jobs(make_request(source, *names)) == jobs


def test_too_large_model_runs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    huge = tmp_path / "huge.onnx"
    with huge.open("wb") as file:
        file.truncate(64 * GIB)
    monkeypatch.setattr(memory, "_free_memory", lambda: GIB)
    promised = memory.Memory()
    assert promised.reserve(0, make_request(huge, "cpu", "sm89"), 2) == 1
    assert not promised.reserve(1, make_request(huge, "cpu"), 1)


def test_external_data_counts_where_the_model_names_it(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"1")
    alone = memory.need(make_request(path, "cpu"))
    for name in ("weights.bin", "model.onnx.data", "other.bin"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(GIB)
    (tmp_path / "other.onnx").write_bytes(bytes(2 << 20))
    assert memory.need(make_request(path, "cpu")) == alone
    content = b"\n\x0blocation\x12\x0bweights.bin..model.onnx.data..other.onnx"
    path.write_bytes(content)
    assert memory.need(make_request(path, "cpu")) == alone + 5 * (len(content) - 1 + 2 * GIB)
    link = tmp_path / "elsewhere" / "link.onnx"
    link.parent.mkdir()
    link.symlink_to(path)
    assert memory.need(make_request(link, "cpu")) == memory.need(make_request(path, "cpu"))


def test_where_many_files_may_be_external_data_all_of_them_count(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"1")
    alone = memory.need(make_request(path, "cpu"))
    for number in range(17):
        with (tmp_path / f"{number}.bin").open("wb") as file:
            file.truncate(2 << 20)
    assert memory.need(make_request(path, "cpu")) == alone + 5 * 17 * (2 << 20)


def test_engines_take_more(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    assert memory.need(make_request(path, "sm89")) > memory.need(make_request(path, "cpu"))
    assert memory._free_memory() > 0
