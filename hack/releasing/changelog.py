"""One version's part of CHANGELOG.md: what the tag says, and what Artifact Hub shows."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_SECTION: Final = re.compile(r"^## (.+)\n", re.MULTILINE)
_GROUP: Final = re.compile(r"^### (.+)\n", re.MULTILINE)
_LINK: Final = re.compile(r"\[([^]]+)\]\([^)]+\)")
_SENTENCE_END: Final = re.compile(r"(?<=[.:;])\s")
_DATE: Final = r"\d{4}-\d\d-\d\d"
_KINDS: Final = ("added", "changed", "deprecated", "removed", "fixed", "security")  # Artifact Hub's


@dataclass(frozen=True)
class Section:
    """The changes of one version by kind, in the changelog's order."""

    version: str
    date: str
    changes: Mapping[str, tuple[str, ...]]

    @property
    def tag_text(self) -> str:
        """Return the text of the annotated tag; Git would drop lines that begin with `#`."""
        parts = [f"Enginewright {self.version}", self.date]
        for kind, entries in self.changes.items():
            parts += [kind, "\n".join(f"- {entry}" for entry in entries)]
        return "\n\n".join(parts) + "\n"

    @property
    def annotation(self) -> list[dict[str, str]]:
        """Return the first sentence of each change, as `artifacthub.io/changes` lists them."""
        return [
            {"kind": kind.lower(), "description": _SENTENCE_END.split(entry)[0].rstrip(":;")}
            for kind, entries in self.changes.items()
            for entry in entries
        ]


def read_section(text: str, version: str) -> Section:
    """Return a version's section of a changelog: `## VERSION - YYYY-MM-DD`.

    Raises:
        ValueError: There is none with a date, it is empty, or there are unreleased changes beside it.
    """
    parts = _SECTION.split(text)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    if sections.get("Unreleased", "").strip():
        raise ValueError(
            f"CHANGELOG.md has changes under `## Unreleased`: put them under `## {version} - DATE`"
        )
    for title, body in sections.items():
        if named := re.fullmatch(rf"{re.escape(version)} - ({_DATE})", title):
            return Section(version, named[1], _read_changes(body, version))
    raise ValueError(f"CHANGELOG.md has no line `## {version} - YYYY-MM-DD`: write its section")


def _read_changes(body: str, version: str) -> dict[str, tuple[str, ...]]:
    _, *parts = _GROUP.split(body)
    changes = {}
    for kind, entries in zip(parts[::2], parts[1::2], strict=True):
        if kind.lower() not in _KINDS:
            raise ValueError(
                f"CHANGELOG.md, {version}: `### {kind}` is none of {', '.join(_KINDS)}"
            )
        texts = (" ".join(entry.split()) for entry in re.split(r"^- ", entries, flags=re.MULTILINE))
        changes[kind] = tuple(_LINK.sub(r"\1", entry) for entry in texts if entry)
    if not any(changes.values()):
        raise ValueError(f"CHANGELOG.md, {version}: the section has no change")
    return changes
