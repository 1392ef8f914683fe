"""One pass over an InferenceEngine: what goes into the plan, what is written, what is counted."""

import pytest
from enginewright.controller.loop import ReconcileResult
from enginewright.controller.metrics import EngineMetrics
from enginewright.controller.routing import EngineKey
from enginewright.kube.errors import Forbidden, Transient
from enginewright.manifests.labels import CLASS, MODEL, REQUESTED_BY, REVISION
from enginewright.plan.engines.engine import Ended
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Progress
from prometheus_client import CollectorRegistry

from tests.support.controller_world import World
from tests.support.plan_objects import ENGINE, NAMESPACE, Json, engine_spec, make_object
from tests.support.plan_world import conditions_of

KEY = EngineKey(NAMESPACE, ENGINE)
BUILDS = "enginewright_engine_builds_total"
SPEC = {"source": {"uri": "https://models.example/resnet.onnx"}}
MODEL_OF_NONE = make_object("InferenceModel", "resnet", NAMESPACE, spec=SPEC)


@pytest.fixture
def world() -> World:
    """Return a world with one engine that is built on a device."""
    world = World()
    world.kube.put(make_object("InferenceEngine", ENGINE, NAMESPACE, spec=engine_spec()))
    return world


def request(world: World) -> None:
    """Have a model request the engine, which was written by hand."""
    engine = world.the("InferenceEngine")
    engine["metadata"]["annotations"] = {REQUESTED_BY: "resnet"}
    world.put(engine)


def make_user(model: str, namespace: str = NAMESPACE) -> Json:
    status = {"engines": [{"class": "l4", "name": ENGINE}]}
    return {**make_object("InferenceModel", model, namespace, spec=SPEC), "status": status}


def ready(world: World) -> tuple[str, str]:
    return conditions_of(world.the("InferenceEngine"))["Ready"]


async def test_from_the_look_to_the_engine_and_then_no_request_at_all(world: World) -> None:
    world.settle()
    assert ready(world) == ("False", "LookingUp")
    world.misses()
    assert ready(world) == ("False", "Queued")
    world.succeeds("engine")
    assert ready(world) == ("True", "Built")
    assert await world.events() == ["Built"]  # the rest was progress
    assert world.count(BUILDS, result="succeeded", reason="") == 1
    assert world.count("enginewright_engine_cache_total", result="miss") == 1
    assert world.count("enginewright_engine_build_duration_seconds_count") == 1
    before = world.kube.calls.total()
    world.settle().restart()
    world.settle()
    assert world.kube.calls.total() == before
    assert world.count(BUILDS, result="succeeded", reason="") == 1


def test_stored_engine_is_a_hit(world: World) -> None:
    world.settle().succeeds("engine-lookup", cached=True)
    assert ready(world) == ("True", "Built")
    assert world.count("enginewright_engine_cache_total", result="hit") == 1
    assert world.count("enginewright_engine_cache_total", result="miss") == 0
    assert world.count("enginewright_engine_build_duration_seconds_count") == 0


FAILED = {"result": "failed", "reason": "BuildFailed"}


def test_a_lasting_failure_outlives_job_and_operator_with_zero_writes(world: World) -> None:
    world.settle().job_fails(Reason.BUILD_FAILED)
    assert ready(world) == ("False", "BuildFailed")
    assert world.count(BUILDS, **FAILED) == 1
    world.jobs_are_cleaned_away()
    writes = world.kube.writes
    world.restart()
    world.settle()
    assert world.kube.writes == writes
    assert world.all("Job") == []
    assert world.count(BUILDS, **FAILED) == 1


async def test_a_failure_is_counted_once_however_often_its_status_is_written(world: World) -> None:
    world.settle().kube.fail["apply_status"] = [Transient("busy")]
    world.job_fails(Reason.BUILD_FAILED)
    assert not world.kube.fail["apply_status"]
    assert world.count(BUILDS, **FAILED) == 1


def test_progress_is_asked_for_by_job(world: World) -> None:
    world.settle().misses()
    build = world.job("engine")["metadata"]["name"]
    world.stage_runs("build")
    assert "percent" not in world.the("InferenceEngine")["status"]
    world.progress[build] = Progress(stage="build", percent=57)
    world.settle()
    assert world.the("InferenceEngine")["status"]["percent"] == 50


async def test_jobs_of_an_earlier_engine_are_waited_for(world: World) -> None:
    world.settle().succeeds()  # of the earlier one
    (look,) = world.all("Job")
    earlier = world.kube.objects.pop(("InferenceEngine", *KEY))
    world.watch()
    metadata = {"name": ENGINE, "namespace": NAMESPACE, "uid": "another"}
    world.put({**earlier, "metadata": metadata, "status": {}})
    assert (await world.engines.reconcile(KEY)).requeue
    assert ready(world) == ("False", "LookingUp"), (
        "what was reported to the earlier one is not taken"
    )
    world.remove("Job", look["metadata"]["name"])
    world.settle()
    (owner,) = world.job()["metadata"]["ownerReferences"]
    assert owner["uid"] == "another"


