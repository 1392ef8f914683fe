"""The unknowns of a model's inputs: dynamic sizes, and values on which it branches. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from enginewright_contract.manifest import TensorSpec
from enginewright_contract.task import ShapeProfile
from onnx import ModelProto

from enginewright_runtime.graph.raw.graphs import PLACEHOLDER_DIMENSIONS
from enginewright_runtime.graph.shapes import CORNERS
from enginewright_runtime.prepare.sizes.discovery import graph
from enginewright_runtime.prepare.sizes.discovery.graph import Clues
from enginewright_runtime.prepare.sizes.discovery.roles import LEAST_PIXELS, SIZES, Role, role_of
from enginewright_runtime.proof.golden_inputs import IntegerRange

Point = Mapping[str, int]  # a size of every unknown, and an index of every choice
# of a choice: ranks, ranges of values, or names of integer ranges; "drawn" is no range
Options: TypeAlias = tuple[str | tuple[float, float] | int, ...]

_SUM: Final = re.compile(r"\s*[A-Za-z_][\w.]*(?:\s*\+\s*(?:[A-Za-z_][\w.]*|\d+))+\s*")
_RANKS: Final = (2, 1, 3, 4, 0)  # to try for an input without a declared rank
_NUMBERED: Final = re.compile(r"\d+")
DRAWN: Final = "drawn"
# of values that are sizes: Expand and Tile take ones, and a Reshape zeros, or -1 for its only size
_AS_SIZES: Final[Options] = ((1.0, 1.0), (0.0, 0.0), (-1.0, -1.0))
INTEGERS: Final = "integers"  # the choice of an integer range


@dataclass(frozen=True)
class Size:
    """One dimension: a sum of unknowns and a number."""

    terms: tuple[str, ...] = ()
    number: int = 0

    def at(self, point: Point) -> int:
        """Return the size."""
        return self.number + sum(point[term] for term in self.terms)


@dataclass(frozen=True)
class Unknown:
    """A size to be found."""

    name: str
    role: Role
    sizes: tuple[int, ...]  # to be tried, the most likely first

    @property
    def least(self) -> int:
        """Return the smallest non-empty size that is worth trying."""
        return LEAST_PIXELS if self.role is Role.PIXELS else 1


@dataclass(frozen=True)
class Problem:
    """A model's inputs and their unknowns."""

    inputs: tuple[TensorSpec, ...]
    given: tuple[ShapeProfile, ...]  # of inputs whose sizes are known
    shapes: Mapping[str, tuple[Size, ...]]  # of the others; with the highest rank to try
    unknowns: tuple[Unknown, ...]
    choices: Mapping[str, Options] = field(default_factory=dict)
    # by corner, sizes of the named dimensions in given profiles
    symbols: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def start(self) -> dict[str, int]:
        """Return the most likely point."""
        return {item.name: item.sizes[0] for item in self.unknowns} | dict.fromkeys(self.choices, 0)

    def shapes_at(self, point: Point, corner: str) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all inputs; those of given ones are at `corner`."""
        given = {profile.input: getattr(profile, corner) for profile in self.given}
        sizes = {**point, **self.symbols.get(corner, {})}
        return given | {name: self.shape(name, sizes) for name in self.shapes}

    def shape(self, name: str, point: Point) -> tuple[int, ...]:
        """Return the shape of an input with unknown sizes."""
        dimensions = self.shapes[name]
        rank = self.choices.get(rank_of(name))
        if rank is not None:
            picked = rank[point[rank_of(name)]]
            dimensions = dimensions[: int(picked)] if isinstance(picked, int) else dimensions
        return tuple(dimension.at(point) for dimension in dimensions)

    def profiles(self, corners: Mapping[str, Point]) -> tuple[ShapeProfile, ...]:
        """Return profiles of all inputs, in their order, from points by corner; values are those of opt."""
        given = {shape_profile.input: shape_profile for shape_profile in self.given}
        shapes = {corner: self.shapes_at(point, corner) for corner, point in corners.items()}
        profiles = []
        for spec in self.inputs:
            profile = given.get(spec.name) or ShapeProfile(
                input=spec.name, **{corner: sizes[spec.name] for corner, sizes in shapes.items()}
            )
            span = self.span(spec.name, corners["opt"])
            if span is not None:
                profile = profile.model_copy(update={"low": span[0], "high": span[1]})
            profiles.append(profile)
        return tuple(profiles)

    def span(self, name: str, point: Point) -> tuple[float, float] | None:
        """Return the range of an input's values, or None if `integer_range` decides."""
        options = self.choices.get(values_of(name))
        picked = None if options is None else options[point[values_of(name)]]
        return picked if isinstance(picked, tuple) else None

    def integer_range(self, point: Point) -> IntegerRange:
        """Return the range of integers without a declared one."""
        if (options := self.choices.get(INTEGERS)) is None:
            return IntegerRange.DIGITS
        return IntegerRange(str(options[point[INTEGERS]]))

    def peers(self) -> dict[str, list[str]]:
        """Return unknowns that most likely change together, by their role."""
        by_role: dict[str, list[str]] = {}
        for item in self.unknowns:
            by_role.setdefault(item.role.value, []).append(item.name)
        return {role: names for role, names in by_role.items() if len(names) > 1}


