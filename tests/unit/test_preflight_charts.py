"""The map of preflight's page: its geometry."""

import pytest
from enginewright_cli.preflight.html.charts import Tile, treemap


def test_tiles_fill_the_map_and_never_overlap() -> None:
    weights = [0.4, 0.2, 0.1, 0.1, 0.05, 0.05, 0.04, 0.03, 0.02, 0.01]
    groups = treemap(
        [Tile(weight, str(weight), "n", f"g{i % 3}", "on") for i, weight in enumerate(weights)]
    )
    boxes = [box for group in groups for _, box in group.tiles]
    assert len(boxes) == len(weights)
    assert sum(box.width * box.height for box in boxes) == pytest.approx(10_000)
    for i, box in enumerate(boxes):
        assert box.x + box.width < 100.01
        assert box.y + box.height < 100.01
        for other in boxes[:i]:
            apart_x = box.x + box.width < other.x + 0.01 or other.x + other.width < box.x + 0.01
            apart_y = box.y + box.height < other.y + 0.01 or other.y + other.height < box.y + 0.01
            assert apart_x or apart_y
