"""Sizes in external data, with which ONNX Runtime loads no model: they move into the .onnx file."""

import json
from pathlib import Path

import numpy as np
import onnx
from enginewright_contract.manifest import Manifest
from onnx import numpy_helper

from tests.support.broken_models import parse_text
from tests.support.preparing import Workplace


def save_split(folder: Path) -> None:
    """Write a model whose Split reads its sizes from external data, as size_threshold=0 leaves it."""
    model = parse_text(
        '(float["n", 64] x) => (float["n", 32] y) { a, b = Split <axis = 1> (x, sizes) y = Add(a, b) }',
        numpy_helper.from_array(np.array([32, 32], np.int64), "sizes"),
    )
    path = folder / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0)


def test_sizes_in_external_data_are_served_from_the_onnx_file(place: Workplace) -> None:
    save_split(place.root / "source")
    outcome = place.complete(place.task("pvc://any/m.onnx"))
    folder = place.root / "store/prepared" / outcome.published.key
    manifest = Manifest.model_validate_json((folder / "manifest.json").read_text())
    assert [change.kind for change in manifest.changes] == ["external-data"]
    assert "moved 1 small tensor" in manifest.changes[0].message
    assert not list(folder.rglob("*.data"))
    golden = json.loads((place.root / "store/reports/job-1/golden.json").read_text())
    assert golden["facts"]["golden_outputs"] == "source"
