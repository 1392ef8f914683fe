"""Removes artefacts from a volume although Jobs may find them at that very moment.

One rename moves an artefact to `tmp/`, so that readers see all of it or nothing. Jobs that rely on an
artefact touch its manifest before they verify it. So the manifest's time, read again after the rename,
tells whether a Job may have verified it before it was gone: then it goes back, unless another one has
been published in its place. A Job that touches it later does not find it.

Clients of network file systems cache names, and may find the artefact at its earlier place for up to a
minute. So its time is read once more after that.

The folder's name in `tmp/` has the artefact's kind and key and the time of its manifest, so that a sweep of
`tmp/` after an interrupted collection decides likewise.
"""

import errno
import logging
import os
import re
import secrets
import shutil
import time
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from enginewright_contract.manifest import MANIFEST_NAME

from enginewright_runtime.core import digests
from enginewright_runtime.core.plain_files import open_plain
from enginewright_runtime.store.artifacts import ENGINE, PREPARED
from enginewright_runtime.store.medium import Stored

_log: Final = logging.getLogger(__name__)
_SET_ASIDE: Final = re.compile(
    rf"removed-(?P<kind>{PREPARED.folder}|{ENGINE.folder})"
    r"-(?P<key>[0-9a-f]{64})-(?P<time>[0-9]{1,20})-[0-9a-f]{16}"
)
# as long as NFS's clients may use attributes and names that they have looked up: acdirmax, acregmax
SETTLED_AFTER_SECONDS: Final = 60.0
TAKEN: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST})


def find_last_use(folder: Path) -> datetime | None:
    """Return when the artefact in a folder was last used, if it has a manifest."""
    try:
        return datetime.fromtimestamp(os.lstat(folder / MANIFEST_NAME).st_mtime, UTC)
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_set_aside(name: str) -> bool:
    """Return whether a name in `tmp/` is that of an artefact that is being removed."""
    return _SET_ASIDE.fullmatch(name) is not None


def discard(root: Path, tmp: Path, unused: Sequence[Stored], settled_after: float) -> list[Stored]:
    """Remove artefacts that stay unused for `settled_after` seconds; return the removed ones."""
    aside: deque[tuple[Stored, Path]] = deque()
    removed = []
    try:
        for stored in unused:
            if (moved := _set_aside(root, tmp, stored)) is not None:
                aside.append((stored, moved))
        if aside and settled_after:
            _log.info("waiting %.0f s for Jobs that may have found them", settled_after)
            time.sleep(settled_after)
        while aside:
            key, moved = aside.popleft()
            if finish(root, moved):
                removed.append(key)
    except BaseException:  # also the end of the process by a signal
        for _, moved in aside:
            _put_back(root, moved)
        raise
    return removed


def finish(root: Path, aside: Path) -> bool:
    """Remove an artefact that was set aside, or put it back; return whether it is gone."""
    if _read_time(aside) not in {None, int(_parse(aside)["time"])}:
        _put_back(root, aside)
        return False
    shutil.rmtree(aside, ignore_errors=True)
    return not os.path.lexists(aside)


def _put_back(root: Path, aside: Path) -> None:
    name = _parse(aside)
    shown = f"{name['kind']} {name['key'][:12]}"
    try:
        aside.rename(root / name["kind"] / name["key"])
    except OSError as error:
        if error.errno not in TAKEN:
            raise
        _log.info("%s was published again", shown)
        shutil.rmtree(aside, ignore_errors=True)
    else:
        digests.sync_folder(root / name["kind"])
        _log.info("%s stays", shown)


def _parse(aside: Path) -> re.Match[str]:
    match = _SET_ASIDE.fullmatch(aside.name)
    if match is None:
        raise ValueError(f"{aside.name} was not set aside")
    return match


def _set_aside(root: Path, tmp: Path, stored: Stored) -> Path | None:
    artifact = stored.artifact
    folder = root / artifact.folder
    modified = _read_time(folder)
    if modified is None or find_last_use(folder) != stored.used:
        return None
    mark = f"{artifact.kind.folder}-{artifact.key}-{modified}"
    aside = tmp / f"removed-{mark}-{secrets.token_hex(8)}"
    try:
        os.utime(folder)  # so that no sweep removes it meanwhile
        folder.rename(aside)
    except FileNotFoundError:
        return None
    except PermissionError as error:
        _log.warning("%s stays: %s", artifact.folder, error.strerror)
        return None
    if _read_time(aside) != modified:
        _put_back(root, aside)
        return None
    return aside


def _read_time(folder: Path) -> int | None:
    """Return the time of a manifest in ns; opened, because a file server then reports the latest."""
    try:
        with open_plain(folder / MANIFEST_NAME) as reader:
            return os.fstat(reader.fileno()).st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return None
