"""Namespaces that share a part of a bucket: one Job at a time for what several of them need, and none waits for nothing."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from enginewright.contract.reasons import Reason
from enginewright.contract.task import EngineTask, PrepareTask
from enginewright.controller.routing import EngineKey, ModelKey
from enginewright.kube.errors import Forbidden
from enginewright.manifests.labels import MAKES
from enginewright.manifests.store_access import StoreBucket
from enginewright.plan.shared_store import PATIENCE, MakingJob, awaited
from enginewright.plan.types import StoreGroup

from tests.support.fake_kube import at_once
from tests.support.many_models import ManyModels
from tests.support.plan_objects import Json, engine_spec, made
from tests.support.plan_world import CONFIG

A, B, ALONE = "team-a", "team-b", "alone"
MANY = tuple(f"team-{each}" for each in "abcdef")
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
WAITS = ("False", "SharedPreparation")


class Group(ManyModels):
    """Two namespaces or more that share a part of a bucket, and one that does not."""

    def __init__(self, *namespaces: str, **limits: Any) -> None:
        store = replace(
            CONFIG.store,
            bucket=StoreBucket(uri="s3://models/all"),
            groups=(StoreGroup("research", namespaces or (A, B)),),
        )
        super().__init__(replace(CONFIG, store=store, **limits))

    def within(self, namespace: str) -> "Group":
        """Have what follows happen in a namespace."""
        self.namespace = namespace
        return self

    def applied_at_once(self, *namespaces: str) -> "Group":
        """Have an equal model in each, whose name begins with that of the namespace."""
        for each in namespaces:
            self.within(each).put(f"{each}-model")
        self.settle()
        return self

    def engines_at_once(self, *namespaces: str, **build: Any) -> "Group":
        """Have an equal engine in each, likewise."""
        for each in namespaces:
            name = f"{each}-engine"
            spec = engine_spec(**build)
            wanted = made("InferenceEngine", name, each, spec=spec, status={})
            wanted["metadata"]["annotations"] = {}
            self.kube.put(wanted)
        self.settle()
        return self

    def running(self) -> list[tuple[str, str]]:
        """Return namespace and component of the Jobs that run."""
        return sorted(
            (
                job["metadata"]["namespace"],
                job["metadata"]["labels"]["enginewright.dev/component"],
            )
            for job in self.running_jobs()
        )

    def job_in(self, namespace: str) -> str:
        """Return the name of the Job that runs in a namespace, where things happen from now on."""
        self.within(namespace)
        (job,) = [
            each for each in self.running_jobs() if each["metadata"]["namespace"] == namespace
        ]
        return str(job["metadata"]["name"])

    def model_in(self, namespace: str) -> Json:
        return self.within(namespace).get("InferenceModel", f"{namespace}-model")

    def said_in(self, namespace: str) -> tuple[tuple[str, str], str]:
        """Return status and reason of the model's Ready, and its message."""
        self.within(namespace)
        name = f"{namespace}-model"
        return self.ready(name), self.message(name)

    def engine_in(self, namespace: str) -> Json:
        return self.within(namespace).get("InferenceEngine", f"{namespace}-engine")

    def engine_said(self, namespace: str) -> tuple[str, str]:
        (ready,) = [
            each
            for each in self.engine_in(namespace)["status"]["conditions"]
            if each["type"] == "Ready"
        ]
        return ready["reason"], ready["message"]


# preparations


# event: Jobs | models of two namespaces that share a part of the bucket are to be prepared alike | what each serves |
#   Ready `SharedPreparation` with the namespace whose Job runs; the other one's Job then finds the prepared model
def test_one_namespace_prepares_and_the_other_looks_afterwards() -> None:
    world = Group().applied_at_once(A, B, ALONE)
    assert world.running() == [(ALONE, "prepare"), (A, "prepare")]
    assert world.said_in(B) == (
        WAITS,
        "preparing the model: InferenceModel team-a-model of namespace team-a prepares the same model",
    )
    first = world.job_in(A)
    task = PrepareTask.model_validate_json(_task(world.get("Job", first)))
    assert task.job == f"team-a.{first}", "reports of equally named Jobs are apart"
    world.job_succeeds(of=first)
    assert world.running() == [(ALONE, "prepare"), (B, "prepare")]
    world.job_succeeds(of=world.job_in(B))
    assert [bool(world.model_in(each)["status"].get("prepared")) for each in (A, B)] == [True] * 2
    world.job_succeeds(of=world.job_in(ALONE))
    assert world.running_jobs() == []


def _task(job: Json) -> str:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return str(container["env"][0]["value"])


def test_a_namespace_without_others_has_jobs_as_ever() -> None:
    world = Group().applied_at_once(ALONE)
    job = world.get("Job", world.job_in(ALONE))
    assert MAKES not in job["metadata"]["annotations"]
    assert PrepareTask.model_validate_json(_task(job)).job == job["metadata"]["name"]


