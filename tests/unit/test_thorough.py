"""The table of what runs in `make test-all` only names tests that exist, once each, and the pages that speak of it are right."""

import re
from pathlib import Path

import pytest

from tests.support import thorough

TESTS = Path(__file__).resolve().parents[1]
NAMED = [item for tests in thorough.TESTS.values() for item in tests]


@pytest.mark.parametrize("name", [*NAMED, *sorted(thorough.KEPT), *thorough.SPREAD])
def test_named_tests_exist(name: str) -> None:
    file, _, test = name.partition("::")
    text = (TESTS / file).read_text()
    function, _, case = test.partition("[")
    if function:
        assert re.search(rf"^(?:async )?def {function}\(|^{function} = ", text, re.MULTILINE)
    parts = case.rstrip("]").split("-") if case else []
    assert all(part in text for part in parts), f"no case {case} in {file}"


def test_each_test_is_named_once() -> None:
    assert len(NAMED) == len(set(NAMED))
    for test in NAMED:
        assert "::" not in test or test.partition("::")[0] not in NAMED, (
            f"{test}: its file is named"
        )
    assert not {*thorough.SPREAD} & {*NAMED, *(item.partition("::")[0] for item in NAMED)}
    for case in thorough.KEPT:
        assert case not in NAMED
        file, test = case.partition("::")[0], case.partition("[")[0]
        assert {file, test} & {*NAMED, *thorough.SPREAD}


def test_files_tests_and_three_of_four_cases_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        thorough, "_WHY", {"e2e/test_a.py": "file", "unit/test_b.py::test_c": "test"}
    )
    monkeypatch.setattr(
        thorough, "KEPT", {"unit/test_b.py::test_c[kept]", "e2e/test_a.py::test_kept"}
    )
    monkeypatch.setattr(thorough, "SPREAD", ("unit/test_b.py::test_s",))
    spread = [f"tests/unit/test_b.py::test_s[{number}]" for number in range(6)]
    left_out = {
        "tests/e2e/test_a.py::test_x[y::z]": "file",
        "tests/unit/test_b.py::test_c[y/z]@group": "test",
        **dict.fromkeys([*spread[1:4], spread[5]], thorough._CASE),
    }
    kept = (
        "tests/unit/test_b.py::test_c[kept]",
        "tests/e2e/test_a.py::test_kept",
        "tests/unit/test_b.py::test_d[1]",
        *spread,
    )
    assert thorough.find_left_out([*kept, *left_out]) == left_out | {}
