"""Secret volumes as the kubelet writes them: each version in a folder, and a link that is replaced at once."""

import itertools
import os
from pathlib import Path

_versions = itertools.count()


def write_secret(path: Path, **contents: bytes | str) -> None:
    """Write the keys of a Secret; those of an earlier version disappear with it."""
    path.mkdir(parents=True, exist_ok=True)
    folder = path / f"..version_{next(_versions)}"
    folder.mkdir()
    for name, content in contents.items():
        data = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(data)
    before = (path / "..data").resolve() if (path / "..data").exists() else None
    link = path / "..data_tmp"
    link.symlink_to(folder.name)
    link.rename(path / "..data")
    for name in contents:
        if not (path / name).is_symlink():
            os.symlink(f"..data/{name}", path / name)
    for item in path.iterdir():
        if not item.name.startswith("..") and item.name not in contents:
            item.unlink()
    if before is not None:
        for item in before.iterdir():
            item.unlink()
        before.rmdir()
