"""Atomic writes: a file is written under a temporary name, then renamed."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from enginewright_cli.preflight.options import OptionError


def check_place(option: str, path: Path, sources: Sequence[str]) -> None:
    """Verify, before a long run, that a file can be written there, and is none of the models. Raises OptionError."""
    folder = path.parent
    if not folder.is_dir():
        raise OptionError(f"{option} {path}: folder {folder} does not exist; create it first")
    if path.is_dir():
        raise OptionError(f"{option} {path} is a folder; give a file")
    if not os.access(folder, os.W_OK) and not _is_device(path):
        raise OptionError(f"{option} {path}: folder {folder} is not writable; choose another one")
    if any(_is_source(path, source) for source in sources):
        raise OptionError(
            f"{option} {path} is the source model, which is never changed; give another file"
        )


def _is_source(out: Path, source: str) -> bool:
    path = Path(source)
    if "://" in source or not out.exists():
        return False
    return any(item.samefile(out) for item in (path, path / out.name) if item.exists())


@contextmanager
def replace(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that replaces `path` once it is complete; on any error `path` is unchanged. Raises OSError."""
    if _is_device(path):
        with path.open("ab") as stream:
            yield stream
        return
    resolved = path.resolve()  # a symbolic link stays one
    part = resolved.with_name(f".{resolved.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(resolved)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write(path: Path, text: str) -> None:
    """Write a text. Raises OSError."""
    with replace(path) as stream:
        stream.write(text.encode())


def _is_device(path: Path) -> bool:
    """Return whether the path is not a regular file, or is in /dev, which may link to one."""
    return path.exists() and (not path.is_file() or path.absolute().is_relative_to("/dev"))
