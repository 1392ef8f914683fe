"""One pass over a model: what goes into the plan, and what is done when carrying it out fails."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from enginewright.contract.images import ImageFacts
from enginewright.controller.catch_up import PodCatchUp
from enginewright.controller.execute import Executor
from enginewright.controller.loop import ReconcileResult
from enginewright.controller.reconcile import ModelReconciler
from enginewright.controller.routing import ModelKey
from enginewright.kube.errors import Forbidden, Terminating, Transient
from enginewright.kube.resources import (
    INFERENCE_MODELS,
    JOBS,
)
from enginewright.plan.types import EventIntent, Facts, ObjectRef, Plan

from tests.support.fake_kube import CONFIG, FakeCluster, pod_of

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = ModelKey("ns", "m")


class NoImages:
    facts: dict[str, ImageFacts] = {}  # noqa: RUF012 - never changed
    failures: dict[str, str] = {}  # noqa: RUF012 - never changed


class World(FakeCluster):
    """A reconciler over the fake, with a plan that a test writes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Facts] = []
        self.plan: Callable[[Facts], Plan] = lambda _: decided()
        self.reconciler = ModelReconciler(
            PodCatchUp(self.kube, self.cache),
            self.cache,
            Executor(self.kube, self.cache),
            self.recorder,
            NoImages(),
            CONFIG,
            self._planned,
            now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
        )
        self.model = self.put(
            {
                "apiVersion": "enginewright.dev/v1alpha1",
                "kind": "InferenceModel",
                "metadata": {"name": "m", "namespace": "ns", "generation": 1},
                "spec": {"source": {"uri": "https://example.com/m.onnx"}},
            }
        )

    def _planned(self, facts: Facts) -> Plan:
        self.seen.append(facts)
        return self.plan(facts)

    async def reconcile(self) -> ReconcileResult:
        return await self.reconciler.reconcile(KEY)

    def child(self, kind: str = "Job", name: str = "j", **rest: Any) -> dict[str, Any]:
        owner = {
            "apiVersion": "enginewright.dev/v1alpha1",
            "kind": "InferenceModel",
            "name": "m",
            "uid": rest.pop("owner", self.model["metadata"]["uid"]),
        }
        version = {"Job": "batch/v1", "Deployment": "apps/v1"}[kind]
        labels = {
            "app.kubernetes.io/managed-by": "enginewright",
            "enginewright.dev/model": "m",
        }
        metadata = {"name": name, "namespace": "ns", "labels": labels, "ownerReferences": [owner]}
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}


def decided(**changes: Any) -> Plan:
    values: dict[str, Any] = {
        "apply": (),
        "delete": (),
        "status": {"observedGeneration": 1},
        "events": (),
        "requeue_after": None,
    }
    return Plan(**(values | changes))


@pytest.fixture
def world() -> World:
    return World()


async def test_a_plan_is_carried_out_once_and_then_costs_nothing(world: World) -> None:
    world.plan = lambda _: decided(
        apply=(world.child("Job"), world.child("Deployment", "d", spec={"replicas": 1})),
        requeue_after=5,
    )
    assert await world.reconcile() == ReconcileResult(requeue=True, requeue_after=5)
    writes = world.kube.writes
    assert writes == 3
    assert await world.reconcile() == ReconcileResult(requeue_after=5)
    assert world.kube.writes == writes
    # what was written is in the next facts, before any watch event
    assert [job.name for job in world.seen[1].jobs] == ["j"]
    assert len(world.seen[1].deployments) == 1
    assert world.seen[1].model.status.observed_generation == 1


async def test_deletions_are_carried_out(world: World) -> None:
    world.put(world.child("Deployment", "d"))
    world.plan = lambda facts: decided(
        delete=tuple(ObjectRef("apps/v1", "Deployment", "ns", "d") for _ in facts.deployments)
    )
    assert (await world.reconcile()).requeue
    assert not (await world.reconcile()).requeue
    assert world.kube.calls["delete"] == 1


