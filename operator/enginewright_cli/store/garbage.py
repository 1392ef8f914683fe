"""What `store gc` is asked to remove: checked before the store is opened."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from enginewright.api.scalars import exact_quantity, long_duration
from enginewright_contract.base import first_problem
from enginewright_contract.collection import (
    KEPT_CHARACTERS,
    LEAST_AGE_SECONDS,
    MOST_KEPT,
    CollectTask,
)
from pydantic import ValidationError

from enginewright_cli.reporting import CommandError, WrongUsage, unreadable

_KEY: Final = re.compile(rf"[0-9a-f]{{{KEPT_CHARACTERS},64}}")
_LARGEST_FILE: Final = 16 << 20  # bytes
_LARGEST_NUMBER: Final = 1 << 53
_HOW: Final = (
    "pass --keep-file with the keys that are needed, one a line, or the task of the operator's latest Job"
    " with stage collect in this namespace (its variable ENGINEWRIGHT_TASK, followed by those with numbers);"
    " or --keep-none if no model"
    " needs any of them"
)


@dataclass(frozen=True)
class GarbageOptions:
    """The options of the command line."""

    keep_file: Path | None
    keep_none: bool
    unused_for: str | None
    max_size: str | None

    def task(self, *, delete: bool) -> CollectTask:
        """Return what to remove; without limits, no artefact. Raises CommandError."""
        has_limits = self.unused_for is not None or self.max_size is not None
        if self.keep_file is not None and self.keep_none:
            raise WrongUsage("--keep-file and --keep-none exclude each other: pass one of them")
        if has_limits and self.keep_file is None and not self.keep_none:
            raise WrongUsage(
                "--unused-for and --max-size remove complete artefacts, and a store does not tell which of"
                f" them models need: {_HOW}"
            )
        if not has_limits and (self.keep_file is not None or self.keep_none):
            raise WrongUsage(
                "it is not said which of the artefacts that are not needed go: pass --unused-for or"
                " --max-size, or both"
            )
        none = _Kept((), datetime.now(UTC))
        kept = none if self.keep_file is None else _read_kept(self.keep_file)
        return CollectTask(
            job="by-hand",
            keep=kept.keys,
            as_of=kept.as_of,
            cluster=kept.cluster,
            min_age_seconds=LEAST_AGE_SECONDS,
            max_age_seconds=None if self.unused_for is None else _seconds(self.unused_for),
            max_bytes=None if self.max_size is None else _bytes(self.max_size),
            dry_run=not delete,
        )


@dataclass(frozen=True)
class _Kept:
    keys: tuple[str, ...]  # their beginnings
    as_of: datetime  # when they were listed
    cluster: str | None = None  # whose needs they are, if stated


def _read_kept(path: Path) -> _Kept:
    try:
        with path.open("rb") as reader:
            text = reader.read(_LARGEST_FILE + 1).decode()
            listed = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError as error:
        raise unreadable(path, error) from None
    except UnicodeDecodeError:
        raise CommandError(f"--keep-file {path} is not a text: {_HOW}") from None
    if len(text) > _LARGEST_FILE:
        raise CommandError(f"--keep-file {path} has more than {_LARGEST_FILE >> 20} MiB: {_HOW}")
    if text.lstrip().startswith("{"):
        return _of_task(path, text)
    keys = []
    for number, line in enumerate(text.splitlines(), 1):
        key = line.partition("#")[0].strip()
        if key and not _KEY.fullmatch(key):
            raise CommandError(
                f"line {number} of --keep-file {path} is not a key: write its first {KEPT_CHARACTERS} to"
                " 64 characters, 0-9 and a-f, nothing else, or a comment after #"
            )
        keys += [key[:KEPT_CHARACTERS]] if key else []
    if not keys:
        raise CommandError(
            f"--keep-file {path} has no key, as if nothing were needed: if that is so, pass --keep-none"
        )
    if len(keys) > MOST_KEPT:
        raise CommandError(f"--keep-file {path} has more than {MOST_KEPT} keys")
    return _Kept(tuple(keys), listed)


def _of_task(path: Path, text: str) -> _Kept:
    try:
        task = CollectTask.model_validate_json(text)
    except ValidationError as error:
        raise CommandError(
            f"--keep-file {path} is not the task of a collection: {first_problem(error)}; {_HOW}"
        ) from None
    return _Kept(task.keep, task.as_of, task.cluster)


def _seconds(text: str) -> float:
    try:
        seconds = long_duration(text).total_seconds()
    except ValueError:
        raise WrongUsage(f"--unused-for {text!r} is not a duration: write 30d or 12h") from None
    if seconds < LEAST_AGE_SECONDS:
        least = f"{LEAST_AGE_SECONDS / 3600:.0f}h"
        raise WrongUsage(
            f"--unused-for {text} is too short: what was used within {least} is never removed"
        )
    return seconds


def _bytes(text: str) -> int:
    try:
        count = int(exact_quantity(text))
    except ValueError:
        count = -1
    if not 0 <= count < _LARGEST_NUMBER:
        raise WrongUsage(f"--max-size {text!r} is not a size: write 50Gi or 200G")
    return count
