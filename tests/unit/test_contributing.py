"""CONTRIBUTING.md names a layer for every folder of tests, and only paths that exist."""

import itertools
import re
from pathlib import Path

import pytest

from tests.support.budgets import LIMITS

REPOSITORY = Path(__file__).resolve().parents[2]
TEXT = (REPOSITORY / "CONTRIBUTING.md").read_text()
CHANGED = re.findall(r"^\| (`.*?) \| `.*\|$", TEXT.partition("## What to run")[2], re.MULTILINE)


def expand(path: str) -> list[str]:
    parts = re.split(r"\{(.*?)\}", path)
    choices = [part.split(",") if index % 2 else [part] for index, part in enumerate(parts)]
    return ["".join(pair) for pair in itertools.product(*choices)]


def test_every_layer_is_there() -> None:
    rows = re.findall(r"^\| `tests/(\w+)` \|", TEXT, re.MULTILINE)
    assert rows == list(LIMITS)
    assert all((REPOSITORY / "tests" / layer).is_dir() for layer in LIMITS)


@pytest.mark.parametrize("pattern", sorted(set(re.findall(r"tests/[\w/*.]+", TEXT))))
def test_paths_of_tests_exist(pattern: str) -> None:
    assert list(REPOSITORY.glob(pattern))


def test_every_source_folder_has_a_row() -> None:
    named = {path for row in CHANGED for path in re.findall(r"`(.*?)`", row)}
    paths = [path for item in named for path in expand(item) if "/" in path]
    assert all((REPOSITORY / path).exists() for path in paths), paths
    for package in (REPOSITORY / "operator/enginewright").iterdir():
        if package.is_dir() and package.name != "__pycache__":
            assert str(package.relative_to(REPOSITORY)) in paths
