"""The table of rules is whole."""

import re
from collections import Counter

import pytest
from enginewright_runtime.rules.base import Rule
from enginewright_runtime.rules.table import RULES


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_is_whole(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name)
    for text in (rule.what, rule.remedy, rule.source):
        assert len(text) > 10
        assert text.isprintable()
        assert not text.endswith(".")


def test_names_are_unique() -> None:
    assert Counter(rule.name for rule in RULES).most_common(1)[0][1] == 1
