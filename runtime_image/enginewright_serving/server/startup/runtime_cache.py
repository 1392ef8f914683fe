"""Keeps the kernels that TensorRT-RTX compiles from an engine, for restarts of the server's container.

The provider writes its runtime cache only when its session ends, and a container that restarts has mostly crashed. So
on the first start everything runs once in a session that then ends. The folder belongs to one engine, device and
driver; a start that did not get ready may have damaged it, so the next one removes it.
"""

import gc
import logging
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from enginewright_runtime.session.driver import Device

from enginewright_serving.transport.settings import MIB

_log: Final = logging.getLogger(__name__)
_MOST_BYTES: Final = 1024 * MIB  # /tmp counts towards the node's ephemeral storage
_STARTING: Final = ".starting"  # a file that exists until a start is ready


@dataclass(frozen=True)
class RuntimeCache:
    """The folder of one engine on one device."""

    folder: Path
    reused: bool  # it holds kernels of an earlier start

    @classmethod
    def open(cls, root: Path, engine_sha256: str, device: Device) -> Self | None:
        """Return the cache of an engine, if one can be kept here, and remove all others."""
        names = (engine_sha256, device.compute_capability or "", device.driver.version or "")
        folder = root / "-".join(names)
        try:
            _make_private(root)
            for other in root.iterdir():
                if other != folder or _is_unusable(folder):
                    _remove(other)
            folder.mkdir(exist_ok=True)
            reused = any(folder.iterdir())
            (folder / _STARTING).touch()
        except OSError as error:
            _log.warning(
                "kernels are compiled again at every start: %s: %s", root, error.strerror or error
            )
            return None
        return cls(folder, reused)

    @property
    def bytes(self) -> int:
        """The size of the folder."""
        return _size(self.folder)

    def fill(self, run_all: Callable[[], None]) -> None:
        """Have the provider write the cache: `run_all` creates a session, runs all sizes, and keeps no reference."""
        run_all()
        gc.collect()  # ends the session, even if a cycle refers to it
        if not self.bytes:
            _log.warning("the provider wrote no runtime cache to %s", self.folder)

    def keep(self) -> None:
        """Keep it for the next start: this one is ready."""
        (self.folder / _STARTING).unlink(missing_ok=True)


def _make_private(root: Path) -> None:
    """Create the folder; raise OSError for one that another user could have made, since kernels are code."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(0, "it is not a folder of this user")
    root.chmod(0o700)


def _is_unusable(folder: Path) -> bool:
    return (folder / _STARTING).exists() or _size(folder) > _MOST_BYTES


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
