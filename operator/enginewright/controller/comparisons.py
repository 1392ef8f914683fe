"""Comparisons of measurements for the plan, made in a thread: of tens of pods they take seconds.

The plan is pure and knows best what it compares. So a comparison that is not known ends the plan, is
made, and the plan is made again with it. It is known as long as nothing new was measured.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from enginewright_contract.measurements import Measurements

from enginewright.analysis.comparison import compare
from enginewright.analysis.result import AnalysisLimits, AnalysisResult
from enginewright.controller.routing import ModelKey
from enginewright.plan.types import Facts, Plan


@dataclass(frozen=True)
class _Arms:
    stable: tuple[Measurements, ...]
    canary: tuple[Measurements, ...]
    limits: AnalysisLimits

    def are(self, other: "_Arms") -> bool:
        """Return whether both are the same objects, which are immutable."""
        return self.limits == other.limits and all(
            len(mine) == len(theirs)
            and all(one is another for one, another in zip(mine, theirs, strict=True))
            for mine, theirs in ((self.stable, other.stable), (self.canary, other.canary))
        )


_Compared: TypeAlias = tuple[_Arms, AnalysisResult]
Aside: TypeAlias = Callable[..., Awaitable[AnalysisResult]]


class _UnknownError(Exception):
    """A comparison that has to be made."""

    def __init__(self, arms: _Arms) -> None:
        super().__init__()
        self.arms = arms


class _Recall:
    """Comparisons that are known, for one plan."""

    def __init__(self, known: Iterable[_Compared]) -> None:
        self._known = known
        self.used: list[_Compared] = []

    def compare(
        self,
        stable: Sequence[Measurements],
        canary: Sequence[Measurements],
        limits: AnalysisLimits,
    ) -> AnalysisResult:
        arms = _Arms(tuple(stable), tuple(canary), limits)
        for known in self._known:
            if known[0].are(arms):
                self.used.append(known)
                return known[1]
        raise _UnknownError(arms)


class Comparisons:
    """The comparisons of the last plan of each model."""

    def __init__(self, aside: Aside = asyncio.to_thread) -> None:
        """Create it; `aside` makes a comparison without blocking the event loop."""
        self._aside = aside
        self._known: dict[ModelKey, list[_Compared]] = {}

    async def plan(self, key: ModelKey, plan: Callable[[Facts], Plan], facts: Facts) -> Plan:
        """Return the plan of a model."""
        known = self._known.pop(key, [])
        while True:
            recall = _Recall(known)
            try:
                made = plan(replace(facts, compare=recall.compare))
            except _UnknownError as unknown:
                arms = unknown.arms
                found = await self._aside(compare, arms.stable, arms.canary, arms.limits)
                known.append((arms, found))
            else:
                if recall.used:
                    self._known[key] = recall.used
                return made

    def forget(self, key: ModelKey) -> None:
        """Forget a model that is gone."""
        self._known.pop(key, None)
