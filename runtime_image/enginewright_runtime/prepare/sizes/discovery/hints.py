"""Sizes that ONNX Runtime's error messages suggest. Pure.

The messages have no common form (`Got: 2 Expected: 3`, `3 by 4`, `must have shape {1,3,8}.
Actual:{1,2,8}`), but the actual size and the expected one are among their numbers.
"""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations
from typing import Final

from enginewright_runtime.prepare.sizes.discovery.problem import Point, Problem, rank_of
from enginewright_runtime.prepare.sizes.discovery.roles import Role

Change = dict[str, int]
_RANK: Final = re.compile(r"Invalid rank for input: (?P<name>.+?) Got: \d+ Expected: (?P<rank>\d+)")
_DIMENSIONS: Final = re.compile(r"invalid dimensions for input: (?P<name>.+?) for the following")
_EXPECTED: Final = re.compile(r"index: (?P<axis>\d+) Got: \d+ Expected: (?P<size>\d+)")
# numbers that are not sizes: source lines, names, axes, status codes
_NOISE: Final = re.compile(
    r"\S+\.(?:h|cc|cpp):\d+|Name: ?'[^']*'|(?:[Aa]xis|index:|input|operand|dimension)[ =]\d+"
    r"|\[ONNXRuntimeError\] : \d+ :|axis == 1|other than 1"
)
_NODE: Final = re.compile(r"while running \w+ node\. Name: ?'(?P<name>[^']*)'")
_NUMBER: Final = re.compile(r"(?<![\w.])\d+(?![\w.]*[A-Za-z_])")
_MAX_NUMBERS: Final = 16
_MAX_CHANGES: Final = 24
_LARGEST: Final = 1 << 20
_LARGEST_PRODUCT: Final = 1 << 28
_STRIDE: Final = 16
_SIDES: Final = 2
_LEAST_SIDE: Final = 8


def find_failed_node(message: str) -> str | None:
    """Return the name of the node that failed, the innermost one if it is in a body."""
    names = [match["name"] for match in _NODE.finditer(message) if match["name"]]
    return names[-1] if names else None


def changes(message: str, point: Point, problem: Problem) -> list[Change]:
    """Return changes of `point` that a failed run's message suggests, the most likely first."""
    kept: list[Change] = []
    for change in (
        *_parse_named(message, problem),
        *_by_numbers(_numbers(message), point, problem),
    ):
        if change not in kept and any(point[name] != size for name, size in change.items()):
            kept.append(change)
    batches = [item.name for item in problem.unknowns if item.role is Role.BATCH]
    present = {point[name] for name in batches}
    # another batch size rarely fixes a layer's error, unless another input has that batch size
    kept.sort(key=lambda change: any(change.get(name, 1) not in {1, *present} for name in batches))
    return kept[:_MAX_CHANGES]


def _parse_named(message: str, problem: Problem) -> Iterator[Change]:
    if (match := _RANK.search(message)) and (name := rank_of(match["name"])) in problem.choices:
        options = problem.choices[name]
        if int(match["rank"]) in options:
            yield {name: options.index(int(match["rank"]))}
    if (match := _DIMENSIONS.search(message)) and (shape := problem.shapes.get(match["name"])):
        change: Change = {}
        for expected in _EXPECTED.finditer(message):
            axis, size = int(expected["axis"]), int(expected["size"])
            if axis < len(shape) and len(shape[axis].terms) == 1:
                change[shape[axis].terms[0]] = size - shape[axis].number
        if change:
            yield change


def _numbers(message: str) -> list[int]:
    text = _NOISE.sub(" ", message)
    numbers = (int(item) for item in _NUMBER.findall(text))
    return list(dict.fromkeys(number for number in numbers if number <= _LARGEST_PRODUCT))[
        :_MAX_NUMBERS
    ]


def _by_numbers(numbers: Sequence[int], point: Point, problem: Problem) -> Iterator[Change]:
    sizes = {item.name: point[item.name] for item in problem.unknowns}
    for actual in numbers:
        same = [name for name, size in sizes.items() if size == actual]
        for expected in numbers:
            if expected == actual or expected > _LARGEST:
                continue
            if len(same) > 1:
                yield dict.fromkeys(same, expected)
            for name in same:
                yield {name: expected}
    yield from _areas(numbers, point, problem)
    yield from _derive_changes(numbers, sizes)


def _areas(numbers: Sequence[int], point: Point, problem: Problem) -> Iterator[Change]:
    pixels = [item.name for item in problem.unknowns if item.role is Role.PIXELS]
    if len(pixels) < _SIDES:
        return
    for actual, expected in permutations(numbers, 2):
        if min(actual, expected) > 1:
            side = round(point[pixels[0]] * math.sqrt(expected / actual))
            if _LEAST_SIDE <= side < point[pixels[0]]:
                yield dict.fromkeys(pixels, side)


def _derive_changes(numbers: Sequence[int], sizes: Point) -> Iterator[Change]:
    pairs = [*pairwise(numbers)]
    # no message says which number is actual and which expected; smaller sizes are tried first
    for actual, expected in sorted(
        [*pairs, *(pair[::-1] for pair in pairs)], key=lambda pair: -pair[0]
    ):
        for name, size in sizes.items():
            for change in (expected - actual, actual - expected):
                if 0 < size + change <= _LARGEST:
                    yield {name: size + change}
            if actual and expected and 0 < (scaled := size * expected // actual) <= _LARGEST:
                # strides make sizes multiples of powers of two
                if scaled > _STRIDE:
                    yield {name: scaled // _STRIDE * _STRIDE}
                yield {name: scaled}
