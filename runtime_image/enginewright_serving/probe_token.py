"""The secret by which a server recognizes the golden inferences of its own sidecar.

They bypass its limits and are not counted, so no other client may send one. Both containers share /tmp, an emptyDir
that outlives restarts of either; the first one to start writes the token.
"""

import logging
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

_log: Final = logging.getLogger(__name__)
_BYTES: Final = 32
HEADER: Final = "Enginewright-Probe"


def read_or_create(path: Path) -> str:
    """Return the pod's token; "" if it cannot be shared, and then no request bypasses the limits."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _create(path)
        return path.read_text()
    except OSError as error:
        _log.warning(
            "golden inferences are subject to the request limits: %s: %s", path, error.strerror
        )
        return ""


def _create(path: Path) -> None:
    token = secrets.token_hex(_BYTES)
    draft = path.with_name(f"{path.name}.{token[:16]}")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(file, token.encode())
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.close(file)
        draft.unlink()
