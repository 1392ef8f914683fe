"""Which bytes are prepared: those that were fetched first, until a refresh is requested."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import pytest
from enginewright.manifests.labels import COMPONENT
from enginewright_contract.reasons import Reason
from enginewright_contract.task import PrepareTask

from tests.support.plan_objects import CPU_IMAGE, DIGEST, OTHER, image_facts, publish_model
from tests.support.plan_world import World

REFRESH: Final = "enginewright.dev/refresh"
FIRST: Final = {"uri": "https://models.example/resnet.onnx"}
LATER: Final = publish_model("b" * 64, "e" * 64)  # other bytes at the same address


def serving(**spec: Any) -> World:
    return World(**spec).settle().job_succeeds().all_available()


def task(world: World) -> PrepareTask:
    return PrepareTask.model_validate_json(world.task())


def running(world: World) -> int:
    return sum(1 for job in world.all("Job") if not job.get("status", {}).get("conditions"))


def key(world: World) -> str:
    return str(world.status["serving"]["preparedKey"])


def loses_artifact(world: World) -> World:
    """Have a pod that is started find the artefact gone."""
    world.jobs_are_cleaned_away()
    world.now += timedelta(hours=1)
    return world.new_pod_fails(Reason.ARTIFACT_MISSING, "fetch-artifact")


def test_first_fetch_pins_the_source() -> None:
    world = World().settle()
    assert (task(world).pinned, task(world).fetched) == ({}, {})
    world.job_succeeds()
    assert world.status["source"]["pins"] == [{"name": "model", **FIRST, "digest": DIGEST}]


# event: Sources | the source was overwritten, and the artefact is lost or a runtime image makes
#   other artefacts | the old revision: only the pinned bytes are accepted | Ready
#   `SourceChanged`, "revision … keeps serving"
def test_a_lost_artefact_comes_back_from_the_same_bytes_or_not_at_all() -> None:
    world = loses_artifact(serving())
    assert (task(world).pinned, task(world).fetched) == ({"model": DIGEST}, {}), "it is downloaded"
    world.job_fails(Reason.SOURCE_CHANGED, stage="fetch")
    assert world.conditions()["Ready"] == ("False", "SourceChanged")
    assert world.conditions()["Stalled"][0] == "True"
    assert key(world) == "a" * 64, "what serves is not touched"


# event: Sources | the source was overwritten, and the artefact is lost or a runtime image makes
#   other artefacts
def test_a_new_runtime_image_prepares_the_same_bytes() -> None:
    world = serving()
    image = "registry.example/cpu:2"
    world.new_runtime_image(image)
    world.images[image] = image_facts("cpu", "1.32.0")
    world.settle()
    assert task(world).pinned == {"model": DIGEST}


def move_to(image: str, pipelines: tuple[str | None, str | None], **spec: Any) -> World:
    """Return a world whose model serves from one image when the chart names another."""
    before, after = (
        image_facts("cpu").model_copy(update={"pipeline": pipeline}) for pipeline in pipelines
    )
    world = World(**spec)
    world.images[CPU_IMAGE] = before
    world.settle().job_succeeds().all_available()
    world.jobs_are_cleaned_away()
    world.new_runtime_image(image)
    world.images[image] = after
    return world.settle()


# event: Sources | another runtime image in the chart
def test_under_recreate_an_image_shows_that_it_can_be_pulled_before_pods_go() -> None:
    world = move_to("mirror.example/cpu:2", ("5" * 64, "5" * 64), rollout={"strategy": "Recreate"})
    assert [entry["metadata"]["labels"][COMPONENT] for entry in world.all("Job")] == ["prepare"]
    (deployment,) = world.serving_deployments()
    images = {item["image"] for item in deployment["spec"]["template"]["spec"]["containers"]}
    assert images == {CPU_IMAGE}


def test_repushed_tag_is_another_image_to_jobs() -> None:
    """What failed, or was made, by its earlier content is not taken for the new one's."""
    world = World()
    world.images[CPU_IMAGE] = image_facts("cpu").model_copy(update={"pipeline": "5" * 64})
    world.settle()
    (before,) = world.all("Job")
    world.images[CPU_IMAGE] = image_facts("cpu").model_copy(update={"pipeline": "6" * 64})
    world.settle()
    assert before["metadata"]["name"] not in {
        entry["metadata"]["name"] for entry in world.all("Job")
    }


