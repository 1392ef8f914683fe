"""OCI images of artefacts: which stages push them, which pods mount them, and that nothing changes without them."""

import copy
from dataclasses import replace
from typing import Any, Final

import pytest
from enginewright.api.inference_engine import InferenceEngine
from enginewright.manifests.artifact_images import ImageRepository
from enginewright.manifests.labels import RETRY, REVISION
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Published
from enginewright_contract.task import ENGINE_STAGES, PREPARE_STAGES

from tests.support.plan_objects import (
    OTHER as SECOND_SOURCE,
)
from tests.support.plan_objects import (
    PREPARED_KEY,
    SECOND,
    Json,
    publish_engine,
    publish_model,
)
from tests.support.plan_world import World
from tests.unit.test_plan_canary import CANARY_SPEC
from tests.unit.test_plan_serving import crash
from tests.unit.test_plan_store import containers, pod
from tests.unit.test_preparation_records import again, build_engine, prepares

REPOSITORY: Final = "registry.example.com/team/images"
REFERENCE: Final = f"{REPOSITORY}@sha256:{'1' * 64}"
PINNED: Final = "ec11c84c1a"  # computed before images existed
OTHER: Final = f"{REPOSITORY}@sha256:{'2' * 64}"
THIRD: Final = f"{REPOSITORY}@sha256:{'3' * 64}"
WITH_IMAGE: Final = publish_model().model_copy(update={"image": REFERENCE})
PUSHING: Final = {"name": "ENGINEWRIGHT_IMAGES", "value": REPOSITORY}
CREDENTIALS: Final = {"name": "images", "mountPath": "/images-credentials", "readOnly": True}
MOUNT: Final = {"name": "enginewright-image", "mountPath": "/artifact-image", "readOnly": True}
WHY: Final = "registry.example.com answered 401 Unauthorized"
FALLS_BACK: Final[Json] = {
    "fallback": {"policy": "Allow"},
    "backends": ["tensorrt-rtx", "cuda"],
    "replicas": 2,
}
WITHOUT_IT: Final = pytest.mark.parametrize("repository", [None, "other.example.com/images"])


def with_images(
    world: World, repository: str | None = REPOSITORY, account: str | None = "pusher"
) -> World:
    images = ImageRepository(repository, account) if repository else None
    world.config = replace(world.config, store=replace(world.config.store, images=images))
    return world


def volumes(obj: Json) -> dict[str, Any]:
    return {item["name"]: item for item in pod(obj)["spec"]["volumes"]}


def serving(result: Published = WITH_IMAGE) -> World:
    return with_images(World()).settle().job_succeeds(result).all_available()


def find_mounted(world: World) -> str | None:
    (deployment,) = world.serving_deployments()
    image = volumes(deployment).get("enginewright-image")
    assert (MOUNT in containers(deployment)["fetch-artifact"]["volumeMounts"]) == bool(image)
    return image["image"]["reference"] if image else None


def test_a_look_for_an_engine_has_time_for_its_image() -> None:
    deadlines = [
        pod(with_images(World.of_engine(), repository).settle().job())["spec"][
            "activeDeadlineSeconds"
        ]
        for repository in (None, REPOSITORY)
    ]
    assert deadlines == [600, 1200], "without images nothing changes"


def test_a_job_that_publishes_has_time_for_its_image_besides_its_own() -> None:
    def seconds(job: dict[str, Any]) -> int:
        return int(pod(job)["spec"]["activeDeadlineSeconds"])

    for repository, besides in ((None, 0), (REPOSITORY, 600)):
        assert seconds(with_images(World(), repository).settle().job()) == 3600 + besides
        builds = with_images(World.of_engine(), repository).settle().misses().job()
        assert seconds(builds) == 3600 + besides