def rank_of(name: str) -> str:
    """Return the name of the choice of an input's rank."""
    return f"rank of {name}"


def values_of(name: str) -> str:
    """Return the name of the choice of an input's values."""
    return f"values of {name}"


def pose(
    inputs: Sequence[TensorSpec],
    given: Sequence[ShapeProfile],
    unranked: frozenset[str],
    clues: Clues,
) -> Problem:
    """Return the unknowns of inputs without `given` profiles; `unranked` ones declare no rank."""
    sized = {profile.input for profile in given}
    open_inputs = [spec for spec in inputs if spec.name not in sized]
    symbols = frozenset(item for spec in inputs for item in spec.shape if isinstance(item, str))
    named = {corner: _collect_named(inputs, given, corner) for corner in CORNERS}
    shapes: dict[str, tuple[Size, ...]] = {}
    places: dict[str, tuple[TensorSpec, int]] = {}
    choices: dict[str, Options] = {}
    for spec in open_inputs:
        dimensions = spec.shape
        if spec.name in unranked:
            dimensions = (None,) * max(_RANKS)
            choices[rank_of(spec.name)] = _RANKS
        row = []
        for axis, dimension in enumerate(dimensions):
            size = _size(spec.name, axis, dimension, symbols)
            row.append(size)
            for term in size.terms:
                if term not in named["opt"]:
                    places.setdefault(term, (spec, axis))
        shapes[spec.name] = tuple(row)
    ranged = {profile.input for profile in given if profile.low is not None}
    free = [spec for spec in inputs if spec.name not in ranged]
    if any(_is_integer(spec) for spec in free):
        choices[INTEGERS] = tuple(IntegerRange)
    for spec in free:
        if options := _values(spec, clues):
            choices[values_of(spec.name)] = options
    unknowns = [
        _make_unknown(name, spec, axis, clues, alone=len(inputs) == 1)
        for name, (spec, axis) in places.items()
    ]
    unknowns.sort(key=lambda item: item.role is not Role.BATCH)
    return Problem(tuple(inputs), tuple(given), shapes, tuple(unknowns), choices, named)


def is_switched(model: ModelProto, inputs: Sequence[TensorSpec]) -> bool:
    """Tell whether the graph compares the value of a single integer among the inputs, or takes values for sizes."""
    clues = graph.read(model, [spec.name for spec in inputs])
    options = (_values(spec, clues) for spec in inputs if spec.name in clues.compared)
    if any(option[0] != DRAWN for option in options if option):
        return True
    return any(_is_sizing(spec, clues) for spec in inputs)


def _is_integer(spec: TensorSpec) -> bool:
    return spec.dtype.startswith(("int", "uint"))


def _is_sizing(spec: TensorSpec, clues: Clues) -> bool:
    return spec.name in clues.sizing and _is_integer(spec) and len(spec.shape) <= 1


def _values(spec: TensorSpec, clues: Clues) -> Options:
    constants: Options = tuple((value, value) for value in clues.compared.get(spec.name, ()))
    if spec.dtype == "bool":
        return (DRAWN, (0.0, 0.0), (1.0, 1.0))
    if _is_sizing(spec, clues):
        constants = (*constants, *_AS_SIZES)
    if not constants or len(spec.shape) > 1:
        return ()
    # a single number is a switch; among several, a compared constant is more often padding
    alone = all(size == 1 for size in spec.shape) and spec.name in clues.compared
    return (*constants, DRAWN) if alone and _is_integer(spec) else (DRAWN, *constants)


def _collect_named(
    inputs: Sequence[TensorSpec], given: Sequence[ShapeProfile], corner: str
) -> dict[str, int]:
    shapes = {spec.name: spec.shape for spec in inputs}
    by_symbol: dict[str, int] = {}
    for profile in given:
        sizes: tuple[int, ...] = getattr(profile, corner)
        for dimension, size in zip(shapes.get(profile.input, ()), sizes, strict=False):
            if isinstance(dimension, str) and dimension not in PLACEHOLDER_DIMENSIONS:
                by_symbol.setdefault(dimension, size)
    return by_symbol


def _size(name: str, axis: int, dimension: int | str | None, symbols: frozenset[str]) -> Size:
    if isinstance(dimension, int):
        return Size(number=dimension)
    if dimension is None or dimension in PLACEHOLDER_DIMENSIONS:
        # layers of one kind have states of equal shape: past.0.key, past.1.key
        return Size((f"{_NUMBERED.sub('#', name)}[{axis}]",))
    if _SUM.fullmatch(dimension):
        parts = [part.strip() for part in dimension.split("+")]
        names = [part for part in parts if not part.isdigit()]
        if symbols.issuperset(names):
            return Size(tuple(names), sum(int(part) for part in parts if part.isdigit()))
    return Size((dimension,))


def _make_unknown(name: str, spec: TensorSpec, axis: int, clues: Clues, *, alone: bool) -> Unknown:
    role = role_of(name, spec, axis, alone=alone)
    defaults = SIZES[role]
    clue = tuple(clues.sizes.get(spec.name, ())) if role is not Role.BATCH else ()
    return Unknown(name, role, tuple(dict.fromkeys((defaults[0], *clue, *defaults))))
