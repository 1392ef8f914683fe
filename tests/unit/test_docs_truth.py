"""Every row of docs/truth.md is whole, and the test that it names exists."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).parents[2]
_NAMED_TEST = re.compile(r"`(tests/[a-z0-9_/]+\.py)::(test_[a-z0-9_]+)`")


class Row(NamedTuple):
    """One row of one table."""

    fault: str
    found_by: str
    after: str
    test: str


def rows() -> list[Row]:
    lines = (REPOSITORY / "docs/truth.md").read_text().splitlines()
    tables = [line for line in lines if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in tables]
    return [Row(*each) for each in cells if each[0] != "fault" and set(each[0]) != {"-"}]


def serving_rows() -> list[Row]:
    text = (REPOSITORY / "docs/operator.md").read_text()
    (part,) = re.findall(r"^## What serves meanwhile\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    return [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines[1:]]


@pytest.mark.parametrize("row", [*rows(), *serving_rows()], ids=lambda row: row.fault[:60])
def test_a_row_is_whole_and_its_tests_exist(row: Row) -> None:
    assert all(row), row
    named = _NAMED_TEST.findall(row.test)
    assert named, f"{row.fault}: name its test as `tests/FILE.py::test_NAME`"
    for file, test in named:
        source = (REPOSITORY / file).read_text()
        assert re.search(rf"^\s*(async )?def {test}\(", source, re.MULTILINE), f"{file}::{test}"
