"""Credentials of a source: the files of a mounted Secret."""

from dataclasses import dataclass, field
from pathlib import Path

from enginewright.contract.reasons import Reason

from enginewright_runtime.failure import StageFailure


@dataclass(frozen=True)
class Credentials:
    """A bearer token, or a user name with a password; `repr` shows neither."""

    token: str | None = field(default=None, repr=False)
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)


def read_credentials(folder: Path) -> Credentials:
    """Read the files `token`, or `username` and `password`; no folder means no credentials.

    The Secret is mounted as optional, so that its absence is told here, as a reason, instead of by
    a pod that never starts.

    Raises:
        StageFailure: SourceUnreachable, when the folder is empty or holds something else, naming
            the keys that it lacks.
    """
    keys = _keys(folder)
    if folder.is_dir() and not keys:
        raise StageFailure(
            Reason.SOURCE_UNREACHABLE,
            "the Secret that secretRef names does not exist in this namespace, or is empty",
            remedy="make it with the key token, or with the keys username and password",
        )
    token, username, password = (_read(folder / key) for key in ("token", "username", "password"))
    if keys and token is None and (username is None or password is None):
        raise StageFailure(
            Reason.SOURCE_UNREACHABLE,
            f"the Secret that secretRef names has only {', '.join(keys)}",
            remedy="give it the key token, or the keys username and password",
        )
    return Credentials(token, username, password)


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise StageFailure(
            Reason.SOURCE_UNREACHABLE, f"cannot read the credential {path.name!r}: {error}"
        ) from error


def _keys(folder: Path) -> list[str]:
    # a mounted Secret has hidden folders of the kubelet beside its keys
    return (
        sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
        if folder.is_dir()
        else []
    )
