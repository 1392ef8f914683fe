"""`--fix`: what it writes is what would serve, whole or not at all, over nothing of anybody else's.

What of it starts something: the rest is in tests/unit.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.support import broken_models as broken
from tests.support.preflighting import Preflighted
from tests.unit.test_preflight_fix import WEIGHTS, prepared, tree, write


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "place"
    folder.mkdir()
    return folder


def test_a_real_model_is_written_as_it_would_serve(rendered: Preflighted) -> None:
    model, log = rendered.folder / "fixed.onnx", rendered.folder / "fixed.changes.json"
    told = json.loads(log.read_text())
    assert told["schema"] == "enginewright.dev/preflight-fix/v1"
    assert (told["target"], told["opset"], told["source_digest"]) == (
        "cpu",
        17,
        rendered.told["model"]["digest"],
    )
    assert told["changes"] == rendered.told["targets"]["cpu"]["changes"]
    assert told["changes"][0]["kind"] == "opset"
    assert told["parity"]["outputs"][0]["max_abs_error"] < 1e-6
    (file,) = told["files"]
    assert file["sha256"] == hashlib.sha256(model.read_bytes()).hexdigest()
    assert onnx.load(model).opset_import[0].version == 17
    sources = [ort.InferenceSession(path) for path in (rendered.told["source"], model)]
    feeds = {"x": np.random.default_rng(0).random((1, 3, 48, 192), dtype=np.float32)}
    first, second = (each.run(None, feeds)[0] for each in sources)
    np.testing.assert_allclose(first, second, rtol=1e-5)
    assert f"wrote {model.name}" in rendered.stderr
    assert "changed: converted opset 11 to 17" in rendered.stderr
    assert {path.name for path in rendered.folder.iterdir()} == {
        *("fixed.onnx", "fixed.changes.json", "page.html", "junit.xml")
    }


def test_nothing_is_written_of_a_model_that_nothing_serves(refused: Preflighted) -> None:
    assert refused.code == 1
    assert not list(refused.folder.glob("fixed*"))
    assert "nothing is written, for no target would serve it" in refused.stderr


def test_external_data_goes_along_and_the_sources_stays(examples: Preflighted) -> None:
    """Through the whole pipeline, beside a source whose data has a name that ours might have."""
    place = examples.folder
    assert examples.code == 0, examples.stderr
    assert (place / "fixed.bin").read_bytes() == broken.weights()
    assert (place / "model.onnx").read_bytes() == broken.external("fixed.bin").SerializeToString()
    log = json.loads((place / "fixed.changes.json").read_text())
    assert len(log["files"]) == 1 + len(list(place.glob("fixed.data/*")))
    for each in log["files"]:
        content = (place / each["path"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == each["sha256"]
    onnx.checker.check_model(str(place / "fixed.onnx"), full_check=True)
    feeds = {"x": np.ones((1, 4), dtype=np.float32)}
    (out,) = ort.InferenceSession(place / "fixed.onnx").run(None, feeds)
    np.testing.assert_array_equal(out, feeds["x"])


def test_data_has_names_of_its_content_and_is_found(tmp_path: Path, place: Path) -> None:
    prepared(tmp_path)
    log = write(place / "out.onnx", tmp_path)
    assert log is not None
    name = f"out.data/{hashlib.sha256(WEIGHTS).hexdigest()[:16]}.bin"
    assert [each.path for each in log.files] == ["out.onnx", name]
    assert sorted(tree(place)) == ["out.changes.json", name, "out.onnx"]
    feeds = {"x": np.ones((1, 4), dtype=np.float32)}
    (out,) = ort.InferenceSession(place / "out.onnx").run(None, feeds)
    np.testing.assert_array_equal(out, [[24, 28, 32, 36]])
