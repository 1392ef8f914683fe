"""The rows of docs/reference/{truth,events}.md stand on tests, and every one has its place."""

import re
import textwrap
from pathlib import Path

import pytest

from hack.tables import proofs
from hack.tables.proofs import Mark

DOCS = Path(__file__).parents[2] / "docs/reference"
ROW = Mark("fault", "Outputs", "noise", ("golden", "8 runs"), "test_noise")
TEXT = textwrap.dedent("""
    # fault: Outputs | noise | golden |
    #   8 runs
    # event: Jobs | a node dies | all pods | nothing
    @pytest.mark.usefixtures("model")
    def test_noise() -> None:

    # fault: Outputs | noise
    async def test_more_noise() -> None:
""")


@pytest.mark.parametrize(("kind", "page"), [("fault", "truth"), ("event", "events")])
def test_every_section_is_on_its_page(kind: str, page: str) -> None:
    shown = re.findall(rf"<!-- hack/docs: {kind}s (.+) -->", (DOCS / f"{page}.md").read_text())
    sections = {mark.section for mark in proofs.marks() if mark.kind == kind}
    assert sorted(shown) == sorted(sections)


def test_comments_are_read_with_the_test_below_them() -> None:
    event = Mark("event", "Jobs", "a node dies", ("all pods", "nothing"), "test_noise")
    other = Mark("fault", "Outputs", "noise", (), "test_more_noise")
    assert list(proofs.read(TEXT)) == [ROW, event, other]


def test_a_row_names_all_its_tests() -> None:
    other = Mark("fault", "Outputs", "noise", (), "test_more_noise")
    elsewhere = Mark("fault", "Devices", "noise", ("driver", "1 s"), "test_fan")
    event = ROW._replace(kind="event", subject="drift")
    assert proofs.rows([other, ROW, elsewhere, event], "fault", "Outputs") == [
        ("noise", "golden", "8 runs", "`test_more_noise`, `test_noise`")
    ]


@pytest.mark.parametrize(
    "marks",
    [
        [ROW._replace(about=())],
        [ROW._replace(about=("golden",))],
        [ROW._replace(about=("golden", ""))],
        [ROW, ROW._replace(test="test_more_noise")],
    ],
    ids=["no text", "too short", "empty", "two texts"],
)
def test_a_row_without_one_text_is_an_error(marks: list[Mark]) -> None:
    with pytest.raises(ValueError, match="noise"):
        proofs.rows(marks, "fault", "Outputs")
