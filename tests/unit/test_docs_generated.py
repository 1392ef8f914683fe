"""The tables between markers in docs/ are those that the code makes, and a reader finds every page."""

import re
import tomllib
from pathlib import Path

import pytest
from enginewright_contract.reasons import Reason
from enginewright_contract.task import ENGINE_STAGES, LOOKUP_STAGE, PREPARE_STAGES

from hack import docs, pictures
from hack.tables import metrics

SITE = docs.ROOT / "docs"
NAMING = {".py", ".yaml", ".tpl", ".json", ".toml", ".sh"}
ALERTS = (metrics.ALERTS, docs.RULES_TEST)


@pytest.mark.parametrize("page", [*docs.PAGES, *ALERTS], ids=lambda page: page.stem)
def test_tables_and_remedies_are_those_of_the_code(page: Path) -> None:
    assert docs.regenerate(page.read_text()) == page.read_text(), "run hack/docs"


def test_the_picture_of_a_page_shows_the_page_as_it_is() -> None:
    page = pictures.render_page()
    assert pictures.read_digest() == pictures.digest_page(page), "run make docs"


def test_every_table_is_shown_somewhere() -> None:
    text = "".join(page.read_text() for page in docs.PAGES)
    assert {name for name in docs.TABLES if f"<!-- hack/docs: {name}" not in text} == set()


def test_no_remedy_that_the_code_has_is_written_by_hand() -> None:
    for file in ALERTS:
        by_hand = " ".join(docs.REMEDY.sub("", file.read_text()).split())
        assert [reason for reason in Reason if reason.remedy in by_hand] == []


def test_stages_match_the_code() -> None:
    text = next(page for page in docs.PAGES if page.stem == "stages").read_text()
    stages = (*PREPARE_STAGES, LOOKUP_STAGE, *ENGINE_STAGES)
    assert tuple(re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)) == stages
    assert f"for stage in {' '.join(PREPARE_STAGES)};" in text


@pytest.mark.parametrize("folder", ["operator", "runtime_image", "charts", "hack", "bench"])
def test_the_pages_that_code_names_are_there(folder: str) -> None:
    files = [path for path in (docs.ROOT / folder).rglob("*") if path.suffix in NAMING]
    text = "".join(path.read_text() for path in files)
    named = set(re.findall(r"\bdocs/[a-z/-]+\.md\b(?! of)", text))
    assert named
    assert [page for page in sorted(named) if not (docs.ROOT / page).is_file()] == []


def test_handwritten_pages_stay_short() -> None:
    """As `wc -w README.md CONTRIBUTING.md docs/*.md` counts; docs/reference is generated."""
    pages = [docs.ROOT / "README.md", docs.ROOT / "CONTRIBUTING.md", *SITE.glob("*.md")]
    assert sum(len(page.read_text().split()) for page in pages) <= 45_000


def test_every_page_is_in_the_navigation_and_ends_with_its_next_step() -> None:
    site = tomllib.loads((docs.ROOT / "zensical.toml").read_text())["project"]
    shown = [page for section in site["nav"] for pages in section.values() for page in pages]
    assert sorted(shown) == sorted(str(page.relative_to(SITE)) for page in docs.PAGES)
    for page in docs.PAGES:
        last = page.read_text().rstrip().splitlines()[-1]
        assert re.search(r"^Next: \[.+\]\([\w./-]+\.md", last), page.name