def test_stages_that_publish_or_find_an_artefact_push_its_image() -> None:
    prepares_model = with_images(World()).settle().job()
    builds = with_images(World.of_engine()).settle()
    looks_up = builds.job()
    for job, stages in (
        (prepares_model, {PREPARE_STAGES[0], PREPARE_STAGES[-1]}),
        (looks_up, {"lookup"}),
        (builds.misses().job(), {ENGINE_STAGES[-1]}),
    ):
        assert volumes(job)["images"] == {
            "name": "images",
            "secret": {"secretName": "pusher", "optional": True},
        }
        for name, container in containers(job).items():
            assert (PUSHING in container["env"]) == (name in stages)
            assert (CREDENTIALS in container["volumeMounts"]) == (name in stages)


def test_without_a_secret_jobs_push_without_an_account() -> None:
    job = with_images(World(), account=None).settle().job()
    assert "images" not in volumes(job)
    assert PUSHING in containers(job)["publish"]["env"]


def test_a_serving_pod_mounts_the_image_where_it_fetches_and_nowhere_else() -> None:
    world = serving()
    assert world.status["prepared"]["image"] == REFERENCE
    (deployment,) = world.serving_deployments()
    assert volumes(deployment)["enginewright-image"] == {
        "name": "enginewright-image",
        "image": {"reference": REFERENCE, "pullPolicy": "IfNotPresent"},
    }
    for name, container in containers(deployment).items():
        assert (MOUNT in container["volumeMounts"]) == (name == "fetch-artifact")
    assert pod(deployment)["spec"]["imagePullSecrets"] == [{"name": "registry"}, {"name": "pusher"}]
    assert "ENGINEWRIGHT_IMAGES" not in str(deployment)


def test_a_pod_of_an_engine_mounts_that_of_the_engine() -> None:
    world = with_images(World()).has_gpus().settle().job_succeeds(WITH_IMAGE)
    world.engine_built(image=OTHER)
    assert find_mounted(world) == OTHER


def test_without_a_repository_objects_and_revisions_are_as_before() -> None:
    plain = World().settle()
    job, (deployment,) = plain.job(), plain.job_succeeds().serving_deployments()
    assert plain.status["revision"] == PINNED, "or pods of all models restarted with an upgrade"
    for obj in (job, deployment):
        assert "image:" not in str(sorted(volumes(obj)))
        assert not {"images", "enginewright-image"} & volumes(obj).keys()
    assert not {"image", "imageFailure"} & plain.status["prepared"].keys()


def test_enabling_images_restarts_no_pod() -> None:
    world = World().settle().job_succeeds().all_available()
    (before,) = world.serving_deployments()
    (after,) = with_images(world).settle().serving_deployments()
    assert pod(after) == pod(before)


# fault: Store | the registry with the OCI images that pods mount is lost | pods are replaced by ones of the same
#   revision that read the store; nothing that was rejected is tried again | when `store.images.repository` is emptied
@WITHOUT_IT
def test_without_the_repository_pods_are_replaced_that_need_it(repository: str | None) -> None:
    """Its images may be gone, and a pod whose image cannot be pulled never starts."""
    world = serving()
    revision = world.status["revision"]
    with_images(world, repository).settle()
    (after,) = world.serving_deployments()
    (plain,) = World().settle().job_succeeds().serving_deployments()
    assert pod(after) == pod(plain), "nothing else differs"
    assert not world.canaries()
    world.all_available()
    assert world.conditions()["Ready"][0] == "True"
    assert world.status["revision"] == world.status["active"]["revision"] == revision
    assert find_mounted(with_images(world).settle()) == REFERENCE, "configured again"


@WITHOUT_IT
@pytest.mark.parametrize("rollout", [{"paused": True}, {"strategy": "Recreate"}])
def test_any_model_has_its_images(rollout: Json, repository: str | None) -> None:
    world = serving()
    world.edit(rollout=rollout)
    with_images(world, repository).settle()
    assert find_mounted(world) is None


@pytest.mark.parametrize("named_by", ["chart", "model"])
def test_a_pull_secret_that_containers_need_too_stays(named_by: str) -> None:
    spec = (
        {"podTemplate": {"imagePullSecrets": [{"name": "pusher"}]}} if named_by == "model" else {}
    )
    world = with_images(World(**spec), account="registry" if named_by == "chart" else "pusher")
    world.settle().job_succeeds(WITH_IMAGE).all_available()
    (before,) = world.serving_deployments()
    (after,) = with_images(world, None).settle().serving_deployments()
    assert find_mounted(world) is None
    assert pod(after)["spec"]["imagePullSecrets"] == pod(before)["spec"]["imagePullSecrets"]


