"""An order in which each thing comes after what it needs: of nodes, whatever they are read as."""

import heapq
from collections.abc import Iterable, Sequence


def order(needs: Sequence[Iterable[int]]) -> list[int]:
    """Return the indices of `needs` so that each comes after those that it needs.

    Stable: of those that could come next, the first does. What is in a circle, or needs one, is left
    out: the list is then shorter.
    """
    waiting = [len(set(each)) for each in needs]
    readers: list[list[int]] = [[] for _ in needs]
    for index, each in enumerate(needs):
        for needed in set(each):
            readers[needed].append(index)
    ready = [index for index, count in enumerate(waiting) if not count]
    found = []
    while ready:
        index = heapq.heappop(ready)
        found.append(index)
        for reader in readers[index]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    return found
