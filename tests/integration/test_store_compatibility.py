"""Artefacts of earlier versions: those that new pods cannot prove are made again, others stay."""

import json
from io import BytesIO
from pathlib import Path

from enginewright_contract.manifest import Manifest
from enginewright_contract.reasons import Reason
from enginewright_runtime.store.store import lacks_distributions
from onnx import ModelProto

from tests.support import broken_models as broken
from tests.support.preparing import Workplace

# what manifests recorded later
LATER = ("varying", "profiles", "processor", "saturable")


STEADY = broken.open_dimensions("n", 4)


def noisy() -> ModelProto:
    return broken.parse_text(
        """(float["n", 4] x) => (float["n", 4] y) {
        [noise] noise = RandomNormalLike(x) [add] y = Add(x, noise) }"""
    )


def prepare_model(place: Workplace, model: ModelProto) -> Path:
    """Prepare a model; return its artefact's manifest."""
    outcome = place.complete(place.task(place.put("m.onnx", model)))
    return place.root / "store/prepared" / outcome.published.key / "manifest.json"


def make_earlier(path: Path) -> None:
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({name: manifest[name] for name in manifest if name not in LATER}))


# fault: Outputs | an earlier version prepared random outputs without their distribution | the
#   artefact is refused and prepared again | before the model is loaded
def test_random_outputs_of_an_earlier_version_are_prepared_again(place: Workplace) -> None:
    """Else each pod that starts after an upgrade fails: all outputs are compared by values."""
    path = prepare_model(place, noisy())
    make_earlier(path)
    fetched = place.fetch_artifact(path.parent.name)
    assert fetched.report.reason is Reason.ARTIFACT_CORRUPT, fetched.message
    assert "built by an earlier version" in fetched.message
    assert prepare_model(place, noisy()) == path
    assert Manifest.model_validate_json(path.read_text()).varying
    assert place.fetch_artifact(path.parent.name).code == 0


def test_other_artefacts_of_an_earlier_version_stay(place: Workplace) -> None:
    path = prepare_model(place, STEADY)
    make_earlier(path)
    before = path.read_bytes()
    assert place.fetch_artifact(path.parent.name).code == 0
    assert prepare_model(place, STEADY) == path
    assert path.read_bytes() == before


def test_an_operator_is_found_across_pieces_that_are_read(tmp_path: Path) -> None:
    path = prepare_model(Workplace(tmp_path, in_process=True), STEADY)
    make_earlier(path)
    manifest = Manifest.model_validate_json(path.read_text())
    piece = 4 << 20
    for place in (0, piece - 5, piece, 2 * piece - 1):
        assert lacks_distributions(manifest, BytesIO(bytes(place) + b"RandomUniformLike"))
    assert not lacks_distributions(manifest, BytesIO(bytes(3 * piece)))
