"""The tolerances that a peer is tried with: its default times a factor. Imported by peers' environments too."""

from collections.abc import Callable
from typing import Final

FACTORS: Final = tuple(10 ** (step / 2) for step in range(13))  # 1 to a million
RUNGS: Final = len(FACTORS)  # the rung of what no tolerance allows


def find_rung(factor: float) -> int:
    """Return the first rung whose factor allows this one."""
    return next((rung for rung, most in enumerate(FACTORS) if factor <= most), RUNGS)


def search_rung(agrees: Callable[[float], bool]) -> int:
    """Return the first rung at which a comparator agrees; looser ones agree too."""
    low, high = 0, RUNGS
    while low < high:
        middle = (low + high) // 2
        if agrees(FACTORS[middle]):
            high = middle
        else:
            low = middle + 1
    return low