@pytest.mark.parametrize("event", ["fails", "fails for now", "deleted", "suspended", "edited"])
def test_the_other_one_goes_on_at_once(event: str) -> None:
    world = Group().applied_at_once(A, B)
    first = world.job_in(A)
    match event:
        case "fails":
            world.job_fails(Reason.INVALID_MODEL, of=first)
        case "fails for now":
            world.job_fails(Reason.SOURCE_UNREACHABLE, "fetch", of=first)
        case "deleted":
            world.delete("team-a-model")
        case "suspended":
            job = world.get("Job", first)
            job["spec"]["suspend"] = True
            world.kube.changed(job)
            world.settle()
        case _:
            world.put("team-a-model", source={"uri": "https://models.example/other.onnx"})
            world.settle()
    assert (B, "prepare") in world.running()
    world.job_succeeds(of=world.job_in(B))
    assert world.model_in(B)["status"]["prepared"]


# fault: Store | a Job that another namespace of its group waits for gets no node, fails, is suspended or deleted |
#   the operator, from Job and pods; the other namespace creates its own | at once; without a node after 5 min
def test_a_job_that_no_node_takes_is_waited_for_until_patience_ends() -> None:
    world = Group().applied_at_once(A, B)
    world.job_in(A)
    world.unschedulable("0/2 nodes are available: 2 Insufficient memory.")
    result = at_once(world.models.reconcile(ModelKey(B, f"{B}-model")))
    assert result.requeue_after == PATIENCE.total_seconds()
    world.after(seconds=PATIENCE.total_seconds() - 1)
    assert world.running() == [(A, "prepare")]
    world.after(seconds=1)
    assert world.running() == [(A, "prepare"), (B, "prepare")]
    world.job_succeeds(of=world.job_in(B))
    world.job_succeeds(of=world.job_in(A))
    assert [bool(world.model_in(each)["status"].get("prepared")) for each in (A, B)] == [True] * 2


# fault: Store | a Job that another namespace of its group waits for is on a node and cannot start: its image or its volume is
#   missing | the operator, from its pod's containers; the other namespace creates its own | 5 min
def test_a_job_whose_containers_do_not_start_is_not_waited_for_longer() -> None:
    world = Group().applied_at_once(A, B)
    waits = {"reason": "ImagePullBackOff", "message": "no such image"}
    waiting = {"name": "fetch", "state": {"waiting": waits}}
    world.job_pod_becomes(of=world.job_in(A), initContainerStatuses=[waiting])
    world.after(seconds=PATIENCE.total_seconds() - 1)
    assert world.running() == [(A, "prepare")]
    world.after(seconds=1)
    assert world.running() == [(A, "prepare"), (B, "prepare")]


def test_all_namespaces_lose_patience_at_the_same_time() -> None:
    world = Group(*MANY).applied_at_once(*MANY)
    assert world.running() == [(MANY[0], "prepare")]
    world.after(seconds=PATIENCE.total_seconds())
    assert [namespace for namespace, _ in world.running()] == list(MANY)


def test_once_a_job_has_ended_well_all_look_at_the_same_time() -> None:
    world = Group(*MANY).applied_at_once(*MANY)
    world.job_succeeds(of=world.job_in(MANY[0]))
    assert [namespace for namespace, _ in world.running()] == list(MANY[1:])
    world = Group(*MANY).engines_at_once(*MANY, ahead_of_time=True)
    world.succeeds(of=world.job_in(MANY[0]))
    assert [namespace for namespace, _ in world.running()] == list(MANY[1:])


def test_a_job_on_a_node_is_waited_for_until_it_ends() -> None:
    world = Group().applied_at_once(A, B)
    world.stage_runs("convert", of=world.job_in(A))
    world.after(hours=3)
    assert world.running() == [(A, "prepare")]
    world.restart().settle()
    assert world.running() == [(A, "prepare")]
    assert world.said_in(B)[0] == WAITS


def test_a_job_that_cannot_be_created_holds_nobody_up() -> None:
    world = Group()

    def refuse(obj: Json) -> None:
        if obj["kind"] == "Job" and obj["metadata"]["namespace"] == A:
            raise Forbidden("quota", code=403)

    world.kube.rewrite = refuse
    world.applied_at_once(A, B)
    assert world.running() == [(B, "prepare")]


def test_models_of_a_namespace_that_waits_share_one_job_afterwards() -> None:
    world = Group().applied_at_once(A, B)
    world.within(B).apply("second", "third")
    world.job_succeeds(of=world.job_in(A))
    assert world.running() == [(B, "prepare")]
    world.job_succeeds(of=world.job_in(B))
    assert all(each["status"].get("prepared") for each in world.all("InferenceModel")), (
        "one Job for three"
    )
    assert world.running_jobs() == []


# engines


