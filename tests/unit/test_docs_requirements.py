"""Every requirement has its reason beside the pin."""

import pytest

from hack.tables.project import requirements

TEXT = """
[project]
name = "mine"
dependencies = ["first>=1"]  # for all
[project.optional-dependencies]
one = [
    "second[http]>=2; sys_platform == 'linux'",  # for both
]
two = ["second>=2", "mine[one]"]
"""


def test_a_row_has_extras_and_reason() -> None:
    assert requirements(TEXT) == [
        ("first", "all", "for all"),
        ("second", "one, two", "for both"),
    ]


@pytest.mark.parametrize("reasons", ["", '  # for all  # again\n# "first>=1",  # twice'])
def test_a_requirement_has_one_reason(reasons: str) -> None:
    with pytest.raises(ValueError, match="first"):
        requirements(TEXT.replace("  # for all", reasons))