# event: Sources | another runtime image in the chart
def test_an_image_that_makes_the_same_artefacts_prepares_nothing() -> None:
    """A new sidecar, another registry: the pods roll out on the new image, with the same artefact."""
    world = move_to("mirror.example/cpu:2", ("5" * 64, "5" * 64))
    assert not world.all("Job")
    (container,) = {
        item["image"]
        for deployment in world.serving_deployments()
        for item in deployment["spec"]["template"]["spec"]["containers"]
        if item["name"] == "server"
    }
    assert container == "mirror.example/cpu:2"


@pytest.mark.parametrize("pipelines", [("5" * 64, "6" * 64), (None, "6" * 64), (None, None)])
def test_image_of_another_pipeline_prepares_again(pipelines: tuple[str | None, str | None]) -> None:
    world = move_to("mirror.example/cpu:2", pipelines)
    assert [entry["metadata"]["labels"][COMPONENT] for entry in world.all("Job")] == ["prepare"]


# event: Sources | the spec returns to an earlier address | the current revision, until that
#   address's pinned bytes are prepared | Ready `Preparing`, then `RollingOut`
def test_a_return_to_an_address_returns_to_its_bytes() -> None:
    world = serving()
    world.edit(source=OTHER).job_succeeds(LATER).all_available()
    world.jobs_are_cleaned_away()
    world.edit(source=FIRST)
    assert task(world).pinned == {"model": DIGEST}, "the revision remembers"


def test_another_digest_in_the_spec_is_another_model() -> None:
    world = serving(source={**FIRST, "sha256": "1" * 64})
    world.edit(source={**FIRST, "sha256": "2" * 64})
    assert task(world).pinned == {}


def test_model_of_an_earlier_version_is_pinned() -> None:
    world = serving()
    world.jobs_are_cleaned_away()
    del world.status["source"]
    world.settle()
    assert world.status["source"]["pins"][0]["digest"] == DIGEST
    assert world.all("Job") == []


# event: Sources | a refresh, by annotation or interval | the current revision, Ready, until the
#   new one is verified | Event `Refreshed`
def test_refresh_takes_over_from_the_serving_revision() -> None:
    world = serving().annotate(REFRESH, "1")
    assert task(world).pinned == {}
    assert task(world).fetched == {"model": DIGEST}, "an unchanged version is not downloaded"
    assert world.conditions()["Ready"] == ("True", "Serving")
    world.job_succeeds(LATER)
    assert key(world) == "a" * 64, "until the new revision is there"
    world.all_available()
    assert key(world) == "b" * 64
    assert running(world) == 0
    assert ("Normal", "Refreshed") in [(event.type, event.reason) for event in world.events]


def test_a_refresh_that_finds_the_same_restarts_nothing() -> None:
    world = serving()
    before = world.the("Deployment")["metadata"]["generation"]
    world.annotate(REFRESH, "1").job_succeeds()
    assert world.the("Deployment")["metadata"]["generation"] == before
    assert world.events[-1].message == "refreshed the source: no change"


def test_refresh_compares_with_the_digests_of_current_addresses() -> None:
    samples = {"samples": {"uri": "https://models.example/samples.npz"}}
    world = World(parity=samples).settle()
    made = publish_model().model_copy(update={"data": {"samples": "5" * 64}})
    world.job_succeeds(made).all_available().annotate(REFRESH, "1")
    assert task(world).fetched == {"model": DIGEST, "samples": "5" * 64}
    world.edit(source=OTHER)
    assert "model" not in task(world).fetched


# event: Sources | another runtime image in the chart
def test_a_refresh_for_an_image_that_makes_others_runs_every_stage() -> None:
    """The store still has what the earlier image made of the same bytes, under the same key."""
    world = move_to("mirror.example/cpu:2", ("5" * 64, "6" * 64)).annotate(REFRESH, "1")
    assert (task(world).pinned, task(world).fetched) == ({}, {})
    world.job_succeeds().all_available()
    world.annotate(REFRESH, "2")
    assert task(world).fetched == {"model": DIGEST}, "the new image has prepared it"


