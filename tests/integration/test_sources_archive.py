"""Archives as sources, good and bad: nothing gets out, nothing grows without end."""

import gzip
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from enginewright_contract.reasons import ExitCode, Reason
from enginewright_runtime.sources.archive import kind_of

from tests.support import broken_models as broken
from tests.support.preparing import Workplace
from tests.unit.test_sources_archive import RELU, tar_files, zip_files

MODEL = broken.external("weights/w 1.bin").SerializeToString()


FILES = {
    "bert/modèl.onnx": MODEL,
    "bert/weights/w 1.bin": broken.weights(),
    "bert/._modèl.onnx": b"of macOS",
    "__MACOSX/bert/x.onnx": b"of macOS",
    "bert/README.md": b"#",
}


def tar_plain(files: dict[str, bytes]) -> bytes:
    return tar_files(files, "w")


@pytest.mark.parametrize("pack", [zip_files, tar_files, tar_plain])
@pytest.mark.parametrize("name", ["bert.bin", "bert.zip"])
def test_a_model_with_external_data_in_an_archive(
    pack: Callable[[dict[str, bytes]], bytes], name: str, place: Workplace
) -> None:
    outcome = place.fetch(place.put(name, pack(FILES)))
    assert "and 1 external data file," in outcome.message
    model = place.root / "work/model"
    assert sorted(p.name for p in model.rglob("*") if p.is_file()) == ["model.onnx", "w 1.bin"]
    assert [p.name for p in (place.root / "work").iterdir() if p.is_dir()] == ["model"]


def test_the_digest_may_be_that_of_the_archive_or_of_the_model(place: Workplace) -> None:
    packed = tar_files({"net.onnx": RELU})
    uri = place.put("net.tgz", packed)
    for content in (packed, RELU):
        digest = archive_digest(content)
        assert place.stage("fetch", place.task(uri, sha256=digest)).code == 0
    outcome = place.stage("fetch", place.task(uri, sha256="0" * 64))
    assert outcome.report.reason is Reason.DIGEST_MISMATCH
    assert f"(and its archive {archive_digest(packed)})" in outcome.message


def archive_digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("packed", "reported"),
    [
        (zip_files({"a.onnx": RELU, "b/b.onnx": RELU}), None),  # the one at the top
        (
            zip_files({"m/data.pkl": b"x"}),
            "has 0 .onnx files, and is a PyTorch checkpoint; export the model to ONNX",
        ),
        (
            zip_files({"notes.txt": b"x"}),
            "has 0 .onnx files: none; name a folder or archive with one .onnx file",
        ),
        (zip_files({"x/a.onnx": RELU, "y/b.onnx": RELU}), "has 2 .onnx files: x/a.onnx, y/b.onnx"),
        (zip_files({"a.onnx": RELU})[:-30], "is damaged or cut off"),
        (tar_files({"a.onnx": RELU * 9999})[:-99], "is damaged or cut off"),
        (gzip.compress(RELU), "it is gzip-compressed; unpack it, or give a .tar.gz"),
        (b"\xfd7zXZ\x00", "it is xz-compressed"),
    ],
)
def test_an_archive_needs_one_model(packed: bytes, reported: str | None, place: Workplace) -> None:
    outcome = place.fetch(place.put("packed", packed))
    if reported is None:
        assert outcome.code == 0, outcome.message
    else:
        assert (outcome.code, outcome.report.reason) == (ExitCode.PERMANENT, Reason.INVALID_MODEL)
        assert reported in outcome.message
    assert not list((place.root / "work").glob("unpacked-*"))


def test_models_are_not_taken_for_archives(models: Path) -> None:
    files = [path for path in models.rglob("*.onnx") if os.path.getsize(path)]
    assert len(files) > 5
    assert {kind_of(path) for path in files} == {None}
