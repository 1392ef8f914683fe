"""Results of models that have not changed: what they depend on, and that nothing hinders a run."""

import hashlib
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from enginewright_cli.preflight import cache as cached
from enginewright_cli.preflight import options, targets
from enginewright_cli.preflight.cache import ResultCache
from enginewright_cli.preflight.request import PreflightRequest
from enginewright_cli.preflight.result import Found, ModelFacts, Result, TargetResult

from tests.support import broken_models as broken
from tests.support.optional import present
from tests.support.plan_objects import image_facts

HELD = image_facts("cpu")
INSTALLED = "a" * 64


def make_request(source: Path | str, **changes: Any) -> PreflightRequest:
    base = PreflightRequest(
        source=str(source),
        targets=(targets.parse("cpu"),),
        recipe=options.recipe(HELD),
        promise=options.promise(None),
    )
    return replace(base, **changes)


def result(source: Path, digest: str | None = None, reason: str | None = None) -> Result:
    digest = digest or hashlib.sha256(source.read_bytes()).hexdigest()
    verdict = "fail" if reason else "pass"
    finding = Found(
        severity="error",
        reason=reason or "",
        message="m",
        remedy="",
        stage="golden",
        targets=("cpu",),
    )
    return Result.model_validate(
        {
            "verdict": verdict,
            "source": str(source),
            "model": ModelFacts(digest=digest, size_bytes=1),
            "findings": (finding,) if reason else (),
            "targets": {"cpu": TargetResult(verdict=verdict, backend="cpu", reason=reason)},
        }
    )


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def kept(tmp_path: Path, warnings: list[str]) -> ResultCache:
    return ResultCache(tmp_path / "cache", warnings.append)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(broken.relu().SerializeToString())
    return path


def keep(kept: ResultCache, request: PreflightRequest, stored: Result, *beside: str) -> None:
    kept.keep(request, HELD, INSTALLED, stored, ("model.onnx", *beside))


def test_the_same_question_has_the_same_answer(kept: ResultCache, model: Path) -> None:
    assert kept.result(make_request(model), HELD, INSTALLED) is None
    keep(kept, make_request(model), result(model))
    outcome = present(kept.result(make_request(model), HELD, INSTALLED))
    assert outcome.cached
    assert outcome.model_copy(update={"cached": False}) == result(model)


def test_a_copy_elsewhere_is_the_same_model(kept: ResultCache, model: Path, tmp_path: Path) -> None:
    keep(kept, make_request(model), result(model))
    copy = tmp_path / "elsewhere" / "other.onnx"
    copy.parent.mkdir()
    copy.write_bytes(model.read_bytes())
    for source in (copy, copy.parent):
        outcome = present(kept.result(make_request(source), HELD, INSTALLED))
        assert outcome.source == str(source)


def test_another_question_has_no_answer(kept: ResultCache, model: Path, tmp_path: Path) -> None:
    request = make_request(model)
    keep(kept, request, result(model))
    newer = HELD.model_copy(update={"ort_version": "1.32.0"})
    assert kept.result(request, newer, INSTALLED) is None
    assert kept.result(request, HELD, "b" * 64) is None
    samples = tmp_path / "samples.npz"
    samples.write_bytes(b"1")
    for other in (
        make_request(model, targets=(targets.parse("cpu"), targets.parse("sm89"))),
        make_request(model, recipe=options.recipe(HELD, target_precision="FP16")),
        make_request(model, promise=options.promise("allow")),
        make_request(model, samples=samples),
    ):
        assert kept.result(other, HELD, INSTALLED) is None
    model.write_bytes(broken.relu(opset=18).SerializeToString())
    assert kept.result(request, HELD, INSTALLED) is None


def test_data_counts_by_its_content(kept: ResultCache, model: Path, tmp_path: Path) -> None:
    samples, images = tmp_path / "samples.npz", tmp_path / "images"
    samples.write_bytes(b"1")
    images.mkdir()
    (images / "a.png").write_bytes(b"1")
    request = make_request(model, samples=samples, calibration=images)
    keep(kept, request, result(model))
    assert kept.result(request, HELD, INSTALLED)
    (images / "a.png").write_bytes(b"2")
    assert kept.result(request, HELD, INSTALLED) is None
    (images / "a.png").write_bytes(b"1")
    assert kept.result(request, HELD, INSTALLED)
    samples.unlink()
    assert kept.result(request, HELD, INSTALLED) is None