def test_a_refresh_is_done_once() -> None:
    world = serving().annotate(REFRESH, "1").job_succeeds(LATER).all_available()
    world.jobs_are_cleaned_away()
    for value in ("1", None):
        world.annotate(REFRESH, value)
        assert (world.all("Job"), key(world)) == ([], "b" * 64)
    world.annotate(REFRESH, "2")
    assert running(world) == 1


# event: Sources | a refresh fails | the current revision, Ready | Warning Event with the reason,
#   `status.source.failure`
@pytest.mark.parametrize("reason", [Reason.SOURCE_UNREACHABLE, Reason.INVALID_MODEL])
def test_a_refresh_that_fails_takes_nothing_away(reason: Reason) -> None:
    world = serving().annotate(REFRESH, "1").job_fails(reason, stage="fetch")
    assert world.conditions()["Ready"] == ("True", "Serving")
    assert world.conditions()["Validated"] == ("True", "Prepared")
    assert key(world) == "a" * 64


def test_a_refresh_that_cannot_succeed_is_given_up_and_reported_once() -> None:
    world = serving().annotate(REFRESH, "1").job_fails(Reason.INVALID_MODEL)
    assert world.status["source"]["failure"]["reason"] == "InvalidModel"
    warnings = [event for event in world.events if event.reason == "InvalidModel"]
    assert [warning.type for warning in warnings] == ["Warning"]
    world.jobs_are_cleaned_away()
    assert world.all("Job") == []
    assert task(loses_artifact(world)).pinned == {"model": DIGEST}
    world.job_succeeds().all_available()
    assert "failure" not in world.status["source"] or world.status["source"]["requested"] == "1"


@pytest.mark.parametrize(
    "failed",
    [
        lambda: World().settle().job_fails(Reason.INVALID_MODEL),
        lambda: loses_artifact(serving()).job_fails(Reason.INVALID_MODEL),
        lambda: serving().annotate(REFRESH, "0").job_fails(Reason.SOURCE_UNREACHABLE, "fetch"),
    ],
    ids=["refused", "lost", "refresh that waits"],
)
def test_refresh_retries_at_once(failed: Callable[[], World]) -> None:
    world = failed()
    assert running(world) == 0
    assert running(world.annotate(REFRESH, "1")) == 1
    assert task(world).pinned == {}


def test_a_refresh_hurries_a_first_preparation_that_waits() -> None:
    world = World().settle().job_fails(Reason.SOURCE_UNREACHABLE, stage="fetch")
    assert running(world) == 0
    assert running(world.annotate(REFRESH, "1")) == 1
    world.job_succeeds().all_available()
    assert world.conditions()["Ready"] == ("True", "Serving")
    assert running(world) == 0


def test_a_refresh_brings_bytes_back_that_are_gone() -> None:
    world = loses_artifact(serving()).job_fails(Reason.SOURCE_CHANGED, stage="fetch")
    world.annotate(REFRESH, "1")
    assert task(world).pinned == {}
    world.job_succeeds(LATER).all_available()
    assert key(world) == "b" * 64


def test_a_refresh_that_is_withdrawn_ends() -> None:
    world = serving().annotate(REFRESH, "1")
    assert running(world) == 1
    world.annotate(REFRESH, None)
    assert running(world) == 0
    assert "refreshing" not in world.status["source"]


def test_a_spec_that_changes_meanwhile_comes_first() -> None:
    world = serving().annotate(REFRESH, "1")
    assert "refreshing" in world.status["source"]
    world.edit(source=OTHER)
    assert "refreshing" not in world.status["source"]
    assert running(world) == 1
    assert task(world).source_uri == OTHER["uri"]
    world.job_succeeds(LATER).all_available()
    assert key(world) == "b" * 64
    assert running(world) == 0


def test_an_interval_refreshes_again_and_again() -> None:
    world = serving(source={**FIRST, "refreshInterval": "24h"})
    assert world.last
    assert world.last.requeue_after == pytest.approx(24 * 3600, abs=2)
    assert running(world.later(hours=23)) == 0
    assert running(world.later(hours=2)) == 1
    world.job_succeeds(LATER).all_available()
    assert (key(world), running(world)) == ("b" * 64, 0)
    assert running(world.later(hours=25)) == 1


