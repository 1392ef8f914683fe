"""Unpacks untrusted archives: .zip, .tar, .tar.gz.

Nothing is written outside the folder, over another file, or without a limit; targets replace links,
because onnx and ONNX Runtime reject linked weights. zipfile and tarfile only read: names, types and
sizes are checked here, and `DiskQuota` counts every byte.
"""

import gzip
import io
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, Literal, Protocol, TypeAlias

from typing_extensions import override

from enginewright_runtime.core.digests import CHUNK
from enginewright_runtime.sources.base import MOST_FILES, unsafe
from enginewright_runtime.sources.quota import DiskQuota

Kind: TypeAlias = Literal["zip", "tar", "tar.gz"]
_FREE_BYTES: Final = 256 << 20  # a small archive of zeros may exceed the ratio
_LARGEST_RATIO: Final = 200  # weights hardly compress; a higher ratio is a decompression bomb
_LARGEST_READ: Final = 16 << 20  # of a header, which tarfile reads into memory
_DIRECTORY_BYTES_PER_FILE: Final = 1 << 10  # of the central directory, read into memory
_LINK_DEPTH: Final = 40
_ENCRYPTED: Final = 0x1
_END: Final = struct.Struct("<4s4H2LH")  # of central directory, zip
_END64: Final = struct.Struct("<4sQ2H2L4Q")
_LOCATOR_BYTES: Final = 20
_SKIPPED: Final = ("__MACOSX/",)


class ArchiveError(Exception):
    """The archive is damaged, dangerous or unsupported; the message continues "the archive"."""


def kind_of(path: Path) -> Kind | None:
    """Return the archive format of a file, by its content, if it is an archive."""
    with path.open("rb") as reader:
        start = reader.read(tarfile.BLOCKSIZE)
    if start.startswith(b"PK\x03\x04"):
        return "zip"
    if _is_tar_header(start):
        return "tar"
    if start.startswith(b"\x1f\x8b"):
        try:
            with gzip.open(path) as unzipped:
                return "tar.gz" if _is_tar_header(unzipped.read(tarfile.BLOCKSIZE)) else None
        except (OSError, EOFError, zlib.error):
            return None
    return None


