"""How far sizes can be varied from a point that runs, and which must change together. Pure.

Both ends of each range have run alone, and all ranges together at their minimum and maximum.
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
_LARGER: Final = (2, 3)  # multiples of a size that are tried first
_MAX_PARTNERS: Final = 12
_MAX_HINTS: Final = 8  # changes suggested by the message of one failure


@dataclass(frozen=True)
class Caps:
    """The largest sizes to try, by role; lengths are tried up to at least twice what ran."""

    batch: int
    pixels: int
    length: int

    def of(self, role: Role, size: int) -> int:
        """Return the largest size to try if `size` runs."""
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
    """Sizes that change together: the change of each for one step of the first."""

    driver: Unknown
    slopes: Mapping[str, Fraction]

    def at(self, point: Point, size: int) -> dict[str, int] | None:
        """Return the point with the driver at `size`, or None if another size would be invalid."""
        step = size - point[self.driver.name]
        moved = dict(point)
        for name, slope in self.slopes.items():
            reached = point[name] + slope * step
            if reached.denominator != 1 or reached < 0:
                return None
            moved[name] = int(reached)
        return moved


@dataclass(frozen=True)
class Ranges:
    """Points by corner, and the unknowns that run at one size only."""

    corners: Mapping[str, Point]
    fixed: tuple[str, ...] = ()


def explore(problem: Problem, seed: Point, attempt: Attempt, caps: Caps) -> Ranges:
    """Return how far sizes can be varied from the opt point `seed`, within the allowed attempts."""
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
        least = [(span, low) for span, low, _ in spans]
        corners["min"] = _together(opt, least, "min", attempt)
        most = [(span, high) for span, _, high in spans]
        corners["max"] = _together(opt, most, "max", attempt)
    except ExhaustedError:
        pass
    return Ranges(corners, tuple(name for name in fixed if name not in together))


def _runs(point: dict[str, int] | None, attempt: Attempt, corner: str = "opt") -> bool:
    return point is not None and attempt(point, corner).ran


def _direction(
    unknown: Unknown, problem: Problem, seed: Point, attempt: Attempt
) -> Direction | None:
    size = seed[unknown.name]
    others = [size // 2, *(max(1, size) * times for times in _LARGER), size + 1]
    for other in dict.fromkeys(number for number in others if number > 0 and number != size):
        alone = {unknown.name: Fraction(1)}
        for slopes in (alone, *_combinations(unknown, other, problem, seed, attempt)):
            direction = Direction(unknown, slopes)
            if _runs(direction.at(seed, other), attempt):
                return direction
    return None


def _combinations(
    unknown: Unknown, other: int, problem: Problem, seed: Point, attempt: Attempt
) -> Iterator[dict[str, Fraction]]:
    """Yield sizes that may have to follow an unknown's: the message's first, then the likeliest."""
    name, size = unknown.name, seed[unknown.name]
    moved = dict(seed) | {name: other}
    step = other - size
    for change in changes(attempt(moved, "opt").message, moved, problem)[:_MAX_HINTS]:
        if name not in change and all(follower in seed for follower in change):
            slopes = {key: Fraction(to - seed[key], step) for key, to in change.items()}
            if all(slope > 0 for slope in slopes.values()):
                yield {name: Fraction(1)} | slopes
    rest = [item for item in problem.unknowns if item.name != name]
    rest.sort(key=lambda item: (item.role is not unknown.role, seed[item.name] != size))
    equal = [item for item in rest if seed[item.name] == size]
    like = [item.name for item in equal if item.role is unknown.role]
    for company in dict.fromkeys(((name,), (name, *like), (name, *(item.name for item in equal)))):
        together = dict.fromkeys(company, Fraction(1))
        if len(together) > 1:
            yield together
        for item in rest[:_MAX_PARTNERS]:
            if item.name not in together:
                yield together | {item.name: Fraction(1)}
    for item in rest[:_MAX_PARTNERS]:
        if size and seed[item.name] and seed[item.name] != size:
            yield {name: Fraction(1), item.name: Fraction(seed[item.name], size)}


def _span(direction: Direction, seed: Point, attempt: Attempt, caps: Caps) -> tuple[int, int]:
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


def _bisect(failing: int, running: int, runs: Callable[[int], bool]) -> int:
    for _ in range(_STEPS):
        middle = (failing + running) // 2
        if middle in {failing, running}:
            break
        if runs(middle):
            running = middle
        else:
            failing = middle
    return running


def _together(
    seed: Point, drivers: list[tuple[Direction, int]], corner: str, attempt: Attempt
) -> dict[str, int]:
    reached = dict(seed)
    point: dict[str, int] | None = dict(seed)
    for direction, size in drivers:
        point = None if point is None else direction.at(point, size)
    if _runs(point, attempt, corner) and point is not None:
        return point
    if not _runs(reached, attempt, corner):
        return reached
    for direction, size in drivers:
        tried = direction.at(reached, size)
        if tried is not None and _runs(tried, attempt, corner):
            reached = tried
    return reached
