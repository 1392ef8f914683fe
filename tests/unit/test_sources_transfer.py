"""What is written on the way to the work folder: a disk that is full, broken, or smaller than the model."""

import errno
import io
import logging
import os
import shutil
from pathlib import Path

import pytest
from enginewright_contract.reasons import Reason
from enginewright_runtime.core.digests import file_sha256
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.logs import configure
from enginewright_runtime.remote import retry
from enginewright_runtime.sources.claim import ClaimSource
from enginewright_runtime.sources.quota import DiskQuota
from enginewright_runtime.sources.transfer import Transfer, transfer_file
from typing_extensions import override

SIGNED = "https://bucket.example/m.onnx?X-Amz-Expires=60&X-Amz-Signature=5ecret"


class Failing(io.BytesIO):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    @override
    def write(self, _: object) -> int:
        raise OSError(self.number, "it failed")


@pytest.mark.parametrize(
    ("number", "reason", "message"),
    [
        (errno.ENOSPC, Reason.STORAGE_FULL, "free and m.onnx is larger than that"),
        (errno.EDQUOT, Reason.STORAGE_FULL, "free and m.onnx is larger than that"),
        (errno.EIO, Reason.INTERNAL_ERROR, "cannot write m.onnx to the work folder: it failed"),
        (errno.EROFS, Reason.INTERNAL_ERROR, "cannot write m.onnx to the work folder: it failed"),
    ],
)
def test_full_disk_is_named(tmp_path: Path, number: int, reason: Reason, message: str) -> None:
    transfer = Transfer("m.onnx", Failing(number), DiskQuota(tmp_path, "a model", 1 << 20))
    with pytest.raises(StageFailure, match=message) as failed:
        transfer.receive(b"x")
    assert failed.value.reason is reason


@pytest.mark.parametrize("size", [100, 100_000])
async def test_a_full_disk_is_reported_with_the_files_name(tmp_path: Path, size: int) -> None:
    """Also where closing the file writes again what could not be written."""

    async def attempt(transfer: Transfer) -> None:
        transfer.receive(b"x" * size)

    quota = DiskQuota(tmp_path, "a model", 1 << 20)
    with pytest.raises(StageFailure, match=r"m\.onnx is larger than that"):
        await transfer_file("https://a/m.onnx", "m.onnx", Path("/dev/full"), quota, attempt)


class WrittenTo(DiskQuota):
    """Writes to the source whenever a part of it has arrived, a limited number of times."""

    def __init__(self, folder: Path, source: Path, written: bytes, times: int) -> None:
        super().__init__(folder, "a model", 1 << 30)
        self.source = source
        self.written = written
        self.left = times

    @override
    def add(self, name: str, size: int) -> None:
        super().add(name, size)
        if self.left:
            self.left -= 1
            with self.source.open("r+b") as writer:
                writer.seek(0, os.SEEK_END if self.written else os.SEEK_SET)
                writer.write(self.written or b"2")
            written_at = 1_800_000_000 - self.left  # however coarse the clock of the disk is
            os.utime(self.source, (written_at, written_at))


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(retry, "_FIRST_PAUSE", 0.001)
    (tmp_path / "volume").mkdir()
    source = tmp_path / "volume" / "m.onnx"
    source.write_bytes(b"1" * 100)
    return source


@pytest.mark.parametrize(
    ("written", "sizes"),
    [
        pytest.param(b"1" * 1000, "from 3100 to 4100 bytes", id="it grows"),
        pytest.param(b"", "from 100 to 100 bytes", id="in its place"),
    ],
)
def test_changing_file_is_copied_a_few_times(
    tmp_path: Path, source: Path, written: bytes, sizes: str
) -> None:
    quota = WrittenTo(tmp_path, source, written, times=1000)
    with pytest.raises(StageFailure) as failed:
        ClaimSource(source.parent, "models", source.name).copy(
            source.name, tmp_path / "copy", quota
        )
    assert failed.value.reason is Reason.SOURCE_UNREACHABLE
    cause = failed.value.finding.cause
    assert f"'m.onnx' of pvc://models/m.onnx: it changed while it was copied, {sizes}" in cause
    assert "rename it" in failed.value.finding.advice
    assert quota.left == 1000 - 4


def test_a_file_that_has_come_to_rest_is_copied_whole(tmp_path: Path, source: Path) -> None:
    quota = WrittenTo(tmp_path, source, b"1" * 1000, times=2)
    target = tmp_path / "copy"
    copied = ClaimSource(source.parent, "models", source.name).copy(source.name, target, quota)
    assert target.read_bytes() == source.read_bytes()
    assert copied == file_sha256(source)


@pytest.mark.parametrize(
    ("size", "cause", "advice"),
    [
        (9 << 30, "has 1.0 GiB free and m.onnx has 9.0 GiB", "delete unneeded"),
        (11 << 30, "has 10.0 GiB in all, of which 512.0 MiB", "give nodes a larger disk"),
    ],
)
def test_too_large_file_needs_a_larger_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, cause: str, advice: str
) -> None:
    """Neither is lasting: another node may have the space."""
    usage = shutil.disk_usage(tmp_path)._replace(total=10 << 30, free=(1 << 30) + (512 << 20))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(StageFailure, match=cause) as failed:
        DiskQuota(tmp_path, "a model", 1 << 40).check("m.onnx", size)
    assert failed.value.reason is Reason.STORAGE_FULL
    assert advice in failed.value.finding.advice


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            f"cannot read {SIGNED}; try again",
            "cannot read https://bucket.example/m.onnx?…; try again",
        ),
        (f'{{"uri":"{SIGNED}","x":"a=b"}}', '{"uri":"https://bucket.example/m.onnx?…","x":"a=b"}'),
        (f"'{SIGNED}'", "'https://bucket.example/m.onnx?…'"),
        ("az://c/m.onnx?sig=5ecret", "az://c/m.onnx?…"),
        ("https://me:5ecret@host/m.onnx", "https://host/m.onnx"),
        ("https://me:5e@cret@host/m.onnx", "https://host/m.onnx"),
        ("HTTPS://host/m.onnx?sig=5ecret", "HTTPS://host/m.onnx?…"),
        ("abfss://a.example/m.onnx?sv=1&sig=5ecret", "abfss://a.example/m.onnx?…"),
        ("oci://me:5ecret@host/m:1", "oci://host/m:1"),
        ("s3://id:5ecret@bucket/m.onnx", "s3://bucket/m.onnx"),
        ("hf://me:5ecret@org/m.onnx", "hf://org/m.onnx"),
        (f"oci://host/m@sha256:{'1' * 64}", f"oci://host/m@sha256:{'1' * 64}"),
        ("hf://gpt2@main/model.onnx", "hf://gpt2@main/model.onnx"),
        ("s3://bucket/a?b=c/m.onnx", "s3://bucket/a?b=c/m.onnx"),
        ("add: {x: {min: [1]}}?", "add: {x: {min: [1]}}?"),
        ("hf://org/repo@main/what?.onnx", "hf://org/repo@main/what?.onnx"),
    ],
)
def test_signatures_are_never_shown(
    text: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = StageFailure(Reason.SOURCE_UNREACHABLE, f"{text} failed", remedy=f"see {text}")
    assert failure.finding.cause == f"{shown} failed"
    assert failure.finding.remedy == f"see {shown}"
    configure("fetch")
    logging.getLogger("enginewright_runtime.test").info("to run it again: %s", text)
    assert "5ecret" not in capsys.readouterr().err
