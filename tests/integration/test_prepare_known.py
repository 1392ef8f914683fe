"""A model that was prepared before: `fetch` finds it in the store, and the other stages have nothing to do."""

import shutil
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from enginewright_contract.keys import compute_prepared_keys
from enginewright_contract.report import Published
from enginewright_contract.task import PREPARE_STAGES, PrepareTask

from tests.support import broken_models as broken
from tests.support.preparing import Outcome, Workplace, rename_artifact, replace_file

PIPELINE = "1" * 64


def of_image(
    task: PrepareTask, pipeline: str | None = PIPELINE, cluster: str | None = None
) -> PrepareTask:
    return task.model_copy(update={"pipeline": pipeline, "cluster": cluster})


def empty_workplace(place: Workplace) -> Workplace:
    """Return the folders as another Job's pod has them."""
    shutil.rmtree(place.root / "work")
    (place.root / "work").mkdir()
    return place


def again(place: Workplace, task: PrepareTask) -> list[Outcome]:
    """Run all stages in the pod of another Job."""
    empty_workplace(place)
    return [place.stage(name, task) for name in PREPARE_STAGES]


def prepare_model(place: Workplace, task: PrepareTask) -> Published:
    _, outcome = place.prepare(task)
    assert not outcome.published.cached
    return outcome.published


def is_known(outcomes: list[Outcome]) -> bool:
    assert [outcome.code for outcome in outcomes] == [0] * len(PREPARE_STAGES)
    published = [outcome.report.published for outcome in outcomes]
    assert published[-1]
    assert published[-1].cached
    assert all(item is None for item in published[1:-1])
    is_stored = published[0] is not None
    assert published[0] == (published[-1] if is_stored else None)
    assert [outcome.message.startswith("nothing to do: ") for outcome in outcomes[1:]] == [
        is_stored
    ] * 5
    return is_stored


def test_only_fetch_has_something_to_do_and_reports_the_same(place: Workplace) -> None:
    task = of_image(place.task(place.put("m.onnx", broken.relu())))
    first = prepare_model(place, task)
    moved = task.model_copy(update={"source_uri": place.put("moved.onnx", broken.relu())})
    outcomes = again(place, moved)
    assert is_known(outcomes)
    assert outcomes[-1].report.published == first.model_copy(update={"cached": True})
    said = f"; the store already had prepared model {first.key[:12]}"
    assert outcomes[0].message.endswith(said)
    assert outcomes[0].full["published"]["key"] == first.key
    assert not (place.root / "work/validated.json").exists()


def test_external_data_and_samples_count(place: Workplace) -> None:
    np.savez(place.root / "samples/s.npz", x=np.ones((1, 4), np.float32))
    place.put("w.bin", broken.weights())
    uri = place.put("m.onnx", broken.external("w.bin"))
    task = of_image(place.task(uri, samples_uri="pvc://samples/s.npz"))
    first = prepare_model(place, task)
    outcomes = again(place, task)
    assert is_known(outcomes)
    assert outcomes[-1].published.data == first.data
    np.savez(place.root / "samples/s.npz", x=np.zeros((1, 4), np.float32))
    assert prepare_model(empty_workplace(place), task).key != first.key


def cut(artifact: Path) -> None:
    model = artifact / "model/model.onnx"
    model.write_bytes(model.read_bytes()[:-1])


def without_manifest(artifact: Path) -> None:
    (artifact / "manifest.json").unlink()


def with_another_manifest(artifact: Path) -> None:
    manifest = artifact / "manifest.json"
    manifest.write_text(manifest.read_text().replace(artifact.name, "f" * 64))


# fault: Store | an artefact that the store has lost, or that is damaged, is taken for the one that was prepared before |
#   stage `fetch` reads all of it | before the other stages are left out
@pytest.mark.parametrize("damage", [shutil.rmtree, cut, without_manifest, with_another_manifest])
def test_a_lost_or_damaged_artefact_is_prepared_again(
    damage: Callable[[Path], None], place: Workplace
) -> None:
    task = of_image(place.task(place.put("m.onnx", broken.relu())))
    first = prepare_model(place, task)
    damage(place.root / "store/prepared" / first.key)
    assert prepare_model(empty_workplace(place), task) == first
    assert is_known(again(place, task))


# fault: Store | another runtime image, which may refuse the model, takes what an earlier image prepared under the same
#   key for its own | the store has records of the images whose stages have passed | all stages run once
@pytest.mark.parametrize("pipeline", ["2" * 64, None])
def test_an_image_with_other_stages_runs_them(pipeline: str | None, place: Workplace) -> None:
    task = of_image(place.task(place.put("m.onnx", broken.relu())))
    prepare_model(place, task)
    other = of_image(task, pipeline)
    assert not is_known(again(place, other))
    assert is_known(again(place, other)) == (pipeline is not None)
    assert is_known(again(place, task))


def test_a_recipe_that_makes_another_artefact_runs_all_stages(place: Workplace) -> None:
    task = of_image(place.task(place.put("m.onnx", broken.relu())))
    first = prepare_model(place, task)
    other = of_image(place.task(task.source_uri, rtol=0.5))
    assert place.complete(other).published.key != first.key


def test_a_lost_record_costs_one_run(place: Workplace) -> None:
    task = of_image(place.task(place.put("m.onnx", broken.relu())))
    prepare_model(place, task)
    shutil.rmtree(place.root / "store/caches")
    assert not is_known(again(place, task))
    assert is_known(again(place, task))


