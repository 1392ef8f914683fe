"""The geometry of the page's charts, in percent, so that the templates only draw and text keeps its size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_TICKS: Final = 4  # approximate number on an axis
_STEPS: Final = (1, 2, 2.5, 5, 10)
_ASPECT: Final = 2.4  # of a map: width to height
_LABELLED_WIDTH: Final = 9.0  # %, minimum for a tile with a name
_LABELLED_HEIGHT: Final = 10.0  # %, minimum for a tile with a name
_LEAST_ERROR: Final = -9  # power of ten at the left end of a bar


@dataclass(frozen=True)
class Box:
    """A rectangle of a map; all in % of the map."""

    x: float
    y: float
    width: float
    height: float

    @property
    def labelled(self) -> bool:
        """Whether a name fits into it."""
        return self.width >= _LABELLED_WIDTH and self.height >= _LABELLED_HEIGHT


@dataclass(frozen=True)
class Tile:
    """The content of one rectangle of a map."""

    weight: float  # its share of the area
    title: str  # shown on hover
    name: str
    group: str
    kind: str  # its style: on | off


@dataclass(frozen=True)
class TileGroup:
    """The adjacent tiles of one group, and the rectangle around them."""

    box: Box
    tiles: tuple[tuple[Tile, Box], ...]


@dataclass(frozen=True)
class Axis:
    """An axis from 0 to `end`, in seconds."""

    end: float
    ticks: tuple[float, ...]


def treemap(tiles: Sequence[Tile]) -> list[TileGroup]:
    """Return a map whose areas are the tiles' weights."""
    groups: dict[str, list[Tile]] = {}
    for tile in tiles:
        if tile.weight > 0:
            groups.setdefault(tile.group, []).append(tile)
    ordered = sorted(groups.values(), key=lambda group: -sum(tile.weight for tile in group))
    sums = [sum(tile.weight for tile in group) for group in ordered]
    drawn = []
    for group, box in zip(ordered, _squarify(sums, Box(0, 0, 100 * _ASPECT, 100)), strict=True):
        group.sort(key=lambda tile: -tile.weight)
        boxes = map(_percent, _squarify([tile.weight for tile in group], box))
        drawn.append(TileGroup(_percent(box), tuple(zip(group, boxes, strict=True))))
    return drawn


def _percent(box: Box) -> Box:
    return Box(box.x / _ASPECT, box.y, box.width / _ASPECT, box.height)


def _squarify(weights: Sequence[float], box: Box) -> list[Box]:
    """Divide a box by weights, largest first, into approximate squares (Bruls et al. 2000)."""
    boxes: list[Box] = []
    rest, start = box, 0
    scale = box.width * box.height / (sum(weights) or 1.0)
    while start < len(weights):
        side = min(rest.width, rest.height) or 1e-9
        end = start + 1
        worst = _worst(weights[start:end], side, scale)
        while end < len(weights):
            longer = _worst(weights[start : end + 1], side, scale)
            if longer > worst:
                break
            worst, end = longer, end + 1
        row, rest = _row(weights[start:end], rest, scale)
        boxes += row
        start = end
    return boxes


def _worst(row: Sequence[float], side: float, scale: float) -> float:
    """Return the largest aspect ratio in a row that is laid along a side."""
    areas = [weight * scale for weight in row]
    total = sum(areas)
    return max(side**2 * max(areas) / total**2, total**2 / (side**2 * min(areas)))


def _row(row: Sequence[float], box: Box, scale: float) -> tuple[list[Box], Box]:
    """Lay a row along the shorter side; return its boxes and the remaining box."""
    area = sum(row) * scale
    upright = box.width >= box.height
    side = (box.height if upright else box.width) or 1e-9
    depth = area / side
    boxes, offset = [], 0.0
    for weight in row:
        length = weight * scale / depth if depth else 0.0
        if upright:
            boxes.append(Box(box.x, box.y + offset, depth, length))
        else:
            boxes.append(Box(box.x + offset, box.y, length, depth))
        offset += length
    if upright:
        return boxes, Box(box.x + depth, box.y, max(0.0, box.width - depth), box.height)
    return boxes, Box(box.x, box.y + depth, box.width, max(0.0, box.height - depth))


def axis(largest: float) -> Axis:
    """Return an axis from 0 to at least `largest`, with ticks at round numbers."""
    rough = (largest or 1.0) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step * power for step in _STEPS if step * power >= rough * (1 - 1e-9))
    count = math.ceil(largest / step)
    return Axis(step * count, tuple(step * index for index in range(count + 1)))


def error_share(error: float) -> float:
    """Return the position of an error on a logarithmic scale from 1e-9 (0) to 1 (1)."""
    power = math.log10(error) if error > 0 else _LEAST_ERROR
    return (power - _LEAST_ERROR) / -_LEAST_ERROR
