"""The tables between markers in docs/ are those that the code makes."""

from pathlib import Path

import pytest

from hack import docs

PAGES = sorted((Path(__file__).parents[2] / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tables_are_those_of_the_code(page: Path) -> None:
    assert docs.written(page.read_text()) == page.read_text(), "run hack/docs"


def test_every_table_is_shown_somewhere() -> None:
    text = "".join(page.read_text() for page in PAGES)
    assert {name for name in docs.TABLES if f"<!-- hack/docs: {name}" not in text} == set()
