"""What is compared of outputs that differ between runs, and which models have such outputs."""

import numpy as np
import pytest
from enginewright_runtime.proof.parity.fills import Fill
from enginewright_runtime.proof.parity.observing import is_random
from enginewright_runtime.proof.parity.spread import statistics
from onnx import TensorProto, helper


@pytest.mark.parametrize("size", [1.0, 1e200, 1e-200])
def test_statistics_of_any_magnitude(size: float) -> None:
    spread = statistics(np.array([-1.0, 0.0, 4.0]) * size, np.ones(3), None, Fill())
    assert spread["mean"] == pytest.approx(size)
    assert spread["deviation"] == pytest.approx(np.sqrt(14 / 3) * size)
    assert (spread["min"], spread["max"], spread["magnitude"]) == (-size, 4 * size, 4 * size)


def test_statistics_of_zeros_and_non_finite_values() -> None:
    assert statistics(np.zeros(3), np.ones(3), None, Fill())["deviation"] == 0
    spread = statistics(np.array([np.nan, np.inf, 2.0]), np.ones(3), None, Fill())
    assert spread["mean"] == spread["max"] == 2
    assert statistics(np.zeros(0), np.zeros(0), None, Fill()) == {}


@pytest.mark.parametrize(
    ("operator", "inputs", "random"),
    [
        ("Dropout", ["x"], False),
        ("Dropout", ["x", "ratio"], False),
        ("Dropout", ["x", "ratio", "training"], True),
        ("Gemm", ["x", "w", "b"], False),
        ("RandomNormalLike", ["x"], True),
    ],
)
def test_models_that_draw_numbers(operator: str, inputs: list[str], random: bool) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node(operator, inputs, ["y"])], "graph", [x], [])
    assert is_random(helper.make_model(graph)) == random
