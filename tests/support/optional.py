"""What a test expects to be there: the value itself, or a failure that says that it is missing."""

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    assert value is not None
    return value
