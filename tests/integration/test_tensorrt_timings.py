"""Timings between builds: seeded, merged, and never in the way.

TensorRT-RTX takes none, so what is kept is its stub's, and what matters is who gets which bytes.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from enginewright_runtime.core.isolation import Call
from enginewright_runtime.engine.timings import Timings
from enginewright_runtime.store import Store
from enginewright_runtime.tensorrt import flavor
from enginewright_runtime.tensorrt.native import merge_timings

from tests.support.engines import EnginePlace, matmul, recipe

NAME = "timings-tensorrt-rtx-1.7.1.116-l4"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return a store, where TensorRT-RTX passes for a library that takes timings."""
    rtx = flavor.FLAVORS["tensorrt-rtx"]
    monkeypatch.setitem(flavor.FLAVORS, "tensorrt-rtx", replace(rtx, timing_cache=True))
    (tmp_path / "store").mkdir()
    (tmp_path / "work").mkdir()
    return Store(tmp_path / "store")


def of_build(tmp_path: Path, store: Store) -> Timings:
    timings = Timings(store, recipe(), tmp_path / "work")
    timings.load()
    return timings


def test_the_next_build_begins_with_them(tmp_path: Path, store: Store) -> None:
    first = of_build(tmp_path, store)
    assert not first.path.exists()
    first.path.write_bytes(b"taken")
    first.save(tmp_path / "log")
    assert of_build(tmp_path, store).path.read_bytes() == b"taken"
    other = Timings(store, recipe(version="1.8"), tmp_path / "work")
    other.load()
    assert not other.path.exists(), "of another version"


def test_timings_of_a_concurrent_build_are_kept(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = of_build(tmp_path, store)
    mine.path.write_bytes(b"mine")
    store.put_cache(NAME, b"theirs")
    asked = []

    def merge(call: Call[..., Any], *, timings: list[Path], target: Path, **_: object) -> None:
        asked.append((call.function, [timing.read_bytes() for timing in timings]))
        target.write_bytes(b"both")

    monkeypatch.setattr(Call, "run", merge)
    mine.save(tmp_path / "log")
    assert asked == [(merge_timings, [b"mine", b"theirs"])]
    assert store.get_cache(NAME) == b"both"
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["timing.cache"]


def test_the_library_merges(tmp_path: Path, store: Store) -> None:
    """With the real library's stub, which accepts any input: garbage gives an empty cache."""
    mine = of_build(tmp_path, store)
    mine.path.write_bytes(b"mine")
    store.put_cache(NAME, b"theirs")
    mine.save(tmp_path / "log")
    kept = store.get_cache(NAME)
    assert kept not in {b"mine", b"theirs", None}


@pytest.mark.parametrize("damage", ["cut off", "changed", "a link", "gone"])
def test_their_loss_is_no_failure(damage: str, tmp_path: Path, store: Store) -> None:
    store.put_cache(NAME, b"taken")
    path = tmp_path / "store/caches" / NAME
    match damage:
        case "cut off":
            path.write_bytes(path.read_bytes()[:-1])
        case "changed":
            path.write_bytes(path.read_bytes()[:-1] + b"x")
        case "a link":
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
        case _:
            path.unlink()
    assert not of_build(tmp_path, store).path.exists()


def test_a_store_that_fails_is_logged(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "store").rmdir()
    mine = of_build(tmp_path, store)
    mine.path.write_bytes(b"mine")
    mine.save(tmp_path / "log")
    reported = [record.message for record in caplog.records]
    assert "building without earlier timings: the store does not exist" in reported[0]
    assert "the timings of this build are not kept: the store does not exist" in reported[1]


def test_a_library_without_timings_leaves_none(tmp_path: Path) -> None:
    place = EnginePlace(tmp_path, in_process=True)
    place.prepare_model(matmul())
    assert place.engine_stage("build", place.engine_task()).code == 0
    assert not (tmp_path / "store/caches").exists()
