"""How far sizes may go from a point that runs, and which must go together. Pure.

Everything that is returned has run: each range from end to end of itself, and all of them at once at
their least and at their greatest.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from enginewright_runtime.prepare.sizes.discovery.hints import changes
from enginewright_runtime.prepare.sizes.discovery.problem import Point, Problem, Unknown
from enginewright_runtime.prepare.sizes.discovery.roles import Role
from enginewright_runtime.prepare.sizes.discovery.search import Attempt, ExhaustedError

_STEPS: Final = 8  # of a bisection
_LARGER: Final = (2, 3)  # times the size: what a size is tried at first
_MOST_PARTNERS: Final = 12
_MOST_HINTS: Final = 8  # changes by the message of one failure


@dataclass(frozen=True)
class Caps:
    """The largest sizes that are tried, by what they count; lengths at least twice what ran."""

    batch: int
    pixels: int
    length: int

    def of(self, role: Role, size: int) -> int:
        """Return the largest size that is tried where `size` runs."""
        match role:
            case Role.BATCH:
                return self.batch
            case Role.PIXELS:
                return max(size, self.pixels)
            case Role.CHANNELS:
                return size
            case _:
                return max(2 * size, self.length)


@dataclass(frozen=True)
class Direction:
    """Sizes that go together: how far each goes for one step of the first."""

    driver: Unknown
    slopes: Mapping[str, Fraction]

    def at(self, point: Point, size: int) -> dict[str, int] | None:
        """Return the point with the driver at `size`; None where another size were none."""
        step = size - point[self.driver.name]
        moved = dict(point)
        for name, slope in self.slopes.items():
            gone = point[name] + slope * step
            if gone.denominator != 1 or gone < 0:
                return None
            moved[name] = int(gone)
        return moved


@dataclass(frozen=True)
class Ranges:
    """Points by corner, and the unknowns that run at one size alone."""

    corners: Mapping[str, Point]
    fixed: tuple[str, ...] = ()


def explore(problem: Problem, seed: Point, attempt: Attempt, caps: Caps) -> Ranges:
    """Return how far sizes may go from `seed`, which runs.

    Args:
        problem: what is unknown.
        seed: the opt point.
        attempt: runs a point; raises ExhaustedError when no more may be run: what is known then is
            returned.
        caps: how far sizes are tried.
    """
    opt, fixed = dict(seed), []
    corners = {"min": opt, "opt": opt, "max": opt}
    spans: list[tuple[Direction, int, int]] = []
    together: set[str] = set()
    try:
        for unknown in problem.unknowns:
            if unknown.name in together:
                continue
            direction = _direction(unknown, problem, opt, attempt)
            if direction is None:
                fixed.append(unknown.name)
                continue
            together |= direction.slopes.keys()
            low, high = _span(direction, opt, attempt, caps)
            if unknown.role is Role.BATCH and (fewest := direction.at(opt, low)) is not None:
                opt = fewest
                corners = dict.fromkeys(corners, opt)
            spans.append((direction, low, high))
        least = [(each, low) for each, low, _ in spans]
        corners["min"] = _together(opt, least, "min", attempt)
        most = [(each, high) for each, _, high in spans]
        corners["max"] = _together(opt, most, "max", attempt)
    except ExhaustedError:
        pass
    return Ranges(corners, tuple(name for name in fixed if name not in together))


def _runs(point: dict[str, int] | None, attempt: Attempt, corner: str = "opt") -> bool:
    return point is not None and attempt(point, corner).ran


def _direction(
    unknown: Unknown, problem: Problem, seed: Point, attempt: Attempt
) -> Direction | None:
    """Return in which company an unknown may have another size; None: in none that was tried."""
    size = seed[unknown.name]
    others = [size // 2, *(max(1, size) * times for times in _LARGER), size + 1]
    for other in dict.fromkeys(each for each in others if each > 0 and each != size):
        alone = {unknown.name: Fraction(1)}
        for slopes in (alone, *_companies(unknown, other, problem, seed, attempt)):
            direction = Direction(unknown, slopes)
            if _runs(direction.at(seed, other), attempt):
                return direction
    return None


def _companies(
    unknown: Unknown, other: int, problem: Problem, seed: Point, attempt: Attempt
) -> Iterator[dict[str, Fraction]]:
    """Yield which sizes might have to follow an unknown's: what the message says, then the likeliest."""
    name, size = unknown.name, seed[unknown.name]
    moved = dict(seed) | {name: other}
    step = other - size
    for change in changes(attempt(moved, "opt").message, moved, problem)[:_MOST_HINTS]:
        if name not in change and all(follower in seed for follower in change):
            gone = {each: Fraction(to - seed[each], step) for each, to in change.items()}
            if all(slope > 0 for slope in gone.values()):
                yield {name: Fraction(1)} | gone
    rest = [each for each in problem.unknowns if each.name != name]
    rest.sort(key=lambda each: (each.role is not unknown.role, seed[each.name] != size))
    equal = [each for each in rest if seed[each.name] == size]
    like = [each.name for each in equal if each.role is unknown.role]
    for company in dict.fromkeys(((name,), (name, *like), (name, *(each.name for each in equal)))):
        together = dict.fromkeys(company, Fraction(1))
        if len(together) > 1:
            yield together
        for each in rest[:_MOST_PARTNERS]:
            if each.name not in together:
                yield together | {each.name: Fraction(1)}
    for each in rest[:_MOST_PARTNERS]:
        if size and seed[each.name] and seed[each.name] != size:
            yield {name: Fraction(1), each.name: Fraction(seed[each.name], size)}


def _span(direction: Direction, seed: Point, attempt: Attempt, caps: Caps) -> tuple[int, int]:
    """Return the least and the greatest size of the driver that run, of those that were tried."""
    unknown, size = direction.driver, seed[direction.driver.name]

    def runs(tried: int) -> bool:
        return _runs(direction.at(seed, tried), attempt)

    low, least = size, min(size, unknown.least)
    if unknown.role is Role.PAST and size and runs(0):
        low = 0
    elif size > least and unknown.role is not Role.CHANNELS:
        low = least if runs(least) else _bisect(least, size, runs)
    cap = caps.of(unknown.role, size)
    if cap > size:
        return low, cap if runs(cap) else _bisect(cap, size, runs)
    return low, max(low, cap) if cap == size or runs(max(low, cap)) else low


def _bisect(bad: int, good: int, runs: Callable[[int], bool]) -> int:
    """Return a size that runs, as far from `good` towards `bad` as a few tries bring it."""
    for _ in range(_STEPS):
        middle = (bad + good) // 2
        if middle in {bad, good}:
            break
        if runs(middle):
            good = middle
        else:
            bad = middle
    return good


def _together(
    seed: Point, wanted: list[tuple[Direction, int]], corner: str, attempt: Attempt
) -> dict[str, int]:
    """Return a point with all drivers at the sizes that each runs at, or as many of them as run."""
    reached = dict(seed)
    point: dict[str, int] | None = dict(seed)
    for direction, size in wanted:
        point = None if point is None else direction.at(point, size)
    if _runs(point, attempt, corner) and point is not None:
        return point
    if not _runs(reached, attempt, corner):
        return reached
    for direction, size in wanted:
        tried = direction.at(reached, size)
        if tried is not None and _runs(tried, attempt, corner):
            reached = tried
    return reached
