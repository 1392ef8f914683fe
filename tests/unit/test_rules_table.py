"""The table of rules is whole, and its page shows it."""

import re
from collections import Counter
from pathlib import Path

import pytest
from enginewright_runtime.rules.base import Rule
from enginewright_runtime.rules.table import RULES

PAGE = Path(__file__).parents[2] / "docs/rules.md"


def row(rule: Rule) -> str:
    cells = (f"`{rule.name}`", rule.severity, rule.reason, rule.what, rule.remedy, rule.source)
    return "| " + " | ".join(str(cell).replace("|", r"\|") for cell in cells) + " |"


def test_the_page_shows_the_table() -> None:
    lines = PAGE.read_text().splitlines()
    shown = [line for line in lines if line.startswith("| `") and line.count(" | ") == 5]
    assert shown == [row(rule) for rule in RULES], "\n".join(row(rule) for rule in RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_is_whole(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name)
    for text in (rule.what, rule.remedy, rule.source):
        assert len(text) > 10
        assert text.isprintable()
        assert not text.endswith(".")


def test_names_are_unique() -> None:
    assert Counter(rule.name for rule in RULES).most_common(1)[0][1] == 1
