"""Durations as the schema's rule has them."""

from datetime import timedelta

import pytest
from enginewright.api.scalars import duration
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "seconds"), [("0s", 0), ("90s", 90), ("1h", 3600), ("1h30m", 5400), ("2h0m5s", 7205)]
)
def test_duration(text: str, seconds: int) -> None:
    assert duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "1", "h", "1.5h", "30m1h", "1d", "-1s", " 1s", "100000h"])
def test_invalid_duration(text: str) -> None:
    with pytest.raises(ValueError, match="write a duration in whole hours, minutes and seconds"):
        duration(text)


@given(st.integers(0, 99999), st.integers(0, 99999), st.integers(0, 99999))
def test_parts_add_up(hours: int, minutes: int, seconds: int) -> None:
    expected = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    assert duration(f"{hours}h{minutes}m{seconds}s") == expected
