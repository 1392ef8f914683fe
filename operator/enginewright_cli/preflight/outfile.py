"""Files that are whole or not there: written under another name, then renamed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from enginewright_cli.preflight.options import OptionError


def check_folder(option: str, path: Path) -> None:
    """See to it, before a long run, that a file can be written there.

    Raises:
        OptionError: it cannot.
    """
    folder = path.parent
    if not folder.is_dir():
        raise OptionError(f"{option} {path}: there is no folder {folder}; make it first")
    if path.is_dir():
        raise OptionError(f"{option} {path}: that is a folder; name a file")
    if not os.access(folder, os.W_OK) and not _is_device(path):
        raise OptionError(f"{option} {path}: folder {folder} is read-only; name another one")


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """Give a file to write to, which takes the place of `path` once all is written.

    Whatever goes wrong, `path` stays as it was and nothing is left beside it.

    Raises:
        OSError: there is no space, or no permission.
    """
    if _is_device(path):
        with path.open("ab") as stream:
            yield stream
        return
    whole = path.resolve()  # a link stays one
    part = whole.with_name(f".{whole.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(whole)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write(path: Path, text: str) -> None:
    """Write a text.

    Raises:
        OSError: as `replaced`.
    """
    with replaced(path) as stream:
        stream.write(text.encode())


def _is_device(path: Path) -> bool:
    """Tell whether it is there and no file, or /dev/stdout, which may lead to one."""
    return path.exists() and (not path.is_file() or path.absolute().is_relative_to("/dev"))
