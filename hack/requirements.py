"""What pyproject.toml requires, by whom and why: the reason is the comment beside the first pin."""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parent.parent / "pyproject.toml"
_NAME: Final = r"[A-Za-z][\w-]*"
_BESIDE: Final = re.compile(rf'"({_NAME})(?:\[\w+\])?[><=][^"]*"\]?,?  # (.+)$', re.MULTILINE)


def rows(text: str) -> list[Sequence[str]]:
    """Return package, extras and reason of each requirement.

    Raises:
        ValueError: A requirement has no reason, or a second one.
    """
    project = tomllib.loads(text)["project"]
    extras: dict[str, list[str]] = {}
    for extra, needed in {
        "all": project["dependencies"],
        **project["optional-dependencies"],
    }.items():
        for each in needed:
            name = re.match(_NAME, each)
            if name and name[0] != project["name"]:
                extras.setdefault(name[0], []).append(extra)
    reasons = _BESIDE.findall(text)
    if sorted(name for name, _ in reasons) != sorted(extras):
        raise ValueError(f"one comment for each of {sorted(extras)}, not {sorted(reasons)}")
    why = dict(reasons)
    return [(name, ", ".join(used), why[name]) for name, used in extras.items()]
