"""Removes a stage's temporary files, including those of an earlier run that was killed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch(work: Path, prefix: str) -> Iterator[None]:
    """Remove, before and after, what has a name with `prefix` in a work folder or its folders."""
    _clear(work, prefix)
    try:
        yield
    finally:
        _clear(work, prefix)


def _clear(work: Path, prefix: str) -> None:
    for path in (*work.glob(f"{prefix}*"), *work.glob(f"*/{prefix}*")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