# event: Jobs | InferenceEngines of two namespaces that share a part of the bucket need one engine | what each serves |
#   Ready `Queued` with the namespace that builds; the other one then finds the engine in the store
def test_one_namespace_builds_and_the_other_looks_afterwards() -> None:
    world = Group().engines_at_once(A, B)
    assert world.running() == [(A, "engine-lookup"), (B, "engine-lookup")]
    for each in (A, B):
        world.misses(of=world.job_in(each))
    assert world.running() == [(A, "engine")]
    assert world.engine_said(B) == (
        "Queued",
        "InferenceEngine team-a-engine of namespace team-a builds the same engine",
    )
    job = world.get("Job", world.job_in(A))
    key = world.engine_in(A)["spec"]["key"]
    assert job["metadata"]["annotations"][MAKES] == key
    assert EngineTask.model_validate_json(_task(job)).job == f"team-a.{job['metadata']['name']}"
    world.restart().settle()
    assert world.running() == [(A, "engine")]
    world.succeeds(of=world.job_in(A))
    assert world.running() == [(B, "engine-lookup")]
    world.succeeds(of=world.job_in(B), cached=True)
    assert [world.engine_said(each)[0] for each in (A, B)] == ["Built", "Built"]
    assert "found in the store" in world.engine_said(B)[1]


def test_a_build_without_a_device_waits_likewise() -> None:
    world = Group().engines_at_once(A, B, ahead_of_time=True)
    assert world.running() == [(A, "engine")]
    world.succeeds(of=world.job_in(A))
    assert world.running() == [(B, "engine")]
    world.succeeds(of=world.job_in(B), cached=True)
    assert world.running_jobs() == []


@pytest.mark.parametrize("reason", [Reason.BUILD_FAILED, Reason.DRIVER_MISSING])
def test_a_build_that_fails_is_left_to_the_other_namespace(reason: Reason) -> None:
    world = Group().engines_at_once(A, B)
    for each in (A, B):
        world.misses(of=world.job_in(each))
    world.job_fails(reason, "build", of=world.job_in(A))
    assert world.running() == [(B, "engine-lookup")]
    world.misses(of=world.job_in(B))
    assert world.running() == [(B, "engine")]
    world.after(minutes=2)
    assert world.running() == [(B, "engine")], "the retry waits in turn"
    world.succeeds(of=world.job_in(B))
    if reason == Reason.DRIVER_MISSING:
        assert world.running() == [(A, "engine-lookup")]
        world.succeeds(of=world.job_in(A), cached=True)
        assert world.engine_said(A)[0] == "Built"


def test_a_build_without_a_free_device_holds_the_other_namespace_up_for_a_while() -> None:
    world = Group().engines_at_once(A, B)
    for each in (A, B):
        world.misses(of=world.job_in(each))
    result = at_once(world.engines.reconcile(EngineKey(B, f"{B}-engine")))
    assert result.requeue_after == PATIENCE.total_seconds()
    world.after(seconds=PATIENCE.total_seconds())
    world.misses(of=world.job_in(B))
    assert world.running() == [(A, "engine"), (B, "engine")]


def test_waiting_for_other_namespaces_uses_no_attempt_up() -> None:
    world = Group(*MANY).engines_at_once(*MANY)
    failed: list[str] = []
    while len(failed) < len(MANY):
        namespace, component = next(
            (each for each in world.running() if each[1] == "engine-lookup"), world.running()[0]
        )
        if component == "engine-lookup":
            world.misses(of=world.job_in(namespace))
            continue
        failed.append(namespace)
        world.job_fails(Reason.OUT_OF_MEMORY, "build", of=world.job_in(namespace))
        status = world.engine_in(namespace)["status"]
        assert status["attempt"] == 1
        assert not status["failure"].get("lasting")
    assert sorted(failed) == sorted(MANY)


# who is waited for


def making(namespace: str, *, age: float = 0, runs: bool = False) -> MakingJob:
    return MakingJob(namespace, "InferenceModel m", NOW - timedelta(seconds=age), runs)


def test_the_first_job_of_another_namespace_is_waited_for() -> None:
    assert awaited([], B, NOW) is None
    assert awaited([making(B)], B, NOW) is None, "its own"
    assert awaited([making(A, age=PATIENCE.total_seconds())], B, NOW) is None
    found = awaited([making("team-c", age=5), making(A, age=9)], B, NOW)
    assert found is not None
    assert (found.namespace, found.seconds) == (A, PATIENCE.total_seconds() - 9)
    old = making(B, age=PATIENCE.total_seconds())
    assert awaited([making(A, age=9), old], B, NOW) is None, "from the first one on"
    ended = replace(making("team-c", age=9999), succeeded=NOW - timedelta(seconds=9))
    assert awaited([ended, making(A, runs=True)], B, NOW) is None
    long_ago = replace(ended, succeeded=NOW - PATIENCE)  # what it made may be gone
    assert awaited([long_ago], B, NOW) is None
    found = awaited([long_ago, making(A, age=9)], B, NOW)
    assert found is not None
    assert (found.namespace, found.seconds) == (A, PATIENCE.total_seconds() - 9)
    found = awaited([making("team-c", age=9999, runs=True), making(A, age=9)], B, NOW)
    assert found is not None
    assert (found.namespace, found.seconds) == ("team-c", PATIENCE.total_seconds())