async def test_refused_apply_is_reported(world: World) -> None:
    world.watch()
    world.kube.fail["apply"] = [Forbidden("exceeded quota: q")]
    assert (await world.engines.reconcile(KEY)).refused
    assert ready(world) == ("False", "ApplyFailed")
    assert await world.events() == ["ApplyFailed"]


async def test_an_engine_that_is_gone_or_going_is_left_alone(world: World) -> None:
    observed = world.the("InferenceEngine")
    metadata = {**observed["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    world.put({**observed, "metadata": metadata})
    assert await world.engines.reconcile(KEY) == ReconcileResult(exists=False)
    world.remove("InferenceEngine", ENGINE)
    world.watch()
    assert await world.engines.reconcile(KEY) == ReconcileResult(exists=False)
    assert world.kube.writes == 0


async def test_an_engine_that_cannot_be_read_is_reported_and_not_retried(world: World) -> None:
    world.put({**world.the("InferenceEngine"), "spec": {"key": 7}})
    assert await world.engines.reconcile(KEY) == ReconcileResult()
    assert await world.events() == ["InvalidSpec"]


def test_no_pod_can_make_series() -> None:
    registry = CollectorRegistry()
    metrics = EngineMetrics(registry)
    for reason in ("Invented", "Another", Reason.TIMEOUT):
        metrics.count(Ended(reason))
    reported = {
        sample.labels["reason"]: sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "enginewright_engine_builds_total" and sample.labels["reason"]
    }
    assert reported == {"InternalError": 2, "Timeout": 1}


async def test_an_engine_that_a_model_requests_is_built_while_one_names_it(world: World) -> None:
    request(world)
    assert world.settle().all("Job") == []
    assert await world.events() == [], "it has only just been made"
    world.put(make_user("another"))
    assert ready(world.settle()) == ("False", "LookingUp")
    world.kube.put(make_user("another", "elsewhere"))
    world.restart()
    world.settle().misses()
    assert len(world.running_jobs()) == 1
    del world.kube.objects[("InferenceModel", NAMESPACE, "another")]
    assert world.settle().running_jobs() == []
    assert ready(world) == ("False", "NotRequested")


# event: Jobs | nothing has needed an InferenceEngine for `store.gc.unusedFor` | all pods | Event
#   `EngineRemoved`; a collection removes its files later
async def test_an_engine_that_nothing_needs_is_removed_over_restarts(world: World) -> None:
    request(world)
    world.put(make_user("resnet"))
    world.settle().misses()
    world.succeeds("engine")
    world.later(days=40)
    assert "unusedSince" not in world.the("InferenceEngine")["status"]
    del world.kube.objects[("InferenceModel", NAMESPACE, "resnet")]
    world.settle()
    since = world.the("InferenceEngine")["status"]["unusedSince"]
    for _ in range(29):
        world.restart()
        world.later(days=1)
        assert world.the("InferenceEngine")["status"]["unusedSince"] == since
    world.restart()
    world.later(days=1)
    assert world.all("InferenceEngine") == []
    assert (await world.events())[-1] == "EngineRemoved"


def test_an_engine_that_is_needed_again_stays(world: World) -> None:
    request(world)
    world.later(hours=1)
    assert world.the("InferenceEngine")["status"]["unusedSince"]
    world.put(make_user("resnet"))
    world.later(days=31)
    assert "unusedSince" not in world.the("InferenceEngine")["status"]
    assert world.running_jobs()


def revision(name: str, engine_key: str) -> Json:
    a_class = {"name": "l4", "backend": "tensorrt", "image": "gpu:1", "engine_key": engine_key}
    content = {
        "prepared_key": "a" * 64,
        "model_digest": "d" * 64,
        "classes": [a_class],
        "max_queue": 256,
        "store_claim": "store",
    }
    labels = {MODEL: "resnet", REVISION: name}
    stored = make_object("ControllerRevision", f"resnet-{name}", NAMESPACE, labels=labels)
    return {**stored, "revision": 1, "data": content}


def test_an_engine_of_a_revision_to_go_back_to_stays_until_that_is_forgotten(world: World) -> None:
    request(world)
    world.put(MODEL_OF_NONE)  # which needs another now
    world.put(revision("new", "f" * 64))
    world.put(revision("old", engine_spec()["key"]))
    world.later(days=40)
    assert "unusedSince" not in world.the("InferenceEngine")["status"]
    world.remove("ControllerRevision", "resnet-old")
    world.later(minutes=10)
    assert world.the("InferenceEngine")["status"]["unusedSince"]
    world.later(days=30)
    assert world.all("InferenceEngine") == []


def test_an_engine_stays_while_a_deployments_revision_cannot_be_read(world: World) -> None:
    request(world)
    world.put(MODEL_OF_NONE)
    labels = {MODEL: "resnet", CLASS: "l4", REVISION: "r1"}
    world.put(
        make_object("Deployment", "resnet-l4", NAMESPACE, labels=labels, spec={"replicas": 1})
    )
    world.later(days=40)
    assert "unusedSince" not in world.the("InferenceEngine")["status"], "revision r1 is not there"
    world.put(revision("r1", "f" * 64))
    world.later(minutes=10)
    assert world.the("InferenceEngine")["status"]["unusedSince"]
