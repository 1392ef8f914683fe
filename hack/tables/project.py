"""The project's requirements with their reasons, and its pages with their questions."""

import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from os.path import relpath
from pathlib import Path
from typing import Final

from hack.tables.markdown import table
from tests.support import thorough

ROOT: Final = Path(__file__).resolve().parents[2]
SITE: Final = ROOT / "zensical.toml"
_LIST: Final = "reference"  # folder of the page that lists all
_LINK: Final = re.compile(r"\[([^]]+)\]\([^)]+\)")
_NAME: Final = r"[A-Za-z][\w-]*"
_BESIDE: Final = re.compile(rf'"({_NAME})(?:\[\w+\])?[><=][^"]*"\]?,?  # (.+)$', re.MULTILINE)


def dependencies() -> str:
    """Return the Python packages, the extras that require them, and the reasons."""
    rows = requirements((ROOT / "pyproject.toml").read_text())
    return table(("package", "extras", "why"), rows)


def requirements(text: str) -> list[Sequence[str]]:
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
        for item in needed:
            name = re.match(_NAME, item)
            if name and name[0] != project["name"]:
                extras.setdefault(name[0], []).append(extra)
    reasons = _BESIDE.findall(text)
    if sorted(name for name, _ in reasons) != sorted(extras):
        raise ValueError(f"one comment for each of {sorted(extras)}, not {sorted(reasons)}")
    why = dict(reasons)
    return [(name, ", ".join(used), why[name]) for name, used in extras.items()]


def thorough_tests() -> str:
    """Return what `make test` leaves to `make test-all`, and why."""
    rows = []
    for why, tests in thorough.TESTS.items():
        counts = Counter(test.partition("::")[0] for test in tests)
        named = (
            f"`{file}`" if file in tests else f"{count} of `{file}`"
            for file, count in counts.items()
        )
        rows.append((why, ", ".join(named)))
    layers = Counter(test.partition("/")[0] for test in thorough.SPREAD)
    spread = ", ".join(f"of {count} in `{layer}`" for layer, count in layers.items())
    rows.append(("further cases, which find the same faults", f"three of four cases {spread}"))
    return table(("why", "tests"), rows)


def pages() -> str:
    """Return the question at the start of each page, in the site's order.

    Raises:
        ValueError: A page does not start with a question.
    """
    site = tomllib.loads(SITE.read_text())["project"]
    names = [name for part in site["nav"] for group in part.values() for name in group]
    texts = {name: (SITE.parent / site["docs_dir"] / name).read_text() for name in names}
    starts = {name: re.match(r"# (.+)\n\n([^?]+\?)\s", text) for name, text in texts.items()}
    if silent := [name for name, start in starts.items() if not start]:
        raise ValueError(f"{silent} do not start with the question that they answer")
    rows = (
        (" ".join(_LINK.sub(r"\1", start[2]).split()), f"[{start[1]}]({relpath(name, _LIST)})")
        for name, start in starts.items()
        if start
    )
    return table(("question", "page"), rows)