def test_another_secret_is_for_the_next_revision() -> None:
    world = serving()
    (before,) = world.serving_deployments()
    (after,) = with_images(world, account="other").settle().serving_deployments()
    assert pod(after) == pod(before)
    assert world.status["revision"] == world.status["active"]["revision"]
    world.edit(serving={"maxQueue": 7}).settle().all_available()
    (new,) = world.serving_deployments()
    assert {"name": "other"} in pod(new)["spec"]["imagePullSecrets"]


def has_canary() -> World:
    """Return a model of which one revision serves with an image, and another one is verified."""
    rollout = {"strategy": "Surge", "canary": CANARY_SPEC}
    world = with_images(World(rollout=rollout, replicas=2)).settle()
    world.job_succeeds(WITH_IMAGE).all_available().edit(source=SECOND_SOURCE)
    return world.job_succeeds(SECOND.model_copy(update={"image": OTHER})).canary_available()


def rejects_canary(world: World) -> World:
    (canary,) = world.canaries()
    world.crash(canary["metadata"]["name"], Reason.BACKEND_CRASHED, index=0)
    world.settle()
    assert not world.canaries()
    return world


def rollout_of(world: World) -> tuple[Any, ...]:
    """Return what must not change when images do."""
    status, (serving,) = world.status, world.serving_deployments()
    revisions = [status.get(name) for name in ("revision", "active", "target", "lastFailure")]
    rejected = world.conditions()["RolledBack"]
    return copy.deepcopy(
        (revisions, rejected, revision_of(serving), list(map(revision_of, world.canaries())))
    )


def revision_of(deployment: Json) -> str:
    return str(deployment["metadata"]["labels"][REVISION])


@pytest.mark.parametrize(
    ("repository", "account", "reference"),
    [
        (None, None, None),
        ("other.example.com/images", "pusher", None),
        (REPOSITORY, "other", REFERENCE),
    ],
)
def test_rejection_survives_another_repository(
    repository: str | None, account: str | None, reference: str | None
) -> None:
    world = rejects_canary(has_canary())
    before = rollout_of(world)
    with_images(world, repository, account).settle()
    assert rollout_of(world) == before
    assert find_mounted(world) == reference, "by the pods that serve in its place"
    world.all_available()
    assert rollout_of(world) == before


@WITHOUT_IT
def test_a_canary_goes_on_without_its_image(repository: str | None) -> None:
    world = has_canary()
    before = rollout_of(world)
    with_images(world, repository).settle()
    assert rollout_of(world) == before
    (canary,) = world.canaries()
    assert "enginewright-image" not in volumes(canary)
    assert MOUNT not in containers(canary)["fetch-artifact"]["volumeMounts"]
    assert find_mounted(world) is None


@pytest.mark.parametrize("first", [None, OTHER])
@pytest.mark.parametrize("is_rejected", [False, True])
def test_another_image_of_an_engine_begins_no_rollout(first: str | None, is_rejected: bool) -> None:
    rollout = {"strategy": "Surge", "canary": CANARY_SPEC}
    world = with_images(World(rollout=rollout, replicas=2)).has_gpus().settle()
    world.job_succeeds(WITH_IMAGE).engine_built(image=OTHER).all_available()
    world.edit(source=SECOND_SOURCE).job_succeeds(SECOND)
    world.engine_built(image=first).canary_available()
    if is_rejected:
        rejects_canary(world)
    before = rollout_of(world)
    world.engine_built(image=THIRD)
    assert rollout_of(world) == before
    assert find_mounted(world) == OTHER
    for canary in world.canaries():
        image = volumes(canary).get("enginewright-image")
        assert (image["image"]["reference"] if image else None) == first


