"""A model that is applied again: what its content, known by digest, was prepared to needs no second Job."""

from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import pytest
from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model import InferenceModel
from enginewright.api.inference_model_status import Prepared
from enginewright.manifests.store_access import StoreBucket
from enginewright.plan.prepare.shared import merge_records
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Published

from tests.support.plan_objects import (
    DIGEST,
    MODEL,
    NAMESPACE,
    RTX_IMAGE,
    Json,
    make_object,
    publish_model,
)
from tests.support.plan_world import CONFIG, World

SOURCE: Final = {"uri": "https://models.example/resnet.onnx", "sha256": DIGEST}
STEP: Final = {"uri": "https://models.example/step.onnx", "sha256": "5" * 64}


def build_engine(result: Published | None = None, **spec: Any) -> World:
    """Return a model that its engine was built for."""
    world = World(**{"source": SOURCE, **spec}) if "source" not in spec else World(**spec)
    return world.has_gpus().settle().job_succeeds(result or publish_model()).engine_built()


def delete_model(world: World) -> Json:
    """Delete the model, with what it owns; return its spec."""
    spec = dict(world.spec)
    world.remove(InferenceModel.kind, MODEL)
    assert world.the(InferenceEngine.kind)
    return spec


def apply_spec(world: World, spec: Json) -> World:
    obj = make_object(InferenceModel.kind, MODEL, NAMESPACE, spec=spec, status={})
    obj["metadata"] |= {"uid": "another-model", "annotations": {}}
    world.kube.put(obj)
    return world.settle()


def again(world: World, **changes: Any) -> World:
    spec = delete_model(world) | changes
    return apply_spec(world, {name: item for name, item in spec.items() if item is not None})


def prepares(world: World) -> bool:
    """Return whether a Job prepares the model; if not, it is prepared."""
    jobs = [entry["metadata"]["name"] for entry in world.all("Job")]
    is_prepared = any("prepare" in job for job in jobs)
    assert is_prepared == ("prepared" not in world.status)
    return is_prepared


def test_a_model_that_is_applied_again_rolls_out_without_a_job() -> None:
    world = build_engine()
    before = {name: world.status[name] for name in ("prepared", "source", "revision")}
    assert before["prepared"]["recordHash"]
    world = again(world)
    assert world.all("Job") == []
    now = {name: world.status[name] for name in ("prepared", "source", "revision")}
    assert now == before
    assert world.conditions()["Validated"] == ("True", "Prepared")
    assert world.the("Deployment")


# what an address holds may have changed, unless its digest says all of it


UNPINNED: Final[Json] = {"source": {"uri": SOURCE["uri"]}}
SEVERAL_FILES: Final = publish_model(digest="c" * 64)  # the spec has that of the .onnx file
SAMPLES: Final[Json] = {"parity": {"samples": {"uri": "https://models.example/samples.npz"}}}
IMAGES: Final[Json] = {
    "quantization": {"calibration": {"uri": "https://models.example/images.zip"}}
}
STEPS: Final[Json] = {"processing": {"before": [{"uri": STEP["uri"]}]}}


def with_data(name: str) -> Published:
    return publish_model().model_copy(update={"data": {name: "5" * 64}})


@pytest.mark.parametrize(
    ("result", "spec", "changes", "needs_job"),
    [
        (None, {}, {"replicas": 3}, False),
        # what an address holds may have changed, unless its digest says all of it
        (None, UNPINNED, {}, True),
        (SEVERAL_FILES, {}, {}, True),
        (with_data("samples"), SAMPLES, {}, True),
        (with_data("calibration"), IMAGES, {}, True),
        (with_data("before-0"), STEPS, {}, True),
        # what a Job does, or whether it succeeds, may have changed
        (None, {}, {"source": {**SOURCE, "uri": "https://models.example/other.onnx"}}, True),
        (None, {}, {"source": {**SOURCE, "sha256": "c" * 64}}, True),
        (None, {}, {"source": {**SOURCE, "secretRef": {"name": "other"}}}, True),
        (None, {}, {"precision": "FP16"}, True),
        (None, {}, {"parity": {"rtol": "0.5"}}, True),
        (None, {}, {"targetOpset": 21}, True),
        (None, {}, {"build": {"timeout": "2h"}}, True),
        (None, {}, {"build": {"podTemplate": {"nodeSelector": {"disk": "fast"}}}}, True),
        (None, {}, {"rollout": {"strategy": "Recreate"}}, True),
    ],
)
def test_job_prepares_only_differences(
    result: Published | None, spec: Json, changes: Json, needs_job: bool
) -> None:
    assert prepares(again(build_engine(result, **spec), **changes)) is needs_job