def _is_tar_header(block: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(block, tarfile.ENCODING, "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def unpack(archive: Path, folder: Path, quota: DiskQuota) -> None:
    """Unpack into an empty folder; raises ArchiveError, or StageFailure: ModelTooLarge or StorageFull."""
    bounded = _Bounded(folder, quota, archive.stat().st_size)
    with _as_archive_error():
        if kind_of(archive) == "zip":
            _check_directory(archive)
            with zipfile.ZipFile(archive) as opened:
                _unpack_zip(opened, bounded)
        else:
            _unpack_tar(archive, bounded)
        bounded.resolve_links()


@contextmanager
def _as_archive_error() -> Iterator[None]:
    try:
        yield
    except NotImplementedError:
        raise ArchiveError("uses an unsupported compression; use deflate") from None
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, struct.error) as error:
        raise ArchiveError(f"is damaged or cut off ({error})") from None
    except (gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise ArchiveError(f"is damaged ({error})") from None


class _Reader(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Bounded:
    def __init__(self, folder: Path, quota: DiskQuota, archive_size: int) -> None:
        self._folder = folder
        self._quota = quota
        self._most = _FREE_BYTES + _LARGEST_RATIO * archive_size
        self._written = 0
        self._members = 0
        self._links: dict[str, str] = {}  # path of the link -> path of its target

    def path(self, name: str) -> str | None:
        self._members += 1
        if self._members > MOST_FILES:
            raise ArchiveError(f"has more than {MOST_FILES} members")
        plain = PurePosixPath(name).as_posix() if not name.startswith("/") else name
        if cause := unsafe(plain):
            raise ArchiveError(f"has a member {name!r:.300}, whose name {cause}")
        # AppleDouble files of macOS: only metadata
        hidden = PurePosixPath(plain).name.startswith("._")
        return None if hidden or plain.startswith(_SKIPPED) else plain

    def write(self, path: str, size: int, reader: _Reader) -> None:
        """Write one member; its declared size is not trusted."""
        self._quota.check(path, size)
        target = self._target(path)
        with target.open("xb") as writer:
            while chunk := reader.read(CHUNK):
                self._written += len(chunk)
                if self._written > self._most:
                    raise ArchiveError(
                        f"grows to more than {_LARGEST_RATIO} times its size when it is unpacked"
                    )
                self._quota.add(path, len(chunk))
                writer.write(chunk)

    def link(self, path: str, to: str, *, symbolic: bool) -> None:
        """Record a link; it is resolved after all members are written."""
        start = PurePosixPath(path).parent if symbolic else PurePosixPath()
        joined = os.path.normpath(start / to)
        if to.startswith("/") or unsafe(joined):
            raise ArchiveError(f"has a link {path!r} that leads out of it")
        self._target(path)
        self._links[path] = joined

    def resolve_links(self) -> None:
        for path, to in self._links.items():
            end = to
            for _ in range(_LINK_DEPTH):
                end = self._links.get(end, end)
            origin = self._folder / end
            if end in self._links or origin.is_symlink() or not origin.is_file():
                raise ArchiveError(f"has a link {path!r} to {to!r}, which is no file in it")
            if os.path.lexists(self._folder / path):
                raise ArchiveError(f"has two members {path!r}")
            os.link(origin, self._folder / path)

    def _target(self, path: str) -> Path:
        target = self._folder / path
        if path in self._links or os.path.lexists(target):
            raise ArchiveError(f"has two members {path!r}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ArchiveError(f"has a file where {path!r} needs a folder") from None
        return target


def _check_directory(archive: Path) -> None:
    """Reject a central directory that is too large for memory, before zipfile reads it.

    As for zipfile, the end record is last, or before a comment; zip64's precedes it (APPNOTE.TXT 4.3.14 to 4.3.16).
    """
    with archive.open("rb") as reader:
        size = reader.seek(0, os.SEEK_END)
        reader.seek(max(0, size - _END.size - _END64.size - _LOCATOR_BYTES - 0xFFFF))
        tail = reader.read()
    at = len(tail) - _END.size
    if not tail.startswith(b"PK\x05\x06", max(at, 0)) or not tail.endswith(b"\0\0"):
        at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) < at + _END.size:
        raise ArchiveError("is damaged or cut off (its list of members is missing)")
    *_, members, listed, _, _ = _END.unpack_from(tail, at)
    at64 = at - _LOCATOR_BYTES - _END64.size
    if at64 >= 0 and tail.startswith(b"PK\x06\x06", at64):
        *_, members, listed, _ = _END64.unpack_from(tail, at64)
    if members > MOST_FILES or listed > MOST_FILES * _DIRECTORY_BYTES_PER_FILE:
        raise ArchiveError(f"has more than {MOST_FILES} members")


def _unpack_zip(opened: zipfile.ZipFile, bounded: _Bounded) -> None:
    for member in opened.infolist():
        path = None if member.is_dir() else bounded.path(member.filename)
        if path is None:
            continue
        if member.flag_bits & _ENCRYPTED:
            raise ArchiveError("is encrypted; pack it without a password")
        kind = stat.S_IFMT(member.external_attr >> 16)  # Unix file type; 0 from other systems
        with opened.open(member) as reader:
            if kind == stat.S_IFLNK:
                bounded.link(path, reader.read(4096).decode(), symbolic=True)
            elif kind in {0, stat.S_IFREG}:
                bounded.write(path, member.file_size, reader)
            else:
                raise ArchiveError(f"has a member {path!r} that is a device or the like")


def _unpack_tar(archive: Path, bounded: _Bounded) -> None:
    with archive.open("rb") as raw:
        compressed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        content = _ShortReads(gzip.GzipFile(fileobj=raw) if compressed else raw)
        with tarfile.open(fileobj=content, mode="r:") as opened:
            while (member := opened.next()) is not None:
                _unpack_member(opened, member, bounded)
                opened.members.clear()  # type: ignore[attr-defined]  # else all stay in memory


def _unpack_member(opened: tarfile.TarFile, member: tarfile.TarInfo, bounded: _Bounded) -> None:
    path = None if member.isdir() else bounded.path(member.name)
    if path is None:
        return
    if member.issym() or member.islnk():
        bounded.link(path, member.linkname, symbolic=member.issym())
    elif member.isreg() and (reader := opened.extractfile(member)) is not None:
        bounded.write(path, member.size, reader)
    else:
        raise ArchiveError(f"has a member {path!r} that is a device or the like")


class _ShortReads(io.BufferedIOBase):
    """A file for tarfile that rejects reads larger than any valid header needs."""

    def __init__(self, content: "BinaryIO | gzip.GzipFile") -> None:
        super().__init__()
        self._content = content

    @override
    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _LARGEST_READ:
            raise ArchiveError("has a header that is too large")
        return self._content.read(size)

    @override
    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._content.seek(offset, whence)

    @override
    def tell(self) -> int:
        return self._content.tell()