def test_an_interval_that_meets_a_failure_waits_for_the_next() -> None:
    world = serving(source={**FIRST, "refreshInterval": "24h"})
    world.later(hours=25).job_fails(Reason.INVALID_MODEL)
    assert (running(world), world.conditions()["Ready"]) == (0, ("True", "Serving"))
    assert running(world.later(hours=25)) == 1


def test_an_operator_that_was_away_refreshes_once() -> None:
    world = serving(source={**FIRST, "refreshInterval": "1m"})
    assert running(world.later(hours=20)) == 1
    assert running(world.later(minutes=3)) == 1, "the same one, which takes longer than a minute"


def test_a_value_that_comes_back_is_another_refresh() -> None:
    world = serving().annotate(REFRESH, "1").job_succeeds(LATER).all_available()
    world.annotate(REFRESH, "2").job_fails(Reason.INVALID_MODEL)
    world.annotate(REFRESH, "1")
    assert task(world).pinned == {}
    world.job_succeeds(publish_model("c" * 64, "f" * 64)).all_available()
    assert key(world) == "c" * 64


def test_a_backend_that_was_rejected_is_not_asked_again_by_a_refresh() -> None:
    world = World(fallback={"policy": "Allow"}).has_gpus().settle()
    world.job_fails(Reason.OPSET_UNSUPPORTED).job_succeeds().all_available()
    assert world.status["serving"]["backend"] == "cuda"
    world.annotate(REFRESH, "1")
    assert task(world).recipe.backend == "cuda"
    world.job_succeeds().all_available()
    assert (key(world), world.conditions()["Ready"][0]) == ("a" * 64, "True")


def test_address_stands_for_its_last_content() -> None:
    world = serving().annotate(REFRESH, "1").job_succeeds(LATER).all_available()
    world.annotate(REFRESH, "2").job_succeeds().all_available()
    assert key(world) == "a" * 64
    world.edit(source=OTHER).job_succeeds(LATER).all_available()
    world.jobs_are_cleaned_away()
    world.edit(source=FIRST)
    assert task(world).pinned == {"model": DIGEST}
    assert [event.reason for event in world.events].count("Refreshed") == 2, "an edit is none"


def test_model_of_an_earlier_version_is_pinned_during_a_refresh() -> None:
    world = serving()
    world.jobs_are_cleaned_away()
    del world.status["source"]
    world.annotate(REFRESH, "1").job_fails(Reason.INVALID_MODEL)
    assert task(loses_artifact(world)).pinned == {"model": DIGEST}


def test_samples_that_are_named_again_stay_the_same() -> None:
    first, second = ({"samples": {"uri": f"https://models.example/{n}.npz"}} for n in "12")
    made = publish_model().model_copy(update={"data": {"samples": "5" * 64}})
    world = World(parity=first).settle().job_succeeds(made).all_available()
    other = publish_model("b" * 64).model_copy(update={"data": {"samples": "6" * 64}})
    world.edit(parity=second).job_succeeds(other).all_available()
    world.jobs_are_cleaned_away()
    world.edit(parity=first)
    assert task(world).pinned == {"model": DIGEST, "samples": "5" * 64}


def test_an_interval_goes_on_where_the_pinned_bytes_are_gone() -> None:
    world = loses_artifact(serving(source={**FIRST, "refreshInterval": "6h"}))
    world.job_fails(Reason.SOURCE_CHANGED, stage="fetch")
    world.later(hours=6)
    assert task(world).pinned == {}
    world.job_fails(Reason.INVALID_MODEL)
    assert world.conditions()["Ready"] == ("False", "SourceChanged"), "what is pinned is still gone"
    assert world.last
    assert world.last.requeue_after == pytest.approx(6 * 3600, abs=2)
    world.later(hours=7).job_succeeds(LATER).all_available()
    assert key(world) == "b" * 64


def test_long_values_are_compared_whole() -> None:
    world = serving().annotate(REFRESH, "x" * 400 + "1").job_succeeds(LATER).all_available()
    assert running(world) == 0
    assert running(world.annotate(REFRESH, "x" * 400 + "2")) == 1


def test_a_clock_that_was_ahead_puts_off_nothing() -> None:
    world = serving(source={**FIRST, "refreshInterval": "1h"})
    world.status["source"]["lookedAt"] = "2028-01-01T00:00:00Z"
    assert running(world.later(minutes=30)) == 0
    assert world.last
    assert world.last.requeue_after == pytest.approx(3600, abs=2)
