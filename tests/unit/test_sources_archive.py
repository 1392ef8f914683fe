"""Archives as sources, good and bad: nothing gets out, nothing grows without end."""

import gzip
import io
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from enginewright_contract.reasons import Reason
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.sources import archive
from enginewright_runtime.sources.archive import ArchiveError, unpack
from enginewright_runtime.sources.quota import DiskQuota

from tests.support import broken_models as broken

RELU = broken.relu().SerializeToString()


def zip_files(files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compression) as opened:
        for name, content in files.items():
            opened.writestr(name, content)
    return packed.getvalue()


def tar_files(files: dict[str, bytes], mode: str = "w:gz") -> bytes:
    return members([(regular(name, content), content) for name, content in files.items()], mode)


def members(entries: list[tuple[tarfile.TarInfo, bytes]], mode: str = "w") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as opened:  # type: ignore[call-overload]  # any mode
        for entry, content in entries:
            opened.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def regular(name: str, content: bytes = b"x") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    return entry


def special(name: str, kind: bytes, to: str = "") -> tuple[tarfile.TarInfo, bytes]:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, to
    return entry, b""


def unpack_archive(tmp_path: Path, packed: bytes) -> Path:
    (tmp_path / "packed").write_bytes(packed)
    folder = tmp_path / "out/folder"
    folder.mkdir(parents=True)
    unpack(tmp_path / "packed", folder, DiskQuota(folder, "a model", 1 << 30))
    return folder


def zip_link(to: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as opened:
        entry = zipfile.ZipInfo("w.bin")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        opened.writestr(entry, to)
        opened.writestr("real.bin", b"weights")
    return packed.getvalue()


# fault: Security | an archive with paths or links that lead outside, devices, or two files of one
#   name | it is refused | at `fetch`
@pytest.mark.parametrize(
    ("packed", "reported"),
    [
        (tar_files({"../evil": b"x"}), "leads out of the folder"),
        (tar_files({"a/../../evil": b"x"}), "leads out of the folder"),
        (zip_files({"../evil": b"x"}), "leads out of the folder"),
        (zip_files({"/evil": b"x"}), "is an absolute path"),
        (tar_files({"/evil": b"x"}), "is an absolute path"),
        (zip_files({"C:/evil": b"x"}), "is an absolute path"),
        (tar_files({"a\\..\\evil": b"x"}), "has a backslash"),
        (tar_files({"a\x1b[2J": b"x"}), "cannot be printed"),
        (members([(regular("a\udcff"), b"x")]), "cannot be printed"),
        (tar_files({"a" * 256: b"x"}), "is too long"),
        (tar_files({"/".join("a" * 40): b"x"}), "is too long"),
        (members([special("w", tarfile.SYMTYPE, "/etc/passwd")]), "link 'w' that leads out of it"),
        (members([special("w", tarfile.SYMTYPE, "../../evil")]), "link 'w' that leads out of it"),
        (members([special("a/w", tarfile.LNKTYPE, "../x")]), "link 'a/w' that leads out of it"),
        (zip_link("../evil"), "link 'w.bin' that leads out of it"),
        (zip_link("none"), "link 'w.bin' to 'none', which is no file in it"),
        (members([special("w", tarfile.SYMTYPE, "w")]), "link 'w' to 'w', which is no file in it"),
        # through a link to a folder, out of it
        (
            members([special("d", tarfile.SYMTYPE, ".."), (regular("d/evil"), b"x")]),
            "link 'd' that leads out of it",
        ),
        (
            members([special("d", tarfile.SYMTYPE, "e"), (regular("d/x"), b"x")]),
            "link 'd' to 'e', which is no file in it",
        ),
        (
            members(
                [special("d", tarfile.SYMTYPE, "f"), (regular("f"), b"x"), (regular("d/x"), b"x")]
            ),
            "has two members 'd'",
        ),
        (members([special("dev", tarfile.CHRTYPE)]), "is a device or the like"),
        (members([special("pipe", tarfile.FIFOTYPE)]), "is a device or the like"),
        (members([(regular("a"), b"x"), (regular("a"), b"y")]), "has two members 'a'"),
        (members([(regular("a"), b"x"), (regular("./a"), b"y")]), "has two members 'a'"),
        (members([(regular("a"), b"x"), (regular("a/b"), b"y")]), "has a file where 'a/b' needs"),
    ],
)
def test_members_that_could_do_harm(packed: bytes, reported: str, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError) as caught:
        unpack_archive(tmp_path, packed)
    assert reported in str(caught.value)
    written = {p.relative_to(tmp_path).parts[0] for p in tmp_path.rglob("*")}
    assert written == {"packed", "out"}, "outside"
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"folder"}, "outside"


