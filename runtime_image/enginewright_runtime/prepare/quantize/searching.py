"""Finds the nodes that cost most accuracy, and the few to exclude so that parity holds. Pure.

The cost of nodes is measured by lowering only one group of them. Groups are runs of neighbours; the
costliest are split, so that the number of trials grows with the number of costly nodes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from enginewright_runtime.core.time_limit import TimeLimit

FIRST_GROUPS: Final = 8
_SPLITS: Final = 4  # between two attempts to exclude the costliest


@dataclass(frozen=True)
class TrialProof:
    """The result of a trial."""

    agrees: bool  # whether parity holds
    error: float  # its cost: the costs of groups add up approximately


@dataclass(frozen=True)
class Group:
    """Neighbouring nodes, and their cost when lowered alone."""

    units: tuple[int, ...]
    error: float

    @property
    def density(self) -> float:
        """Return the cost for each node."""
        return self.error / len(self.units)


@dataclass
class Exclusions:
    """The result of a search."""

    excluded: frozenset[int] | None  # if an allowed exclusion restores parity
    groups: list[Group] = field(default_factory=list)  # costliest first
    trials: int = 0


class Budget:
    """The number of trials, and the time that they may take."""

    def __init__(self, trials: int, limit: TimeLimit) -> None:
        self._left = trials
        self._limit = limit
        self.used = 0

    def is_spent(self) -> bool:
        """Tell whether no trial or no time is left."""
        return self._left <= 0 or self._limit.over()

    def take(self) -> None:
        """Count a trial."""
        self._left -= 1
        self.used += 1


def search(
    units: Sequence[int],
    evaluate: Callable[[frozenset[int]], TrialProof],
    allowed: int,
    budget: Budget,
) -> Exclusions:
    """Find at most `allowed` nodes to exclude, or as far as the budget suffices.

    `units` are the indices of lowered nodes, in the order of the graph; with all of them parity
    fails. `evaluate` lowers the model without the given nodes, and proves it.
    """
    return _ExclusionSearch(tuple(units), evaluate, allowed, budget).run()


@dataclass
class _ExclusionSearch:
    _units: tuple[int, ...]
    _evaluate: Callable[[frozenset[int]], TrialProof]
    _allowed: int
    _budget: Budget
    _groups: list[Group] = field(default_factory=list)
    _proofs: dict[frozenset[int], TrialProof] = field(default_factory=dict)

    def run(self) -> Exclusions:
        for part in _parts(self._units, FIRST_GROUPS):
            self._measure(part)
        excluded = self._try()
        while excluded is None and not self._is_hopeless() and self._split():
            excluded = self._try()
        if excluded is not None:
            excluded = self._include_again(excluded)
        groups = sorted(self._groups, key=lambda group: group.density, reverse=True)
        return Exclusions(excluded, groups, self._budget.used)

    def _prove(self, excluded: frozenset[int]) -> TrialProof:
        if excluded not in self._proofs:
            self._budget.take()
            self._proofs[excluded] = self._evaluate(excluded)
        return self._proofs[excluded]

    def _measure(self, units: tuple[int, ...]) -> None:
        """Record the cost of a group alone; if the budget is spent, 0."""
        error = 0.0
        if not self._budget.is_spent():
            error = self._prove(frozenset(self._units) - frozenset(units)).error
        self._groups.append(Group(units, error))

    def _split(self) -> bool:
        done = False
        for _ in range(_SPLITS):
            splittable = [
                group for group in self._groups if len(group.units) > 1 and group.error > 0
            ]
            if not splittable or self._budget.is_spent():
                break
            costliest = max(splittable, key=lambda group: group.error)
            self._groups.remove(costliest)
            for half in _parts(costliest.units, 2):
                self._measure(half)
            done = True
        return done

    def _costliest(self) -> list[Group]:
        costliest: list[Group] = []
        remaining = self._allowed
        for group in sorted(self._groups, key=lambda item: item.density, reverse=True):
            if len(group.units) <= remaining and group.error > 0:
                costliest.append(group)
                remaining -= len(group.units)
        return costliest

    def _is_hopeless(self) -> bool:
        """Tell whether the last attempt excluded single nodes, and no other can be as costly."""
        if self._budget.is_spent():
            return True
        tried = self._costliest()
        others = [group.error for group in self._groups if group not in tried]
        least = min((group.error for group in tried if len(group.units) == 1), default=0.0)
        return all(len(group.units) == 1 for group in tried) and least >= max(others, default=0.0)

    def _try(self) -> frozenset[int] | None:
        order = [group.units for group in self._costliest()]
        if not order or self._budget.is_spent() or not self._prove(_union(order)).agrees:
            return None
        low, high = 0, len(order)  # excluding `high` groups suffices; `low` does not
        while high - low > 1 and not self._budget.is_spent():
            middle = (low + high) // 2
            if self._prove(_union(order[:middle])).agrees:
                high = middle
            else:
                low = middle
        return _union(order[:high])

    def _include_again(self, excluded: frozenset[int]) -> frozenset[int]:
        """Include halves of groups again whose nodes were excluded only with costly neighbours."""
        pending = [group.units for group in self._groups if excluded.issuperset(group.units)]
        pending = [units for units in pending if len(units) > 1]
        while pending and not self._budget.is_spent():
            units = pending.pop()
            for half in _parts(units, 2):
                if self._budget.is_spent():
                    break
                fewer = excluded - frozenset(half)
                if self._prove(fewer).agrees:
                    excluded = fewer
                elif len(half) > 1:
                    pending.append(half)
        return excluded


def _parts(units: tuple[int, ...], count: int) -> list[tuple[int, ...]]:
    size = max(1, math.ceil(len(units) / count))
    return [units[start : start + size] for start in range(0, len(units), size)]


def _union(groups: Sequence[tuple[int, ...]]) -> frozenset[int]:
    return frozenset(unit for group in groups for unit in group)
