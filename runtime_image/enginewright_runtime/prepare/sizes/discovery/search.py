"""Searches a point with which the model runs, from failed runs that got furthest in the graph. Pure."""

import heapq
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, count, islice, zip_longest
from typing import Final

from enginewright_runtime.prepare.sizes.discovery.hints import Change, changes
from enginewright_runtime.prepare.sizes.discovery.problem import INTEGERS, Point, Problem
from enginewright_runtime.prepare.sizes.discovery.roles import Role

_MAX_PAIRS: Final = 15
_HINTED_FIRST: Final = 10  # changes hinted by the message, before default sizes
_DEFAULTS_FIRST: Final = 6
_BEFORE_VALUES: Final = 12  # default sizes that are tried before other values
_OF_VALUES: Final = re.compile(r"out of (?:data )?bounds|out of range|[Ii]nvalid ind|index")


@dataclass(frozen=True)
class Outcome:
    """The outcome of one run."""

    ran: bool
    message: str = ""  # of the failure
    progress: int = -1  # index of the node that failed, if known


class ExhaustedError(Exception):
    """No more runs may be made."""


Attempt = Callable[[Point, str], Outcome]  # of a point, with the values of the corner of that name


@dataclass(frozen=True)
class FoundPoint:
    """A point that runs, or why none was found."""

    point: dict[str, int] | None
    message: str = ""  # of the run that got furthest


def search(problem: Problem, attempt: Attempt, start: Point | None = None) -> FoundPoint:
    """Return a point that runs, if the allowed attempts from `start` or the likeliest one find any."""
    first = dict(start or problem.start)
    order = count()
    # by the progress of the run that it derives from, then by the sum of the ranks of its changes
    queue = [(0, 0, next(order), first)]
    seen = {_key(first)}
    furthest = (-2, "")
    try:
        while queue:
            priority, cost, _, point = heapq.heappop(queue)
            outcome = attempt(point, "opt")
            if outcome.ran:
                return FoundPoint(point)
            if outcome.progress > furthest[0]:
                furthest = (outcome.progress, outcome.message)
            cost = 0 if outcome.progress > -priority else cost + 1
            for rank, change in enumerate(_moves(outcome.message, point, problem)):
                moved = point | change
                if _key(moved) not in seen:
                    seen.add(_key(moved))
                    heapq.heappush(queue, (-outcome.progress, cost + rank, next(order), moved))
    except ExhaustedError:
        pass
    return FoundPoint(None, furthest[1])


def _key(point: Point) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(point.items()))


def _moves(message: str, point: Point, problem: Problem) -> Iterator[Change]:
    if _OF_VALUES.search(message):
        yield from _values(problem, point)
    hinted = changes(message, point, problem)
    defaults = list(_defaults(problem, point))
    yield from hinted[:_HINTED_FIRST]
    yield from defaults[:_DEFAULTS_FIRST]
    yield from hinted[_HINTED_FIRST:]
    names = [item.name for item in problem.unknowns if item.role is not Role.BATCH]
    for one, other in islice(combinations(names, 2), _MAX_PAIRS):
        if point[one] != point[other]:
            yield {one: point[other]}
            yield {other: point[one]}
    yield from defaults[_DEFAULTS_FIRST:]


def _defaults(problem: Problem, point: Point) -> Iterator[Change]:
    by_name = {item.name: item for item in problem.unknowns}
    rows: dict[bool, list[list[Change]]] = {False: [], True: []}
    groups = [*problem.peers().values(), *([name] for name in by_name)]
    for names in groups:
        sizes = dict.fromkeys(size for name in names for size in by_name[name].sizes)
        batch = by_name[names[0]].role is Role.BATCH
        rows[batch].append([dict.fromkeys(names, size) for size in sizes])
    sizes_first = [change for turn in zip_longest(*rows[False]) for change in turn if change]
    yield from sizes_first[:_BEFORE_VALUES]
    yield from _values(problem, point)
    yield from sizes_first[_BEFORE_VALUES:]
    for turn in zip_longest(*rows[True]):
        yield from (change for change in turn if change)


def _values(problem: Problem, point: Point) -> Iterator[Change]:
    for name in sorted(problem.choices, key=lambda name: name == INTEGERS):
        options = problem.choices[name]
        yield from ({name: index} for index in range(len(options)) if index != point[name])