def test_links_inside_become_plain_files(tmp_path: Path) -> None:
    """The layout of a Hugging Face cache, with a chain of links."""
    packed = members(
        [
            special("snapshots/net.onnx", tarfile.SYMTYPE, "../blobs/1"),
            special("snapshots/same.onnx", tarfile.SYMTYPE, "net.onnx"),
            (regular("blobs/1", RELU), RELU),
            special("hard.onnx", tarfile.LNKTYPE, "blobs/1"),
        ]
    )
    folder = unpack_archive(tmp_path, packed)
    for name in ("snapshots/net.onnx", "snapshots/same.onnx", "hard.onnx"):
        path = folder / name
        assert path.read_bytes() == RELU
        assert not path.is_symlink()


def test_modes_and_owners_are_our_own(tmp_path: Path) -> None:
    entry = regular("tool")
    entry.mode, entry.uid = 0o4777, 0
    path = unpack_archive(tmp_path, members([(entry, b"x")])) / "tool"
    assert stat.S_IMODE(path.stat().st_mode) & 0o7111 == 0


# fault: Security | an archive that expands to gigabytes | it is refused where it exceeds the ratio |
#   at `fetch`
@pytest.mark.parametrize("pack", [zip_files, tar_files])
def test_archive_bomb(
    pack: Callable[[dict[str, bytes]], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_FREE_BYTES", 1 << 20)
    with pytest.raises(ArchiveError, match="more than 200 times its size"):
        unpack_archive(tmp_path, pack({"zeros": bytes(12_000_000)}))


def test_zeros_of_a_usual_size_are_no_bomb(tmp_path: Path) -> None:
    assert (unpack_archive(tmp_path, zip_files({"zeros": bytes(12_000_000)})) / "zeros").exists()


def test_a_member_that_says_that_it_is_huge(tmp_path: Path) -> None:
    entry = regular("huge")
    packed = bytearray(members([(entry, b"x")]))
    packed[124:136] = b"77777777777\0"  # 8 GiB
    checked = bytes(packed[:148]) + b" " * 8 + bytes(packed[156:512])
    packed[148:156] = f"{sum(checked):06o}\0 ".encode()
    with pytest.raises(StageFailure) as caught:
        unpack_archive(tmp_path, bytes(packed))
    assert caught.value.reason is Reason.MODEL_TOO_LARGE


def test_sparse_member_counts_in_full(tmp_path: Path) -> None:
    """GNU's sparse format: 1 byte of content that says it is a gigabyte and more."""
    content = b"1\n1073741824\n1\n".ljust(512, b"\0") + b"x"
    entry = regular("GNUSparseFile.0/zeros", content)
    entry.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "zeros",
        "GNU.sparse.realsize": "1073741825",
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as opened:
        opened.addfile(entry, io.BytesIO(content))
    with pytest.raises(StageFailure) as caught:
        unpack_archive(tmp_path, packed.getvalue())
    assert caught.value.reason is Reason.MODEL_TOO_LARGE


def test_a_header_that_would_not_fit_into_memory(tmp_path: Path) -> None:
    """A name's extension is read whole by tarfile, however long it says that it is."""
    header = regular("././@LongLink", bytes(64 << 20))
    header.type = tarfile.GNUTYPE_LONGNAME
    packed = header.tobuf(tarfile.GNU_FORMAT) + bytes(64 << 20)
    with pytest.raises(ArchiveError, match="a header that is too large"):
        unpack_archive(tmp_path, gzip.compress(packed))


def test_too_many_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_FILES", 10)
    files = {str(n): b"" for n in range(11)}
    for number, packed in enumerate((zip_files(files), tar_files(files))):
        (tmp_path / str(number)).mkdir()
        with pytest.raises(ArchiveError, match="more than 10 members"):
            unpack_archive(tmp_path / str(number), packed)


def test_a_list_of_members_that_would_not_fit_into_memory(tmp_path: Path) -> None:
    packed = zip_files({"a": b"x"})
    at = packed.rindex(b"PK\x05\x06")
    lying = packed[: at + 12] + struct.pack("<L", 0xFFFF0000) + packed[at + 16 :]
    with pytest.raises(ArchiveError, match="members"):
        unpack_archive(tmp_path, lying)


def test_an_encrypted_member(tmp_path: Path) -> None:
    packed = bytearray(zip_files({"a.onnx": RELU}))
    packed[packed.index(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(ArchiveError, match="is encrypted"):
        unpack_archive(tmp_path, bytes(packed))


def test_a_damaged_member(tmp_path: Path) -> None:
    content = np.random.default_rng(1).bytes(1000)
    packed = bytearray(zip_files({"a": content}, zipfile.ZIP_STORED))
    packed[packed.index(content) + 5] ^= 1
    with pytest.raises(ArchiveError, match="is damaged"):
        unpack_archive(tmp_path, bytes(packed))
