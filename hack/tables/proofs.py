"""Tables for docs/ of what the tests cover, read from their comments and from the states they reach.

`# fault: SECTION | FAULT | DETECTED BY | AFTER` and `# event: SECTION | EVENT | SERVES | SHOWS` are
written above the test that covers the row, with further lines indented; above further tests of the
same row, only the first two parts are written.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from hack.tables.markdown import table

TESTS: Final = Path(__file__).resolve().parents[2] / "tests"
COMPACT: Final = "Hostile"  # section of hostile clients, whose tests have descriptive names
LAYERS: Final = ("unit", "integration", "apiserver", "cluster", "e2e", "gpu")
_LINES: Final = re.compile(
    r"^# (fault|event): (.+(?:\n#   .+)*)|^(?:async )?def (test_\w+)", re.MULTILINE
)


class Mark(NamedTuple):
    """One comment above one test; `about` is empty if another test has the row's texts."""

    kind: str
    section: str
    subject: str
    about: tuple[str, ...]
    test: str


@cache
def marks() -> tuple[Mark, ...]:
    """Return the comments of all tests, the lowest layer first."""
    files = [path for layer in LAYERS for path in sorted((TESTS / layer).glob("test_*.py"))]
    return tuple(mark for path in files for mark in read(path.read_text()))


def read(text: str) -> Iterator[Mark]:
    """Yield the comments of one file."""
    waiting: list[tuple[str, str]] = []
    for kind, row, test in _LINES.findall(text):
        if kind:
            waiting.append((kind, row.replace("\n#  ", "")))
            continue
        for of, parts in waiting:
            section, subject, *about = parts.split(" | ")
            yield Mark(of, section, subject, tuple(about), test)
        waiting.clear()


def rows(comments: Iterable[Mark], kind: str, section: str) -> list[Sequence[str]]:
    """Return a section's rows, each ending with its tests.

    Raises:
        ValueError: A row's texts are missing, incomplete or given twice.
    """
    about: dict[str, tuple[str, ...]] = {}
    tests: dict[str, list[str]] = {}
    for mark in comments:
        if (mark.kind, mark.section) != (kind, section):
            continue
        tests.setdefault(mark.subject, []).append(f"`{mark.test}`")
        if mark.about and (mark.subject in about or len(mark.about) != 2 or not all(mark.about)):
            raise ValueError(f"{mark.test}: {mark.subject!r} must have two texts, on only one test")
        about |= {mark.subject: mark.about} if mark.about else {}
    if missing := tests.keys() - about.keys():
        raise ValueError(f"no test describes {sorted(missing)}")
    return [(subject, *about[subject], ", ".join(named)) for subject, named in tests.items()]


def faults(section: str) -> str:
    """Return the faults of one section, with their detection and tests; of `COMPACT` only the tests."""
    described = rows(marks(), "fault", section)
    if section == COMPACT:
        return ", ".join(tests for *_, tests in described) + "."
    return table(("fault", "detected by", "after", "test"), described)


def events(section: str) -> str:
    """Return the events of one section, with what serves meanwhile, and tests."""
    heading = ("event", "what serves meanwhile", "what you see", "test")
    return table(heading, rows(marks(), "event", section))


def condition_states() -> str:
    """Return the conditions of a model in every state, as written by the operator."""
    from tests.unit.test_plan_conditions import COLUMNS, STATES  # noqa: PLC0415 - imports hypothesis

    shared = {"Reconciling", "Stalled"}  # with Ready's reason

    def row(state: str) -> Sequence[str]:
        conditions = STATES[state]().conditions()
        return state, *(
            conditions[column][0] if column in shared else " ".join(conditions[column])
            for column in COLUMNS
        )

    return table(("State", *COLUMNS), map(row, STATES))