async def test_a_model_that_is_gone_or_going_is_left_alone(world: World) -> None:
    going = {
        **world.model,
        "metadata": {**world.model["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"},
    }
    world.put(going)
    assert await world.reconcile() == ReconcileResult(exists=False)
    world.cache.deleted(INFERENCE_MODELS, world.model)
    assert await world.reconcile() == ReconcileResult(exists=False)
    assert world.seen == []


async def test_a_model_that_cannot_be_read_is_reported_and_not_retried(world: World) -> None:
    world.put({**world.model, "spec": {"source": 7}})
    assert await world.reconcile() == ReconcileResult()
    assert world.seen == []
    assert await world.events() == ["InvalidSpec"]


async def test_a_class_that_cannot_be_read_is_left_out(world: World) -> None:
    for name, spec in (("bad", {}), ("good", {"nodeSelector": {"a": "b"}, "backends": ["cpu"]})):
        accelerator_class = {
            "apiVersion": "enginewright.dev/v1alpha1",
            "kind": "AcceleratorClass",
            "metadata": {"name": name},
            "spec": spec,
        }
        world.put(accelerator_class)
    await world.reconcile()
    assert [each.metadata.name for each in world.seen[0].classes] == ["good"]


@pytest.mark.parametrize(("ready", "reason"), [("False", "ApplyFailed"), ("True", "Planned")])
async def test_what_cannot_be_applied_is_reported(world: World, ready: str, reason: str) -> None:
    conditions = [
        {"type": "Ready", "status": ready, "reason": "Planned", "message": "m"},
        {"type": "Reconciling", "status": "True", "reason": "Planned", "message": "m"},
        {"type": "Stalled", "status": "False", "reason": "Planned", "message": ""},
    ]
    world.plan = lambda _: decided(apply=(world.child("Job"),), status={"conditions": conditions})
    world.kube.fail["apply"] = [Forbidden("exceeded quota: q")]
    with pytest.raises(Forbidden):
        await world.reconcile()
    reported = world.kube.objects[(INFERENCE_MODELS, "ns", "m")]["status"]["conditions"]
    assert [each["reason"] for each in reported] == [reason, reason, "Planned"]
    assert ("exceeded quota: q" in reported[0]["message"]) == (ready == "False")
    assert await world.events() == ["ApplyFailed"]


async def test_a_webhook_that_is_not_reached_is_reported(world: World) -> None:
    world.plan = lambda _: decided(apply=(world.child("Job"),))
    said = 'failed calling webhook "policy.example": connection refused'
    world.kube.fail["apply"] = [Transient(said, code=500, reason="InternalError")]
    with pytest.raises(Transient):
        await world.reconcile()
    assert await world.events() == ["ApplyFailed"]


async def test_a_namespace_that_is_deleted_is_left_alone(world: World) -> None:
    world.plan = lambda _: decided(
        apply=(world.child("Job"),), events=(EventIntent("Normal", "Preparing", "fetch"),)
    )
    world.kube.fail["apply"] = [Terminating("namespace ns is being terminated")] * 3
    for _ in range(3):
        assert not (await world.reconcile()).requeue
    assert world.kube.writes == 3
    assert await world.events() == []


async def test_a_busy_api_server_is_no_news(world: World) -> None:
    world.plan = lambda _: decided(apply=(world.child("Job"),))
    world.kube.fail["apply"] = [Transient("busy")]
    with pytest.raises(Transient):
        await world.reconcile()
    assert await world.events() == []


async def test_events_are_written_after_the_status(world: World) -> None:
    world.plan = lambda _: decided(events=(EventIntent("Normal", "Serving", "serves"),))
    world.kube.fail["apply_status"] = [Transient("busy")]
    with pytest.raises(Transient):
        await world.reconcile()
    assert await world.events() == []
    await world.reconcile()
    assert await world.events() == ["Serving"]


async def test_children_of_an_earlier_model_are_no_facts_and_are_waited_for(world: World) -> None:
    old = world.put(world.child("Job", owner="an earlier model"))
    world.put(pod_of(old, {"phase": "Succeeded"}))
    world.plan = lambda _: decided(apply=(world.child("Job"),))
    outcome = await world.reconcile()
    assert (world.seen[0].jobs, world.seen[0].pods) == ((), ())
    assert outcome == ReconcileResult(requeue=True)
    assert world.kube.calls["apply"] == 0
    world.cache.observe(JOBS, old, deleted=True)
    del world.kube.objects[(JOBS, "ns", "j")]
    assert (await world.reconcile()).requeue


async def test_a_finished_jobs_pods_are_asked_for_when_the_watch_lags(world: World) -> None:
    job = world.kube.put(world.child("Job"))
    world.put(pod_of(job, {"phase": "Running"}))
    world.kube.put(pod_of(job, {"phase": "Succeeded"}))  # its event is still on the way
    done = {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}
    world.put({**job, "status": done})
    await world.reconcile()
    assert [pod.phase for pod in world.seen[0].pods] == ["Succeeded"]
    assert world.kube.calls["list"] == 1
    await world.reconcile()
    assert world.kube.calls["list"] == 1


async def test_a_running_jobs_pods_are_not_asked_for(world: World) -> None:
    world.put(world.child("Job", status={"active": 1}))
    await world.reconcile()
    assert world.kube.calls["list"] == 0
