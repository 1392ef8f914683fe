"""The tables between markers in docs/ are those that the code makes, and a reader finds every page."""

import re
import tomllib
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


def test_every_page_is_in_the_navigation_and_ends_with_its_next_step() -> None:
    site = tomllib.loads((PAGES[0].parents[1] / "zensical.toml").read_text())["project"]
    shown = [page for section in site["nav"] for pages in section.values() for page in pages]
    assert sorted(shown) == [page.name for page in PAGES]
    for page in PAGES:
        last = page.read_text().rstrip().splitlines()[-1]
        assert re.search(r"^Next: \[.+\]\(\w+\.md", last), page.name