def test_steps_with_digests_are_known_too() -> None:
    made_of = publish_model().model_copy(update={"data": {"before-0": STEP["sha256"]}})
    world = build_engine(made_of, processing={"before": [STEP]})
    before = world.status["source"]["pins"]
    assert not prepares(again(world))
    assert world.status["source"]["pins"] == before
    of_files = publish_model().model_copy(update={"data": {"before-0": "6" * 64}})
    assert prepares(again(build_engine(of_files, processing={"before": [STEP]})))


# what a Job does, or whether it succeeds, may have changed


def test_settings_that_change_during_the_job_are_not_recorded() -> None:
    world = World(source=SOURCE).has_gpus().settle()
    world.stage_runs("fetch")
    world.edit(build={"podTemplate": {"nodeSelector": {"disk": "fast"}}})
    world.job_succeeds().engine_built()
    spec = delete_model(world)
    assert prepares(apply_spec(world, spec)), "nothing was prepared on such nodes"
    delete_model(world)
    assert not prepares(apply_spec(world, spec | {"build": {}}))


OTHER: Final = "registry.example/rtx:2"
BUCKET: Final = replace(CONFIG.store, bucket=StoreBucket(uri="s3://models/here"))


@pytest.mark.parametrize("changes", [{"images": OTHER}, {"store": BUCKET}], ids=["image", "store"])
def test_another_image_or_store_has_a_job(changes: dict[str, Any]) -> None:
    world = build_engine()
    spec = delete_model(world)
    if "images" in changes:
        world.images = {**world.images, OTHER: world.images[RTX_IMAGE]}
        changes = {"images": {**world.config.images, "rtx": OTHER}}
    world.config = replace(world.config, **changes)
    assert prepares(apply_spec(world, spec))


def test_a_refresh_reads_the_address_again() -> None:
    world = again(build_engine())
    assert world.all("Job") == []
    world.annotate("enginewright.dev/refresh", "1")
    assert len(world.all("Job")) == 1


# fault: Store | the store has lost the prepared model of a model that is applied again without a Job | the build of an
#   engine, or the pods that read it | it is prepared again, as any other
def test_artefact_that_the_store_lost_is_prepared_again() -> None:
    world = again(build_engine())
    assert world.all("Job") == []
    engine = world.the(InferenceEngine.kind)
    del engine["status"]["engine"]
    failed = world.now + timedelta(minutes=1)
    engine["status"]["failure"] = {
        "stage": "build",
        "reason": Reason.ARTIFACT_MISSING,
        "message": "the store has no prepared model with key aaaaaaaaaaaa",
        "time": failed.isoformat(),
        "attempts": 1,
    }
    world.now = failed + timedelta(seconds=1)
    world.settle()
    assert any("prepare" in entry["metadata"]["name"] for entry in world.all("Job"))


def make_prepared(record: str, key: str = "a" * 64) -> Prepared:
    return Prepared(
        inputs_hash="1",
        key=key,
        model_digest=DIGEST,
        opset=17,
        ir_version=8,
        nodes=1,
        size_bytes=1,
        record_hash=record,
    )


def names(records: tuple[Prepared, ...]) -> list[str]:
    return [record.record_hash for record in records]


def test_new_records_replace_unused_ones() -> None:
    def keep(before: str, after: str) -> str:
        records = merge_records(
            tuple(map(make_prepared, before)), map(make_prepared, after), "a" * 64
        )
        return "".join(names(records))

    assert keep("", "") == ""
    assert keep("a", "") == "a", "the model is gone"
    assert keep("a", "ab") == "ab"
    assert keep("abcd", "e") == "bcde"
    assert keep("abcd", "ae") == "acde"
    assert keep("abcd", "abcde") == "abcd", "nothing changes back and forth"


def test_a_prepared_model_that_it_is_not_built_from_is_no_record() -> None:
    assert merge_records((), (make_prepared("a", "b" * 64), make_prepared("")), "a" * 64) == ()
