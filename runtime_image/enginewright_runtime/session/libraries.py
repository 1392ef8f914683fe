"""Finds missing dependencies of native libraries, and the wheel that owns a module, without loading.

If a provider's libraries are missing, ONNX Runtime raises no exception but runs on the CPU, and the
loader names only the first one. `ldd` searches as the loader does, and names all of them.
"""

import os
import re
import subprocess
from collections.abc import Iterable
from functools import cache
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Final

_SECONDS: Final = 20.0
_LINE: Final = re.compile(r"^\s*(?P<name>\S+) => (?P<path>not found|/\S+)", re.MULTILINE)


def resolve(library: Path) -> dict[str, Path | None]:
    """Return the dependencies of `library`, also indirect ones, name -> file or None where missing; none if ldd fails."""
    try:
        done = subprocess.run(
            ["ldd", str(library)],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
            env=os.environ | {"LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return {
        line["name"]: None if line["path"] == "not found" else Path(line["path"])
        for line in _LINE.finditer(done.stdout)
    }


def missing(library: Path, but: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the names of missing libraries that `library` needs, except those in `but`."""
    allowed = set(but)
    return tuple(
        name for name, path in resolve(library).items() if path is None and name not in allowed
    )


def wheel_version(*modules: str) -> str | None:
    """Return the version of the wheel that owns the first of `modules` that is installed."""
    owner = next((distribution for name in modules for distribution in owners(name)), None)
    return owner.version if owner else None


@cache
def owners(module: str) -> tuple[Distribution, ...]:
    """Return the distributions that own a top-level module, sorted; faster than `packages_distributions`."""
    owning: dict[str, Distribution] = {}
    for distribution in distributions():
        # an interrupted installation leaves no METADATA, and so no name
        if distribution.name and _owns(distribution, module):
            owning.setdefault(distribution.name, distribution)
    return tuple(owning[name] for name in sorted(owning))


def _owns(distribution: Distribution, module: str) -> bool:
    if declared := (distribution.read_text("top_level.txt") or "").split():
        return module in declared
    record = f"\n{distribution.read_text('RECORD') or ''}"
    return f"\n{module}/" in record or f"\n{module}." in record
