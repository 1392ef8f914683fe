"""Files cut into pieces that are compressed, checked and unpacked independently of each other.

A machine with a GPU may be reached only through small transfers, in any order, and may be gone at any
moment. So each piece is an archive of byte ranges of files, with a digest: whatever has arrived is
unpacked, and nothing is copied twice. Standard library only: it runs before anything is installed.
"""

import hashlib
import io
import json
import lzma
import os
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

INDEX: Final = "index.json"
LIMIT: Final = 45 << 20  # bytes of a piece at most
_RANGE: Final = 2 << 20  # bytes of a file that one member of an archive holds at most
# What the compressor may still hold back of what it was given, plus its own overhead
_PENDING: Final = _RANGE + (1 << 20)
_DICTIONARY: Final = 128 << 20  # bytes: libraries repeat kernels far apart
# Preset 1: the higher ones take five times as long for a tenth less
_FILTERS: Final = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": _DICTIONARY}]


class PieceError(Exception):
    """A piece or a file is not what the index says; the message names it and the remedy."""


@dataclass(frozen=True)
class Piece:
    """One archive."""

    name: str
    group: str
    size: int  # bytes
    sha256: str


@dataclass(frozen=True)
class Packed:
    """One file that the pieces of a group contain."""

    path: str  # relative
    group: str
    size: int  # bytes
    sha256: str
    executable: bool = False


