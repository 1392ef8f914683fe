"""The tiles of the placement map: each an area as large as its nodes' share of the compute time."""

from collections.abc import Iterator
from typing import Final

from enginewright_cli.preflight import formatting
from enginewright_cli.preflight.html.charts import Tile
from enginewright_cli.preflight.placement import operator_of
from enginewright_cli.preflight.result import PlacedNode, PlacedOperator, Placement

_TITLE_LENGTH: Final = 300  # characters of a node's name
_NAME_LENGTH: Final = 60


def tiles(placement: Placement, backend: str) -> Iterator[Tile]:
    """Yield a tile for the nodes of one name on the backend, one for those elsewhere, and the rest."""
    listed: dict[str, list[PlacedNode]] = {}
    for node in placement.nodes:
        operator = operator_of(node.label)
        listed.setdefault(operator, []).append(node)
        for part, kind, where in (
            (node.count - node.elsewhere, "on", f"on backend {backend}"),
            (node.elsewhere, "off", "elsewhere"),
        ):
            if part:
                weight = (node.share or 0.0) * part / node.count
                label = formatting.visible(node.label, _TITLE_LENGTH)
                title = f"{label}: {formatting.share(weight)} of the compute time, {where}"
                name = formatting.visible(node.label.rpartition(" (")[0], _NAME_LENGTH)
                times = f" x{part}" if part > 1 else ""
                yield Tile(weight, title, name + times, operator, kind)
    for each in placement.operators:
        yield from _rest(each, listed.get(each.operator, []), backend)


def _rest(each: PlacedOperator, listed: list[PlacedNode], backend: str) -> Iterator[Tile]:
    """Yield the nodes of an operator that are not listed, as one tile."""
    count = each.count - sum(node.count for node in listed)
    weight = (each.share or 0.0) - sum(node.share or 0.0 for node in listed)
    outside = each.elsewhere - sum(node.elsewhere for node in listed)
    if count > 0 and weight > 0:
        where = f"{outside} of them elsewhere" if outside else f"on backend {backend}"
        nodes = f"{formatting.counted(count, 'further node')} of {each.operator}"
        title = f"{nodes}: {formatting.share(weight)} of the compute time, {where}"
        kind = "off" if outside else "on"
        yield Tile(weight, title, f"{count} further", each.operator, kind)
