"""Opens files in folders that are not trusted, or that others write to: without following links or waiting."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_plain(path: Path) -> BinaryIO:
    """Open a regular file to read; raises FileNotFoundError also for a link, a folder, a pipe or a device."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:
            raise FileNotFoundError(errno.ENOENT, "not a regular file", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")