@pytest.mark.parametrize(
    ("reason", "remembered"),
    [
        ("OutOfMemory", False),
        ("Timeout", False),
        ("BackendCrashed", False),
        ("StoreUnavailable", False),
        ("InternalError", False),
        ("UnsupportedOperator", True),
    ],
)
def test_model_faults_are_cached_and_passing_failures_are_not(
    kept: ResultCache, model: Path, reason: str, remembered: bool
) -> None:
    keep(kept, make_request(model), result(model, reason=reason))
    outcome = kept.result(make_request(model), HELD, INSTALLED)
    assert (outcome is not None) is remembered
    assert outcome is None or outcome.verdict == "fail"


def test_a_model_that_changed_meanwhile_is_not_remembered(kept: ResultCache, model: Path) -> None:
    keep(kept, make_request(model), result(model, digest="0" * 64))
    assert kept.result(make_request(model), HELD, INSTALLED) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"verdict": "pass"}', b"\xff\xfe"])
def test_spoilt_entry_is_replaced(
    kept: ResultCache, model: Path, tmp_path: Path, content: bytes
) -> None:
    keep(kept, make_request(model), result(model))
    entries = list((tmp_path / "cache").glob("*/*.json"))
    assert len(entries) == 2
    for entry in entries:
        entry.write_bytes(content)
    assert kept.result(make_request(model), HELD, INSTALLED) is None
    keep(kept, make_request(model), result(model))
    assert kept.result(make_request(model), HELD, INSTALLED)


def test_folder_as_an_entry_is_harmless(
    kept: ResultCache, model: Path, tmp_path: Path, warnings: list[str]
) -> None:
    keep(kept, make_request(model), result(model))
    (entry,) = (tmp_path / "cache/results").iterdir()
    entry.unlink()
    entry.mkdir()
    assert kept.result(make_request(model), HELD, INSTALLED) is None
    keep(kept, make_request(model), result(model))
    keep(kept, make_request(model), result(model))
    assert len(warnings) == 1
    assert "set XDG_CACHE_HOME" in warnings[0]
    assert not list((tmp_path / "cache/results").glob("tmp*"))


def test_least_recently_used_goes_first(
    kept: ResultCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = []
    for number in range(4):
        path = tmp_path / f"{number}.onnx"
        path.write_bytes(broken.relu(opset=13 + number).SerializeToString())
        keep(kept, make_request(path), result(path))
        paths.append(path)
        for entry in (tmp_path / "cache").glob("*/*.json"):
            old = entry.stat().st_mtime - 100
            os.utime(entry, (old, old))
    assert kept.result(make_request(paths[0]), HELD, INSTALLED)  # the oldest, used again
    size = sum(item.stat().st_size for item in (tmp_path / "cache").glob("*/*.json"))
    monkeypatch.setattr(cached, "LIMIT", size)
    new = tmp_path / "new.onnx"
    new.write_bytes(broken.relu(opset=20).SerializeToString())
    keep(kept, make_request(new), result(new))
    there = [bool(kept.result(make_request(path), HELD, INSTALLED)) for path in (*paths, new)]
    assert there[0]
    assert there[-1]
    assert not there[1]


def test_writers_at_the_same_time_leave_whole_entries(kept: ResultCache, model: Path) -> None:
    stored = result(model)

    def write() -> None:
        for _ in range(50):
            keep(kept, make_request(model), stored)

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    seen = 0
    while any(writer.is_alive() for writer in writers):
        seen += kept.result(make_request(model), HELD, INSTALLED) is not None
    for writer in writers:
        writer.join()
    assert kept.result(make_request(model), HELD, INSTALLED)


@pytest.mark.parametrize(
    ("reported", "expected"),
    [("", ".cache"), ("relative", ".cache"), ("/absolute", "/absolute")],
)
def test_folder_follows_specification(
    monkeypatch: pytest.MonkeyPatch, reported: str, expected: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", reported)
    assert cached.default_folder() == Path.home() / expected / "enginewright/preflight"


def test_installation_is_known_by_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    first = cached.installation()
    assert cached.installation() == first
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/cuda/lib64")
    assert cached.installation() != first


def test_a_source_that_only_fetching_identifies_is_not_looked_up(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"1")
    assert cached.find_model(str(tmp_path))
    (tmp_path / "b.onnx").write_bytes(b"2")
    assert cached.find_model(str(tmp_path)) is None
    assert cached.find_model("https://models.example/model.onnx") is None
    (tmp_path / "model.zip").write_bytes(b"3")
    assert cached.find_model(str(tmp_path / "model.zip")) is None
