"""How much tests try: `make test` has twenty minutes, `make test-all` sets THOROUGH and takes its time."""

import os
from collections.abc import Sequence
from typing import Final, TypeVar

T = TypeVar("T")

THOROUGH: Final = bool(os.environ.get("THOROUGH"))
_EXAMPLES: Final = 4  # `make test` tries one of so many
_LEAST: Final = 3
_CASES: Final = 8  # likewise


def examples(count: int) -> int:
    """Return how many examples of a property to try, of which all of them are `count`."""
    return count if THOROUGH else max(count // _EXAMPLES, _LEAST)


def spread(cases: Sequence[T], first: int = 0) -> Sequence[T]:
    """Return the cases to try, as far apart as possible; `first` differs between the tests that share a kind of case."""
    return cases if THOROUGH else cases[first % _CASES :: _CASES]