@WITHOUT_IT
def test_a_backend_that_is_tried_again_mounts_no_lost_image(repository: str | None) -> None:
    world = with_images(World(**FALLS_BACK)).has_gpus().settle().job_succeeds(WITH_IMAGE)
    crash(world.engine_built(image=OTHER), 0, "node-1", 2)
    world.job_succeeds(SECOND).all_available().jobs_are_cleaned_away()
    (again,) = world.annotate(RETRY, "now").serving_deployments()
    assert volumes(again)["enginewright-image"]["image"]["reference"] == OTHER
    (again,) = with_images(world, repository).settle().serving_deployments()
    assert "enginewright-image" not in volumes(again)


def test_an_image_that_cannot_be_pushed_is_reported_and_pods_read_the_store() -> None:
    failed = publish_model().model_copy(update={"image_failure": WHY})
    world = serving(failed)
    assert find_mounted(world) is None
    assert world.status["prepared"]["imageFailure"] == WHY
    (event,) = [intent for intent in world.events if intent.reason == "ImageNotPushed"]
    assert event.type == "Warning"
    assert event.message.endswith(f"so that pods read it from the store: {WHY}")
    assert world.conditions()["Ready"][0] == "True"


def test_so_is_that_of_an_engine() -> None:
    world = with_images(World.of_engine()).settle().misses()
    key = world.the(InferenceEngine.kind)["spec"]["key"]
    world.job_publishes(publish_engine(key, image_failure=WHY))
    assert world.status["engine"]["imageFailure"] == WHY
    assert world.conditions()["Ready"] == ("True", "Built")
    assert world.event_reasons()[-2:] == ["Built", "ImageNotPushed"]


def test_an_image_that_a_node_cannot_pull_is_named() -> None:
    world = with_images(World()).settle().job_succeeds(WITH_IMAGE)
    (deployment,) = world.serving_deployments()
    waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{REFERENCE}"'}
    started = world.serving_pod(deployment["metadata"]["name"], index=0, ready=False)
    started["spec"]["volumes"] = list(volumes(deployment).values())
    world.set_status(
        started,
        {
            "phase": "Pending",
            "initContainerStatuses": [{"name": "fetch-artifact", "state": {"waiting": waiting}}],
        },
    )
    world.settle()
    assert world.conditions()["Ready"] == ("False", "RollingOut")
    assert f"cannot pull the image {REFERENCE} that a volume of the pod mounts" in world.message()


def test_a_push_that_fails_later_restarts_no_pod() -> None:
    world = serving()
    before = world.status["revision"]
    world.edit(source={"uri": "https://models.example/moved.onnx"}).settle()
    world.job_succeeds(publish_model().model_copy(update={"image_failure": WHY}))
    assert "image" not in world.status["prepared"]
    assert world.status["revision"] == before
    assert find_mounted(world) == REFERENCE


def test_an_engine_that_is_built_again_has_another_image_and_restarts_no_pod() -> None:
    world = with_images(World()).has_gpus().settle().job_succeeds(WITH_IMAGE)
    world.engine_built(image=OTHER).all_available()
    before = world.status["revision"]
    world.engine_built(image=THIRD)
    assert world.status["revision"] == before
    assert find_mounted(world) == OTHER
    world.edit(serving={"maxQueue": 7}).settle()
    assert world.status["revision"] != before
    world.all_available()
    assert find_mounted(world) == THIRD, "the next revision has it"


def test_a_model_that_is_applied_again_has_its_image() -> None:
    world = again(with_images(build_engine(WITH_IMAGE)))
    assert not prepares(world)
    assert world.status["prepared"]["image"] == REFERENCE


def test_one_without_an_image_gets_one_from_a_job_which_is_known_then() -> None:
    world = again(with_images(build_engine()))
    assert prepares(world)
    world.job_succeeds(WITH_IMAGE)
    (record,) = world.the(InferenceEngine.kind)["status"]["prepared"]
    assert (record["key"], record["image"]) == (PREPARED_KEY, REFERENCE)
    assert not prepares(again(world))
