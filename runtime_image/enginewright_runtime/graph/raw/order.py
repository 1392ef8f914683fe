"""Stable topological sort, of indices, so that it works for every representation of nodes."""

import heapq
from collections.abc import Iterable, Sequence


def order(needs: Sequence[Iterable[int]]) -> list[int]:
    """Return the indices of `needs`, each after those that it needs, the lowest first, without cycles and dependents."""
    waiting = [len(set(need)) for need in needs]
    readers: list[list[int]] = [[] for _ in needs]
    for index, need in enumerate(needs):
        for needed in set(need):
            readers[needed].append(index)
    ready = [index for index, count in enumerate(waiting) if not count]
    ordered = []
    while ready:
        index = heapq.heappop(ready)
        ordered.append(index)
        for reader in readers[index]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    return ordered
