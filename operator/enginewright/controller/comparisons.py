"""Comparisons of measurements for the plan, made in a thread: of tens of pods they take seconds.

The plan is pure and decides what it compares. So it returns the comparisons that it is based on; those whose
results it lacks are made, and the plan is made again with them. A result holds as long as nothing new was measured.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, TypeAlias

from enginewright.analysis.comparison import RevisionComparison, compare
from enginewright.analysis.result import AnalysisResult
from enginewright.controller.routing import ModelKey
from enginewright.plan.types import Facts, Plan

_log: Final = logging.getLogger(__name__)

Aside: TypeAlias = Callable[..., Awaitable[AnalysisResult]]


class Comparisons:
    """The comparisons of the last plan of each model."""

    def __init__(self, aside: Aside = asyncio.to_thread) -> None:
        """Create it; `aside` makes a comparison without blocking the event loop."""
        self._aside = aside
        self._last: dict[ModelKey, tuple[RevisionComparison, ...]] = {}

    async def plan(self, key: ModelKey, plan: Callable[[Facts], Plan], facts: Facts) -> Plan:
        """Return the plan of a model that lacks no result."""
        comparisons = self._last.pop(key, ())
        while True:
            made = plan(replace(facts, comparisons=comparisons))
            if not made.needs:
                if made.comparisons:
                    self._last[key] = made.comparisons
                return made
            comparisons += tuple([await self._make(need) for need in made.needs])

    async def _make(self, needed: RevisionComparison) -> RevisionComparison:
        try:
            result = await self._aside(compare, needed.stable, needed.canary, needed.limits)
        except Exception as error:  # noqa: BLE001 - rollback, pause and scaling do not depend on it
            _log.exception("unexpected error while comparing revisions")
            waits_for = f"new measurements, as the comparison failed: {error}"
            result = AnalysisResult("inconclusive", waits_for=waits_for)
        return replace(needed, result=result)

    def forget(self, key: ModelKey) -> None:
        """Forget a model that does not exist any more."""
        self._last.pop(key, None)
