"""What is planned for a model's versions: nothing where they suit, a way down, or a refusal."""

from pathlib import Path

import pytest
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.scoped.element_types import types_of
from enginewright_runtime.prepare.convert.planning import plan
from onnx import TensorProto, helper

from tests.support.broken_models import build, value
from tests.support.converting import recipe
from tests.unit.test_conversion_planning import INT64


@pytest.mark.parametrize("backend", ["cpu", "tensorrt", "tensorrt-rtx", "openvino", "cuda"])
def test_real_models_that_suit_are_left_alone(models: Path, backend: str) -> None:
    for path in models.rglob("*.onnx"):
        assert not plan(graphs.parse(path), recipe(backend=backend)).is_needed


def test_types_pass_through_operators_and_bodies(models: Path) -> None:
    types = types_of(graphs.parse(next(models.rglob("silero_vad_half.onnx"))))
    assert types["stateN"] == "tensor(float)"
    assert set(types.values()) == {"tensor(float)", "tensor(int64)", "tensor(bool)"}
    nodes = [
        helper.make_node("Cast", ["x"], ["half"], to=TensorProto.FLOAT16),
        helper.make_node("Exp", ["half"], ["power"]),
        helper.make_node("Shape", ["power"], ["y"]),
    ]
    kinds = types_of(build(nodes, [value("x", 1, 4)], [value("y", 2, kind=INT64)]))
    assert (kinds["power"], kinds["y"]) == ("tensor(float16)", "tensor(int64)")
