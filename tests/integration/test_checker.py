"""onnx.checker, except where it demands more than ONNX's specification does."""

from pathlib import Path

import onnx
import pytest
from enginewright_runtime.graph.raw.checker import checker_error
from onnx import ModelProto

from tests.support.broken_models import build_unsorted, parse_text


def save(model: ModelProto, folder: Path) -> Path:
    """Save a model whose outputs declare no shape."""
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.parametrize("full", [False, True])
def test_an_output_need_not_declare_a_shape(tmp_path: Path, *, full: bool) -> None:
    path = save(
        parse_text('(float["n", 4] x) => (float["n", 4] y) { y = Relu(x) }'),
        tmp_path,
    )
    assert checker_error(path, full=full) is None
    assert list(tmp_path.iterdir()) == [path]


def test_other_errors_of_a_model_whose_output_declares_no_shape_are_reported(
    tmp_path: Path,
) -> None:
    unsorted = checker_error(save(build_unsorted(), tmp_path))
    assert unsorted is not None
    assert "topologically sorted" in unsorted
    clash = parse_text(
        '(float["n", 4] x) => (float["n", 4] y) { t = Cast <to = 10> (x) y = Add(x, t) }'
    )
    assert checker_error(save(clash, tmp_path), full=True)
