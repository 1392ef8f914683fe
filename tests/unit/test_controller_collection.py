"""Collections: one Job a namespace, with a list as the API server has it, and results that survive restarts."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from enginewright.controller import collection_metrics
from enginewright.controller.loop import ReconcileResult
from enginewright.controller.routing import ModelKey
from enginewright.kube.errors import Forbidden, NotFound, Terminating
from enginewright.manifests.collect_job import COLLECT
from enginewright.manifests.collection_outcome import CollectionOutcome
from enginewright.manifests.labels import COMPONENT, MANAGED_BY, OPERATOR, STORE_GROUP
from enginewright.manifests.store_access import StoreBucket
from enginewright.observed.collections import CollectionView, collection_view
from enginewright.plan.types import CollectionConfig
from enginewright_contract.collection import Collected, CollectTask
from enginewright_contract.report import StageReport
from enginewright_contract.task import STORE_VARIABLE, TASK_VARIABLE

from tests.support.controller_world import World
from tests.support.fake_kube import timestamp
from tests.support.plan_objects import (
    COLLECTED,
    CPU_IMAGE,
    MODEL,
    NAMESPACE,
    Json,
    engine_spec,
    image_facts,
    make_object,
)
from tests.support.plan_world import CONFIG
from tests.unit.test_plan_needed_keys import revision

FOUND = COLLECTED.model_copy(
    update={
        "leftovers": 2,
        "leftover_bytes": 10,
        "capacity_bytes": 20_000,
        "free_bytes": 16_000,
    }
)
SOURCE: Json = {"source": {"uri": "https://models.example/resnet.onnx"}}
DAY = 86400


def world_with(bucket: StoreBucket | None = None, **gc: Any) -> World:
    store = replace(CONFIG.store, bucket=bucket, gc=CollectionConfig(**gc))
    config = replace(CONFIG, store=store)
    world = World(config=config)
    world.put(make_object("PersistentVolumeClaim", "enginewright-store", NAMESPACE))
    world.put(make_object("Namespace", NAMESPACE))
    world.images.facts = {CPU_IMAGE: image_facts("cpu")}
    return world


@pytest.fixture
def world() -> World:
    return world_with()


async def passes(world: World) -> ReconcileResult:
    """Reconcile until nothing is written any more, like the queue."""
    while True:
        world.watch()
        result = await world.collections.reconcile(NAMESPACE)
        if not result.requeue:
            return result


async def becomes_due(world: World) -> None:
    waits = (await passes(world)).requeue_after
    assert waits is not None
    world.now += timedelta(seconds=waits)


async def start_first(world: World) -> Json:
    """Return the first Job, once it is due."""
    await becomes_due(world)
    assert world.all("Job") == []
    await passes(world)
    return world.the("Job")


def task_of(job: Json) -> CollectTask:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return CollectTask.model_validate_json(container["env"][0]["value"])


def ends(world: World, collected: Collected = FOUND) -> None:
    report = StageReport(stage="collect", ok=True, collected=collected)
    world.job_reports(report)


def size(world: World, name: str, **labels: str) -> float | None:
    return world.stores.get_sample_value(
        f"enginewright_store_{name}", {"model_namespace": NAMESPACE, **labels}
    )


def count_collections(world: World, name: str, **labels: str) -> float | None:
    return world.stores.get_sample_value(f"enginewright_store_{name}", labels)


async def test_list_includes_objects_that_no_watch_has_shown(world: World) -> None:
    await becomes_due(world)
    spec = engine_spec()
    world.kube.put(make_object("InferenceEngine", "e", NAMESPACE, spec=spec))  # the watch hangs
    await world.collections.reconcile(NAMESPACE)
    task = task_of(world.the("Job"))
    assert set(task.keep) == {spec["key"][:16], spec["preparedKey"][:16]}
    assert task.as_of == world.now


async def test_in_a_bucket_a_collection_says_of_which_cluster_it_is() -> None:
    world = world_with()
    assert task_of(await start_first(world)).cluster is None
    world = world_with(bucket=StoreBucket(uri="s3://models/team"))
    world.put(make_object("InferenceEngine", "e", NAMESPACE, spec=engine_spec()))
    system = world.put(make_object("Namespace", "kube-system"))
    assert task_of(await start_first(world)).cluster == system["metadata"]["uid"]


@pytest.mark.parametrize("bucket", [None, StoreBucket(uri="s3://models/team")])
async def test_prepare_job_of_a_bucket_names_its_cluster(bucket: StoreBucket | None) -> None:
    world = world_with(bucket=bucket)
    cpu = {"nodeSelector": {"kubernetes.io/os": "linux"}, "backends": ["cpu"]}
    world.put(make_object("AcceleratorClass", "cpu", spec=cpu))
    world.put(make_object("InferenceModel", MODEL, NAMESPACE, spec=SOURCE))
    system = world.put(make_object("Namespace", "kube-system"))
    await world.bucket_user.load()
    await world.models.reconcile(ModelKey(NAMESPACE, MODEL))
    (container,) = world.job()["spec"]["template"]["spec"]["containers"]
    task = json.loads(container["env"][0]["value"])
    assert task.get("cluster") == (system["metadata"]["uid"] if bucket else None)


async def test_unreadable_cluster_name_is_no_obstacle() -> None:
    world = world_with(bucket=StoreBucket(uri="s3://models/team"))
    await world.bucket_user.load()
    assert world.bucket_user.known is None


async def test_other_namespaces_are_no_concern(world: World) -> None:
    world.put(make_object("InferenceEngine", "e", "elsewhere", spec=engine_spec()))
    assert task_of(await start_first(world)).keep == ()


# event: Jobs | a store was collected, and the operator restarts | all pods | the same metrics; the next
#   collection at the same time as without the restart
async def test_a_result_is_recorded_and_shown_over_restarts(world: World) -> None:
    job = await start_first(world)
    assert await world.collections.reconcile(NAMESPACE) == ReconcileResult()
    assert world.all("Job") == [job], "one at a time"
    ends(world)
    result = await passes(world)
    assert result.requeue_after == DAY
    assert count_collections(world, "collected_total", kind="artifact") == 5
    assert count_collections(world, "collected_total", kind="leftover") == 2
    assert count_collections(world, "collected_bytes_total") == 5010
    assert count_collections(world, "collections_total", result="succeeded") == 1
    world.remove("Pod", world.all("Pod")[0]["metadata"]["name"])
    writes = world.kube.writes
    world.restart()
    world.images.facts = {CPU_IMAGE: image_facts("cpu")}
    assert (await passes(world)).requeue_after == DAY
    assert world.kube.writes == writes
    assert count_collections(world, "collections_total", result="succeeded") == 0
    assert (size(world, "bytes"), size(world, "needed_bytes")) == (4000, 4000)
    assert (size(world, "capacity_bytes"), size(world, "free_bytes")) == (20_000, 16_000)
    assert size(world, "limit_bytes") is None
    assert size(world, "artifacts") == 4

    world.now += timedelta(days=1)
    await passes(world)
    assert len(world.all("Job")) == 2, "the last result is kept meanwhile"
    ends(world, FOUND.model_copy(update={"bytes_after": 7}))
    await passes(world)
    assert len(world.all("Job")) == 1
    assert size(world, "bytes") == 7


async def test_dry_run_counts_nothing() -> None:
    world = world_with(dry_run=True, max_size=10_000)
    assert task_of(await start_first(world)).dry_run
    ends(world, FOUND.model_copy(update={"dry_run": True}))
    await passes(world)
    assert count_collections(world, "collected_total", kind="artifact") == 0
    assert (size(world, "bytes"), size(world, "artifacts")) == (9000, 9)
    assert size(world, "limit_bytes") == 10_000


async def test_need_above_the_limit_is_an_event() -> None:
    world = world_with(max_size=3999)
    await start_first(world)
    ends(world)
    await passes(world)
    assert await world.events() == ["StoreOverLimit"]
    (event,) = world.all("Event")
    assert event["involvedObject"]["kind"] == "PersistentVolumeClaim"


async def test_a_failure_is_shown_until_a_collection_succeeds(world: World) -> None:
    await start_first(world)
    world.job_ends("Failed", message="Job was active longer than specified deadline")
    assert (await passes(world)).requeue_after == 3600
    assert await world.events() == ["CollectionFailed"]
    assert size(world, "collection_trouble", reason="CollectionFailed") == 1
    world.now += timedelta(hours=1)
    await passes(world)
    ends(world)
    await passes(world)
    assert size(world, "collection_trouble", reason="CollectionFailed") is None


async def test_blocked_collection_stays_reported(world: World) -> None:
    world.put(make_object("InferenceModel", "resnet", NAMESPACE, spec={"source": 7}))
    for _ in range(2):
        assert (await passes(world)).requeue_after == 600
        assert size(world, "collection_trouble", reason="CollectionBlocked") == 1
        world.now += timedelta(days=1)
        assert (await passes(world)).requeue_after == 600, "it is due"
        world.restart()
        world.images.facts = {CPU_IMAGE: image_facts("cpu")}
    world.kube.fail["get"] = [Forbidden("not now")]
    with pytest.raises(Forbidden):
        await passes(world)
    lists = world.kube.calls["list"]
    await passes(world)
    assert world.kube.calls["list"] == lists, "for a report the cache is enough"
    assert size(world, "collection_trouble", reason="CollectionBlocked") == 1
    world.put(make_object("InferenceModel", "resnet", NAMESPACE, spec=SOURCE))
    waits = (await passes(world)).requeue_after
    assert size(world, "collection_trouble", reason="CollectionBlocked") is None
    assert waits is not None
    assert world.all("Job") == [], "it is not due"


# event: Jobs | an object of a namespace cannot be read when its store is due for a collection, or when the operator starts
#   and there was none yet | all pods; nothing is removed | Event `CollectionBlocked` of that object, alert
#   EnginewrightStoreNotCollected
async def test_nothing_is_removed_while_an_object_cannot_be_read(world: World) -> None:
    waits = (await passes(world)).requeue_after
    assert waits is not None
    world.put(make_object("InferenceModel", "resnet", NAMESPACE, spec={"source": 7}))
    world.now += timedelta(seconds=waits)
    assert (await passes(world)).requeue_after == 600
    assert world.all("Job") == []
    assert await world.events() == ["CollectionBlocked"]
    (event,) = world.all("Event")
    assert event["involvedObject"]["name"] == "resnet"
    assert "InferenceModel resnet: spec.source" in event["message"]
    assert size(world, "collection_trouble", reason="CollectionBlocked") == 1
    world.put(make_object("InferenceModel", "resnet", NAMESPACE, spec=SOURCE))
    world.now += timedelta(minutes=10)
    await passes(world)
    assert len(world.all("Job")) == 1
    assert size(world, "collection_trouble", reason="CollectionBlocked") is None


@pytest.mark.parametrize(
    "kind", ["InferenceModel", "InferenceEngine", "ControllerRevision", "Deployment", "Job"]
)
async def test_a_list_that_fails_starts_nothing(world: World, kind: str) -> None:
    await becomes_due(world)
    world.kube.lacks = {kind}
    with pytest.raises(NotFound):
        await world.collections.reconcile(NAMESPACE)
    assert world.all("Job") == []


async def test_a_namespaces_own_limit_is_read(world: World) -> None:
    namespace = make_object("Namespace", NAMESPACE)
    namespace["metadata"]["annotations"] = {"enginewright.dev/store-max-size": "1Ki"}
    world.put(namespace)
    assert task_of(await start_first(world)).max_bytes == 1024


async def test_a_limit_that_cannot_be_read_is_reported_where_no_claim_is_the_store() -> None:
    world = world_with(bucket=StoreBucket(uri="s3://models/team"))
    world.deployment = "enginewright"
    world.put(make_object("Deployment", "enginewright", world.config.namespace))
    world.restart()
    await world.home.load()
    world.images.facts = {CPU_IMAGE: image_facts("cpu")}
    world.put(make_object("InferenceModel", "resnet", NAMESPACE, spec=SOURCE))
    world.put(make_object("Namespace", "kube-system"))
    namespace = make_object("Namespace", NAMESPACE)
    namespace["metadata"]["annotations"] = {"enginewright.dev/store-max-size": "plenty"}
    world.put(namespace)
    await passes(world)
    await becomes_due(world)
    await passes(world)
    assert await world.events() == ["CollectionBlocked"]
    (event,) = world.all("Event")
    assert event["involvedObject"]["kind"] == "Deployment"
    assert "plenty" in event["message"]


async def test_a_namespace_that_ends_is_left_alone(world: World) -> None:
    await becomes_due(world)
    world.kube.fail["apply"] = [Terminating("the namespace is being terminated")]
    assert await world.collections.reconcile(NAMESPACE) == ReconcileResult(exists=False)


async def test_nothing_is_created_in_a_namespace_that_is_known_to_end(world: World) -> None:
    namespace = make_object("Namespace", NAMESPACE)
    namespace["metadata"]["deletionTimestamp"] = "2026-03-01T00:00:00Z"
    world.put(namespace)
    await becomes_due(world)
    assert await world.collections.reconcile(NAMESPACE) == ReconcileResult(exists=False)
    assert world.all("Job") == []


async def test_jobs_of_other_stores_are_not_parsed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start_first(world)
    for item in ("team-b", "team-c"):
        world.put(make_object("Job", "collect-1", item, labels={COMPONENT: COLLECT}))
    parsed = []

    def view(job: Json) -> CollectionView:
        parsed.append(job["metadata"]["namespace"])
        return collection_view(job)

    monkeypatch.setattr(collection_metrics, "collection_view", view)
    await passes(world)
    assert set(parsed) == {NAMESPACE}


async def test_a_namespace_without_a_store_costs_nothing() -> None:
    world = World()
    assert await world.collections.reconcile(NAMESPACE) == ReconcileResult(exists=False)
    assert world.kube.writes == 0


# of parts of a bucket that namespaces shared in earlier releases


def of_group(name: str, namespace: str, **status: Any) -> Json:
    """Return a Job of an earlier release, which collects a part that several namespaces shared."""
    task = CollectTask(job=name, keep=(), as_of=datetime.now(UTC), min_age_seconds=7200)
    env = [
        {"name": TASK_VARIABLE, "value": task.to_json()},
        {"name": STORE_VARIABLE, "value": "s3://models/team/_research"},
    ]
    labels = {MANAGED_BY: OPERATOR, COMPONENT: COLLECT, STORE_GROUP: "research"}
    pod = {"spec": {"containers": [{"name": "collect", "env": env}]}}
    return make_object("Job", name, namespace, labels=labels, spec={"template": pod}, **status)


def stores_of(jobs: list[Json]) -> set[str]:
    containers = (job["spec"]["template"]["spec"]["containers"] for job in jobs)
    return {
        item["value"]
        for one in containers
        for container in one
        for item in container["env"]
        if item["name"] == STORE_VARIABLE
    }


# fault: Store | a Job of an earlier release collects a part of a bucket that several namespaces shared, after the upgrade |
#   the operator, from the Job's label; the Job is deleted, and its results do not count | at once
@pytest.mark.parametrize("enabled", [True, False])
async def test_jobs_that_collect_a_part_that_namespaces_shared_are_deleted(enabled: bool) -> None:
    world = world_with(bucket=StoreBucket(uri="s3://models/team"), enabled=enabled)
    world.put(of_group("collect-1", NAMESPACE))
    ended = of_group("collect-0", NAMESPACE)
    ended["metadata"]["annotations"] = CollectionOutcome(collected=FOUND).annotations()
    ended["status"] = {
        "conditions": [
            {"type": "Complete", "status": "True", "lastTransitionTime": timestamp(world.now)}
        ]
    }
    world.put(ended)
    world.watch()
    assert size(world, "bytes") is None, "they measured another store"
    await passes(world)
    assert world.all("Job") == []


async def test_no_collection_touches_a_part_that_namespaces_shared() -> None:
    """Although what serves reads it, and whatever else a namespace needs."""
    world = world_with(bucket=StoreBucket(uri="s3://models/team"))
    world.put(make_object("Namespace", "kube-system"))
    world.put(make_object("InferenceEngine", "e", NAMESPACE, spec=engine_spec()))
    reads = {"store_claim": "", "store_bucket": {"uri": "s3://models/team/_research"}}
    stored_revision = revision("ab" * 32, **reads)
    stored_revision["metadata"] |= {"namespace": NAMESPACE, "labels": {MANAGED_BY: OPERATOR}}
    world.put(stored_revision)
    world.put(of_group("collect-1", NAMESPACE))
    job = await start_first(world)
    assert task_of(job).job != "collect-1"
    assert stores_of(world.all("Job")) == {f"s3://models/team/{NAMESPACE}"}