def test_an_artefact_without_reported_facts_is_unknown(place: Workplace) -> None:
    """As those of earlier versions, whose manifests had no signature."""
    task = of_image(place.task(place.put("m.onnx", broken.relu())))
    first = prepare_model(place, task)
    manifest = place.root / "store/prepared" / first.key / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"signature":', '"signed":'))
    assert not is_known(again(place, task))


def test_an_artefact_under_a_key_of_an_earlier_version_is_known(place: Workplace) -> None:
    np.savez(place.root / "samples/s.npz", x=np.ones((1, 4), np.float32))
    uri = place.put("m.onnx", broken.relu())
    task = of_image(place.task(uri, samples_uri="pvc://samples/s.npz"))
    first = prepare_model(place, task)
    keys = compute_prepared_keys(first.model_digest, task.recipe, first.data)
    assert keys[0] == first.key
    rename_artifact(place.root / "store", *keys)
    assert not is_known(again(place, task)), "its stages have not passed with that artefact"
    outcomes = again(place, task)
    assert is_known(outcomes)
    assert outcomes[-1].published.key == keys[1]
    cut(place.root / "store/prepared" / keys[1])
    assert prepare_model(empty_workplace(place), task).key == keys[1], (
        "what is damaged is replaced in its place"
    )
    without_manifest(place.root / "store/prepared" / keys[1])
    assert prepare_model(empty_workplace(place), task).key in keys


def test_content_that_is_not_the_pinned_one_is_refused_first(place: Workplace) -> None:
    task = of_image(place.task(place.put("m.onnx", broken.relu())))
    prepare_model(place, task)
    last, outcome = place.prepare(task.model_copy(update={"pinned": {"model": "0" * 64}}))
    assert (last, outcome.report.reason) == ("fetch", "SourceChanged")
    place.complete(task)


def leave_other_outputs(artifact: Path) -> None:
    """Change the golden outputs as an earlier release may have computed them: the artefact is whole."""
    replace_file(artifact, "golden/outputs.npz", compute_other_outputs(artifact))


def compute_other_outputs(folder: Path) -> bytes:
    with np.load(folder / "golden/outputs.npz") as kept:
        other = {name: kept[name] + 1 for name in kept.files}
    buffer = BytesIO()
    np.savez(buffer, **other)
    return buffer.getvalue()


def prepare_otherwise(place: Workplace, task: PrepareTask) -> Published:
    """Prepare a model as a release does that computes other golden outputs."""
    empty_workplace(place)
    place.complete(task, "quantize")
    work = place.root / "work"
    (work / "golden/outputs.npz").write_bytes(compute_other_outputs(work))
    return place.stage("publish", task).published


# fault: Store | what one release left under a key, or an import, passes for what another release has proved
@pytest.mark.parametrize("cluster", [None, "one"])
def test_what_another_image_prepared_is_replaced_by_what_is_proved(
    cluster: str | None, place: Workplace
) -> None:
    task = of_image(place.task(place.put("m.onnx", broken.relu())), cluster=cluster)
    first = prepare_model(place, task)
    artifact = place.root / "store/prepared" / first.key
    proved = (artifact / "golden/outputs.npz").read_bytes()
    leave_other_outputs(artifact)
    other = of_image(task, "2" * 64, cluster)
    outcomes = again(place, other)
    assert not outcomes[-1].published.cached
    assert (artifact / "golden/outputs.npz").read_bytes() == proved
    assert is_known(again(place, other))


# fault: Store | operators of two releases, whose clusters share a bucket, replace what the other one has prepared, for
#   ever | what one cluster's release has made stays; what another one's makes has a key of its own | after the last stage
def test_clusters_of_two_releases_prepare_once_each_and_replace_nothing(place: Workplace) -> None:
    task = place.task(place.put("m.onnx", broken.relu()))
    one, two = (of_image(task, name * 64, f"cluster-{name}") for name in "12")
    first = prepare_model(place, one)
    golden = place.root / "store/prepared" / first.key / "golden/outputs.npz"
    proved = golden.read_bytes()
    other = prepare_otherwise(place, two)
    assert not other.cached
    assert other.key != first.key
    for cluster, published in ((one, first), (two, other)) * 2:
        outcomes = again(place, cluster)
        assert is_known(outcomes)
        assert outcomes[-1].published.key == published.key
    assert golden.read_bytes() == proved
    upgraded = of_image(task, "3" * 64, "cluster-2")
    assert prepare_model(empty_workplace(place), upgraded).key == other.key, "engines stay"


def test_clusters_whose_releases_agree_share_an_artefact(place: Workplace) -> None:
    task = place.task(place.put("m.onnx", broken.relu()))
    one, two = (of_image(task, name * 64, f"cluster-{name}") for name in "12")
    first = prepare_model(place, one)
    outcomes = again(place, two)
    assert outcomes[0].report.published is None
    assert outcomes[-1].published == first.model_copy(update={"cached": True})
    assert is_known(again(place, two))


def test_a_changed_artefact_is_not_the_one_that_has_passed(place: Workplace) -> None:
    task = of_image(place.task(place.put("m.onnx", broken.relu())))
    first = prepare_model(place, task)
    leave_other_outputs(place.root / "store/prepared" / first.key)
    outcomes = again(place, task)
    assert outcomes[0].report.published is None
    assert not outcomes[-1].published.cached
