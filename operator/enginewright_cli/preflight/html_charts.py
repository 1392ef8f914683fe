"""The drawings of the page. Each is a picture with words, beside a table with the same figures.

Positions are percentages, so that a chart fits any width while its letters keep their size.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from enginewright_cli.preflight.html_markup import Markup, tag
from enginewright_cli.preflight.words import duration

_TICKS: Final = 4  # about so many on an axis
_STEPS: Final = (1, 2, 2.5, 5, 10)
_ROW: Final = 52  # px
_AXIS: Final = 28  # px, below the rows
_ASPECT: Final = 2.4  # of a map: width to height
_LABELLED_WIDTH: Final = 9.0  # %, of a tile that has room for a name
_LABELLED_HEIGHT: Final = 10.0  # %, likewise
_LEAST_ERROR: Final = -9  # power of ten at the left end of a bar


@dataclass(frozen=True)
class Tile:
    """A rectangle of a map."""

    weight: float  # its share of the area
    title: str  # told on hover
    name: str
    group: str
    kind: str  # its style: on | off


@dataclass(frozen=True)
class Quantiles:
    """What is known of a distribution of times, in seconds."""

    name: str
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True)
class _Box:
    x: float
    y: float
    width: float
    height: float


def bar(share: float, *, kind: str = "on") -> Markup:
    """Return a bar of a share of 1, for a cell whose number stands beside it."""
    width = f"width:{min(1.0, max(0.0, share)) * 100:.2f}%"
    return tag("span", tag("span", class_=kind, style=width), class_="bar", aria_hidden="true")


def split_bar(share_off: float) -> Markup:
    """Return a bar with two parts: on the backend, and elsewhere."""
    off = min(1.0, max(0.0, share_off))
    parts = [("on", 1 - off), ("off", off)]
    return tag(
        "span",
        (
            tag("span", class_=kind, style=f"width:{part * 100:.2f}%")
            for kind, part in parts
            if part
        ),
        class_="bar split",
        aria_hidden="true",
    )


def error_bar(error: float) -> Markup:
    """Return a bar of an error on a logarithmic scale from 1e-9 to 1."""
    power = math.log10(error) if error > 0 else _LEAST_ERROR
    return bar((power - _LEAST_ERROR) / -_LEAST_ERROR, kind="error")


def treemap(tiles: Sequence[Tile], label: str) -> Markup:
    """Return a map whose areas are the tiles' weights; tiles of one group lie together."""
    groups: dict[str, list[Tile]] = {}
    for tile in tiles:
        if tile.weight > 0:
            groups.setdefault(tile.group, []).append(tile)
    ordered = sorted(groups.values(), key=lambda group: -sum(tile.weight for tile in group))
    sums = [sum(tile.weight for tile in group) for group in ordered]
    drawn = []
    for group, box in zip(ordered, _squarify(sums, _Box(0, 0, 100 * _ASPECT, 100)), strict=True):
        group.sort(key=lambda tile: -tile.weight)
        boxes = _squarify([tile.weight for tile in group], box)
        drawn += [_tile(tile, each) for tile, each in zip(group, boxes, strict=True)]
        drawn.append(tag("div", class_="around", style=_place(box)))
    return tag("div", drawn, class_="map", role="img", aria_label=label)


def _tile(tile: Tile, box: _Box) -> Markup:
    roomy = box.width / _ASPECT >= _LABELLED_WIDTH and box.height >= _LABELLED_HEIGHT
    words = [tag("b", tile.group), " ", tag("span", tile.name)] if roomy else None
    return tag("div", words, class_=f"tile {tile.kind}", style=_place(box), title=tile.title)


def _place(box: _Box) -> str:
    x, width = box.x / _ASPECT, box.width / _ASPECT
    return f"left:{x:.3f}%;top:{box.y:.3f}%;width:{width:.3f}%;height:{box.height:.3f}%"


def _squarify(weights: Sequence[float], box: _Box) -> list[_Box]:
    """Divide a box by weights, largest first, into parts that are about square (Bruls et al. 2000)."""
    boxes: list[_Box] = []
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
    """Return the largest ratio of sides in a row that is laid along a side."""
    areas = [weight * scale for weight in row]
    whole = sum(areas)
    return max(side**2 * max(areas) / whole**2, whole**2 / (side**2 * min(areas)))


def _row(row: Sequence[float], box: _Box, scale: float) -> tuple[list[_Box], _Box]:
    """Lay a row along the shorter side; return it, and what is left."""
    area = sum(row) * scale
    upright = box.width >= box.height
    side = (box.height if upright else box.width) or 1e-9
    depth = area / side
    boxes, offset = [], 0.0
    for weight in row:
        length = weight * scale / depth if depth else 0.0
        if upright:
            boxes.append(_Box(box.x, box.y + offset, depth, length))
        else:
            boxes.append(_Box(box.x + offset, box.y, length, depth))
        offset += length
    if upright:
        return boxes, _Box(box.x + depth, box.y, max(0.0, box.width - depth), box.height)
    return boxes, _Box(box.x, box.y + depth, box.width, max(0.0, box.height - depth))


def box_plots(rows: Sequence[Quantiles], label: str) -> Markup:
    """Draw boxes from p50 to p90 with a whisker to p99, on one axis that begins at 0.

    Nothing is drawn below the median, since nothing is known of it.
    """
    step = _step(max(row.p99 for row in rows))
    end = step * math.ceil(max(row.p99 for row in rows) / step)
    height = _ROW * len(rows)
    ticks = [step * index for index in range(round(end / step) + 1)]
    drawn = [_tick(value, value / end, height) for value in ticks]
    for index, row in enumerate(rows):
        drawn += _box_plot(row, end, index * _ROW)
    return tag("svg", drawn, class_="boxes", role="img", aria_label=label, height=height + _AXIS)


def _box_plot(row: Quantiles, end: float, top: int) -> list[Markup]:
    middle = top + _ROW - 17

    def at(value: float) -> str:
        return f"{value / end * 100:.2f}%"

    def upright(value: float, half: int, kind: str) -> Markup:
        x = at(value)
        return tag("line", x1=x, x2=x, y1=middle - half, y2=middle + half, class_=kind)

    told = f"p50 {duration(row.p50)}, p90 {duration(row.p90)}, p99 {duration(row.p99)}"
    return [
        tag("text", tag("tspan", row.name, class_="strong"), f"  {told}", x="0", y=top + 16),
        tag("line", x1=at(row.p90), x2=at(row.p99), y1=middle, y2=middle, class_="whisker"),
        upright(row.p99, 6, "whisker"),
        tag(
            "rect",
            x=at(row.p50),
            width=at(max(row.p90 - row.p50, end / 1000)),
            y=middle - 9,
            height=18,
            class_="box",
        ),
        upright(row.p50, 11, "median"),
    ]


def _tick(value: float, share: float, height: int) -> Markup:
    x = f"{share * 100:.2f}%"
    anchor = "start" if share == 0 else "end" if share > 0.98 else "middle"
    words = "0" if value == 0 else duration(value)
    return tag(
        "g",
        tag("line", x1=x, x2=x, y1=0, y2=height, class_="grid"),
        tag("text", words, x=x, y=height + 18, text_anchor=anchor, class_="tick"),
    )


def _step(largest: float) -> float:
    """Return a round distance between ticks."""
    rough = (largest or 1.0) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in _STEPS if step * power >= rough * (1 - 1e-9))