@dataclass(frozen=True)
class Index:
    """The packed groups in order, and the machine that they are for."""

    python: str  # "3.12"
    compute_capability: str  # "9.0"
    pieces: tuple[Piece, ...]
    files: tuple[Packed, ...]
    versions: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "Index":
        """Read the index of a folder of pieces.

        Raises:
            PieceError: there is none, or it cannot be read.
        """
        try:
            raw = json.loads((folder / INDEX).read_text())
            return cls(
                raw["python"],
                raw["compute_capability"],
                tuple(Piece(**item) for item in raw["pieces"]),
                tuple(Packed(**item) for item in raw["files"]),
                raw["versions"],
            )
        except FileNotFoundError:
            raise PieceError(
                f"{folder} has no {INDEX}: run `hack/gpu-proof pack`, and copy its folder here"
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PieceError(f"{folder / INDEX} cannot be read ({error}): copy it again") from error

    def write(self, folder: Path) -> None:
        """Write the index beside its pieces."""
        (folder / INDEX).write_text(json.dumps(asdict(self), indent=1) + "\n")

    def groups(self) -> tuple[str, ...]:
        """Return the names of the groups in the order of their pieces."""
        return tuple(dict.fromkeys(piece.group for piece in self.pieces))


@dataclass(frozen=True)
class Source:
    """One file to pack: from where, and under which path."""

    file: Path
    path: str


def pack(
    group: str, sources: Sequence[Source], folder: Path, limit: int = LIMIT
) -> tuple[list[Piece], list[Packed]]:
    """Write the pieces of a group.

    Args:
        group: its name.
        sources: its files, in their order.
        folder: for the pieces.
        limit: bytes of a piece at most.

    Returns:
        The pieces and the files.
    """
    pieces: list[Piece] = []
    files: list[Packed] = []
    writer: _Writer | None = None
    for source in sources:
        digest, size = hashlib.sha256(), source.file.stat().st_size
        for offset, content in _ranges(source.file):
            digest.update(content)
            if writer is not None and writer.size + _PENDING > limit:
                pieces.append(writer.close())
                writer = None
            if writer is None:
                writer = _Writer(folder, f"{group}-{len(pieces) + 1:02d}.tar.xz", group)
            writer.add(f"{source.path}@{offset}", content)
        executable = os.access(source.file, os.X_OK)
        files.append(Packed(source.path, group, size, digest.hexdigest(), executable))
    if writer is not None:
        pieces.append(writer.close())
    return pieces, files


def _ranges(file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the offsets and contents of a file's ranges; one empty range of an empty file."""
    offset = 0
    with file.open("rb") as stream:
        while content := stream.read(_RANGE):
            yield offset, content
            offset += len(content)
    if offset == 0:
        yield 0, b""


class _Counted:
    """A file whose size and digest are known while it is being written."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self.size = 0
        self.digest = hashlib.sha256()

    def write(self, content: bytes) -> int:
        self.size += len(content)
        self.digest.update(content)
        return self._file.write(content)

    def close(self) -> None:
        self._file.close()


class _Writer:
    """One piece that is being written."""

    def __init__(self, folder: Path, name: str, group: str) -> None:
        self._name, self._group = name, group
        self._raw = _Counted(folder / name)
        # both are closed by `close`; `write` is all that LZMAFile calls
        self._compressed = lzma.LZMAFile(self._raw, "w", filters=_FILTERS)  # type: ignore[arg-type]  # noqa: SIM115 - see above
        self._archive = tarfile.open(  # noqa: SIM115 - see above
            fileobj=self._compressed, mode="w|", format=tarfile.GNU_FORMAT
        )

    @property
    def size(self) -> int:
        """Return the bytes that are written so far, less than what was added."""
        return self._raw.size

    def add(self, name: str, content: bytes) -> None:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        self._archive.addfile(member, io.BytesIO(content))

    def close(self) -> Piece:
        self._archive.close()
        self._compressed.close()
        self._raw.close()
        return Piece(self._name, self._group, self._raw.size, self._raw.digest.hexdigest())


def has_arrived(folder: Path, piece: Piece) -> bool:
    """Return whether a piece has arrived completely; while it is copied, it is shorter."""
    try:
        return (folder / piece.name).stat().st_size >= piece.size
    except OSError:
        return False


def unpack(folder: Path, pieces: Iterable[Piece], target: Path, state: Path) -> None:
    """Unpack pieces that have arrived, each once, side by side.

    Args:
        folder: where the pieces are.
        pieces: which of them.
        target: folder that their files are written to.
        state: folder that remembers what is unpacked.

    Raises:
        PieceError: a piece is damaged; the others are unpacked.
    """
    state.mkdir(parents=True, exist_ok=True)
    due = [item for item in pieces if not (state / item.sha256).exists()]
    if not due:
        return
    with ProcessPoolExecutor(max_workers=min(len(due), os.cpu_count() or 1)) as pool:
        results = [pool.submit(_unpack_one, folder / item.name, item, target) for item in due]
        failed: list[BaseException] = []
        for piece, result in zip(due, results, strict=True):
            if error := result.exception():
                failed.append(error)
            else:
                (state / piece.sha256).touch()
    if failed:
        raise failed[0]


def _unpack_one(path: Path, piece: Piece, target: Path) -> None:
    if (actual := digest_of(path)) != piece.sha256:
        raise PieceError(
            f"{path} is damaged: its sha256 is {actual}, not {piece.sha256}; copy it again"
        )
    try:
        with tarfile.open(path, "r:xz") as archive:
            for member in archive:
                name, _, offset = member.name.rpartition("@")
                content = archive.extractfile(member)
                if content is not None:
                    _write_range(target / name, int(offset), content.read())
    except OSError as error:
        raise PieceError(
            f"{path} cannot be unpacked to {target}: {error.strerror or error}; free the disk, then run again"
        ) from error


def _write_range(path: Path, offset: int, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        written = 0
        while written < len(content):
            written += os.pwrite(file, content[written:], offset + written)
    finally:
        os.close(file)


def verify(files: Iterable[Packed], target: Path) -> None:
    """Check that all files are there as they were packed.

    Raises:
        PieceError: the first file that is not.
    """
    for file in files:
        path = target / file.path
        if not path.is_file() or path.stat().st_size != file.size:
            raise PieceError(f"{path} is missing or not whole: delete {target}, then run again")
        if digest_of(path) != file.sha256:
            raise PieceError(f"{path} is damaged: delete {target}, then run again")
        if file.executable:
            path.chmod(0o755)


def digest_of(path: Path) -> str:
    """Return the sha256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
