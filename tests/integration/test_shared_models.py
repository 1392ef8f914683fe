"""Models with equal content share one prepared model, whatever their Jobs and addresses are called."""

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from enginewright_contract.keys import prepared_keys
from enginewright_contract.report import Published
from enginewright_contract.task import PrepareTask

from tests.support.preparing import Workplace, rename_artifact
from tests.support.serving import linear_model


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


def samples(scale: float = 1.0) -> bytes:
    """Return one golden sample of the linear model."""
    file = io.BytesIO()
    arrays = {"one/x": np.full((1, 8), scale, np.float32)}
    np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy's stub
    return file.getvalue()


def task(place: Workplace, name: str, *, scale: float = 1.0) -> PrepareTask:
    """Return the task of a model of this name, whose files have addresses of their own."""
    content = samples(scale)
    (place.root / "samples" / f"{name}.npz").write_bytes(content)
    uri = place.put(f"{name}/model.onnx", linear_model())
    wanted = place.task(uri, samples_uri=f"pvc://samples/{name}.npz")
    return wanted.model_copy(update={"job": f"{name}-prepare-1"})


def prepared(place: Workplace, wanted: PrepareTask) -> Published:
    """Run a new pod's stages."""
    shutil.rmtree(place.root / "work")
    (place.root / "work").mkdir()
    name, outcome = place.prepare(wanted)
    assert (name, outcome.code) == ("publish", 0), outcome.message
    assert outcome.report.published is not None
    return outcome.report.published


def artefacts(place: Workplace) -> list[str]:
    return sorted(path.name for path in (place.root / "store/prepared").iterdir())


def test_equal_content_at_other_addresses_is_one_artefact(place: Workplace) -> None:
    first = prepared(place, task(place, "resnet"))
    second = prepared(place, task(place, "copy-of-resnet"))
    assert (first.cached, second.cached) == (False, True)
    assert first.key == second.key
    third = prepared(place, task(place, "others", scale=2.0))
    assert not third.cached
    assert artefacts(place) == sorted({first.key, third.key})


def test_what_an_earlier_version_has_prepared_keeps_its_key(place: Workplace) -> None:
    """Its keys contained addresses: an upgrade must not prepare such models again."""
    wanted = task(place, "resnet")
    now = prepared(place, wanted)
    key, earlier = prepared_keys(now.model_digest, wanted.recipe, now.data)
    assert now.key == key
    folder = rename_artifact(place.root / "store", key, earlier)
    again = prepared(place, wanted)
    assert (again.key, again.cached) == (earlier, True)
    assert artefacts(place) == [earlier]
    model = folder / "model/model.onnx"
    model.chmod(0o644)
    model.write_bytes(model.read_bytes()[:-1] + b"?")
    mended = prepared(place, wanted)
    assert (mended.key, mended.cached) == (earlier, False), (
        "what is damaged is replaced in its place"
    )
    (folder / "manifest.json").write_text("damaged")
    assert prepared(place, wanted).key == earlier
    assert prepared(place, task(place, "copy-of-resnet")).key == key
