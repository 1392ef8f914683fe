"""One pass over a model: what goes into the plan, and what is done when carrying it out fails."""

from datetime import timedelta
from typing import Any, Final

import pytest
from enginewright.controller.loop import ReconcileResult
from enginewright.controller.routing import ModelKey
from enginewright.kube.errors import Forbidden, Terminating, Transient
from enginewright.manifests.labels import ENGINE as ENGINE_LABEL
from enginewright.manifests.labels import MANAGED_BY, OPERATOR, REQUESTED_BY, REVISION
from enginewright.manifests.labels import MODEL as MODEL_LABEL
from enginewright.observed.pods import JOB_NAME
from enginewright.plan.types import EventIntent, ObjectRef, Plan

from tests.support.controller_world import World
from tests.support.fake_kube import START, timestamp
from tests.support.plan_objects import MODEL, NAMESPACE, Json, make_object

KEY = ModelKey(NAMESPACE, MODEL)
LABELS = {MANAGED_BY: OPERATOR, MODEL_LABEL: MODEL}
NOT: Final = {"True": "False", "False": "True"}


@pytest.fixture
def world() -> World:
    """Return a world with a model, and a plan that does nothing until a test writes another."""
    world = World()
    spec = {"source": {"uri": "https://example.com/m.onnx"}}
    world.put(make_object("InferenceModel", MODEL, NAMESPACE, spec=spec))
    world.plan = lambda _: decide()
    return world


async def reconcile(world: World) -> ReconcileResult:
    return await world.models.reconcile(KEY)


def child(world: World, kind: str = "Job", name: str = "j", **rest: Any) -> Json:
    return make_object(kind, name, NAMESPACE, world.the("InferenceModel"), LABELS, **rest)


def pod_of(job: Json, phase: str) -> Json:
    labels = {**LABELS, JOB_NAME: job["metadata"]["name"]}
    return make_object("Pod", "j-x", NAMESPACE, job, labels, status={"phase": phase})


def decide(**changes: Any) -> Plan:
    values: dict[str, Any] = {
        "apply": (),
        "delete": (),
        "status": {"observedGeneration": 1},
        "events": (),
        "requeue_after": None,
    }
    return Plan(**(values | changes))


async def test_a_plan_is_carried_out_once_and_then_costs_nothing(world: World) -> None:
    world.plan = lambda _: decide(
        apply=(child(world, "Job"), child(world, "Deployment", "d", spec={"replicas": 1})),
        requeue_after=5,
    )
    assert await reconcile(world) == ReconcileResult(requeue=True, requeue_after=5)
    writes = world.kube.writes
    assert writes == 3
    assert await reconcile(world) == ReconcileResult(requeue_after=5)
    assert world.kube.writes == writes
    # what was written is in the next facts, before any watch event
    assert [job.name for job in world.seen[1].jobs] == ["j"]
    assert len(world.seen[1].deployments) == 1
    assert world.seen[1].model.status.observed_generation == 1


async def test_pods_that_build_engines_of_the_model_are_in_the_facts(world: World) -> None:
    status = {"engines": [{"class": "l4", "name": "mine"}]}
    world.put({**world.the("InferenceModel"), "status": status})
    for engine in ("mine", "another"):
        labels = {MANAGED_BY: OPERATOR, ENGINE_LABEL: engine}
        world.put(make_object("Pod", f"builds-{engine}", NAMESPACE, None, labels))
    await reconcile(world)
    (facts,) = world.seen
    pods_by_engine = {
        engine: [pod.name for pod in pods] for engine, pods in facts.engine_pods.items()
    }
    assert pods_by_engine == {"mine": ["builds-mine"]}


@pytest.mark.parametrize(
    ("strategy", "freed_at", "named", "freed", "orphaned"),
    [
        ("Recreate", "2026-01-01T00:00:00Z", "mine", ["mine"], []),
        ("Surge", "2026-01-01T00:00:00Z", "mine", [], []),
        ("Recreate", None, "mine", [], []),
        ("Recreate", "2026-01-01T00:00:00Z", "another", [], ["mine"]),
    ],
)
async def test_what_another_model_does_about_a_shared_engine_is_in_the_facts(
    world: World,
    strategy: str,
    freed_at: str | None,
    named: str,
    freed: list[str],
    orphaned: list[str],
) -> None:
    engine = make_object("InferenceEngine", "mine", NAMESPACE)
    engine["metadata"]["annotations"] = {REQUESTED_BY: "other"}
    world.put(engine)
    own = {"class": "l4", "name": "mine", "freedAt": "2026-01-01T00:00:00Z"}
    model = world.the("InferenceModel")
    spec = {**model["spec"], "rollout": {"strategy": strategy}}
    world.put({**model, "spec": spec, "status": {"engines": [own]}})
    reference = {"class": "l4", "name": named, "freedAt": freed_at}
    other = make_object("InferenceModel", "other", NAMESPACE, spec=spec)
    world.put({**other, "status": {"engines": [reference]}})
    await reconcile(world)
    assert sorted(world.seen[0].freed_elsewhere) == freed
    assert sorted(world.seen[0].orphaned_engines) == orphaned


async def test_deletions_are_carried_out(world: World) -> None:
    world.put(child(world, "Deployment", "d"))
    world.plan = lambda facts: decide(
        delete=tuple(ObjectRef("apps/v1", "Deployment", NAMESPACE, "d") for _ in facts.deployments)
    )
    assert (await reconcile(world)).requeue
    assert not (await reconcile(world)).requeue
    assert world.kube.calls["delete"] == 1


async def test_a_model_that_is_gone_or_going_is_left_alone(world: World) -> None:
    model = world.the("InferenceModel")
    metadata = {**model["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    world.put({**model, "metadata": metadata})
    assert await reconcile(world) == ReconcileResult(exists=False)
    world.remove("InferenceModel", MODEL)
    world.watch()
    assert await reconcile(world) == ReconcileResult(exists=False)
    assert world.seen == []


async def test_a_model_that_cannot_be_read_is_reported_and_not_retried(world: World) -> None:
    world.put({**world.the("InferenceModel"), "spec": {"source": 7}})
    assert await reconcile(world) == ReconcileResult()
    assert world.seen == []
    assert await world.events() == ["InvalidSpec"]


async def test_a_class_that_cannot_be_read_is_left_out(world: World) -> None:
    for name, spec in (("bad", {}), ("good", {"nodeSelector": {"a": "b"}, "backends": ["cpu"]})):
        world.put(make_object("AcceleratorClass", name, spec=spec))
    await reconcile(world)
    assert [device_class.metadata.name for device_class in world.seen[0].classes] == ["good"]


@pytest.mark.parametrize(("ready", "reason"), [("False", "ApplyFailed"), ("True", "Planned")])
async def test_refused_apply_is_reported(world: World, ready: str, reason: str) -> None:
    conditions = [
        {"type": "Ready", "status": ready, "reason": "Planned", "message": "m"},
        {"type": "Reconciling", "status": NOT[ready], "reason": "Planned", "message": "m"},
        {"type": "Stalled", "status": "False", "reason": "Planned", "message": ""},
    ]
    world.plan = lambda _: decide(apply=(child(world, "Job"),), status={"conditions": conditions})
    world.kube.fail["apply"] = [Forbidden("exceeded quota: q")]
    result = await reconcile(world)
    assert (result.refused, result.unsure, result.requeue_after) == (True, False, 1)
    reported = world.the("InferenceModel")["status"]["conditions"]
    assert [item["reason"] for item in reported] == [reason] * 3
    why = "the preparation waits for Job j: exceeded quota: q: change the quota, the right or"
    assert why in reported[0]["message"]
    assert await world.events() == ["ApplyFailed"]


async def test_a_webhook_that_is_not_reached_is_reported(world: World) -> None:
    world.plan = lambda _: decide(apply=(child(world, "Job"),))
    said = 'failed calling webhook "policy.example": connection refused'
    world.kube.fail["apply"] = [Transient(said, code=500, reason="InternalError")]
    result = await reconcile(world)
    assert (result.refused, result.unsure) == (True, True)
    assert await world.events() == ["ApplyFailed"]


async def test_each_write_is_tried_whatever_becomes_of_the_others(world: World) -> None:
    gone = world.put(child(world, "Deployment", "gone"))
    world.plan = lambda _: decide(
        apply=tuple(
            child(world, kind, kind.lower(), spec={}) for kind in ("Job", "Service", "Deployment")
        ),
        delete=(ObjectRef("apps/v1", "Deployment", NAMESPACE, gone["metadata"]["name"]),),
        events=(EventIntent("Normal", "RolledBack", "back"),),
    )
    for kind in ("Job", "Service"):
        world.kube.refuses["apply", kind] = Forbidden(f"no {kind}", code=403)
    await reconcile(world)
    assert [entry["metadata"]["name"] for entry in world.all("Deployment")] == ["deployment"]
    assert sorted(await world.events()) == ["ApplyFailed", "ApplyFailed", "RolledBack"]


async def test_a_deployment_waits_for_its_own_revision_alone(world: World) -> None:
    def make(kind: str, name: str, revision: str) -> Json:
        labels = {**LABELS, REVISION: revision}
        return make_object(kind, name, NAMESPACE, world.the("InferenceModel"), labels, spec={})

    world.plan = lambda _: decide(
        apply=(
            make("ControllerRevision", f"{MODEL}-r1", "r1"),
            make("Deployment", "d1", "r1"),
            make("ControllerRevision", f"{MODEL}-r2", "r2"),
            make("Deployment", "d2", "r2"),
        )
    )
    world.kube.fail["apply"] = [Forbidden("exceeded quota: q")]
    await reconcile(world)
    assert [entry["metadata"]["name"] for entry in world.all("Deployment")] == ["d2"]
    world.now += timedelta(seconds=1)
    await reconcile(world)
    assert [entry["metadata"]["name"] for entry in world.all("Deployment")] == ["d1", "d2"]


async def test_a_refused_write_is_repeated_neither_by_passes_nor_for_them(world: World) -> None:
    world.plan = lambda _: decide(apply=(child(world, "Job"),))
    world.kube.refuses["apply", "Job"] = Forbidden("exceeded quota: q", code=403)
    attempts: list[float] = []
    for second in range(600):
        world.now = START + timedelta(seconds=second)
        before = world.kube.calls["apply"]
        result = await reconcile(world)
        if world.kube.calls["apply"] > before:
            attempts.append(second)
        assert result.refused == (world.kube.calls["apply"] > before)
    assert attempts == [0, 1, 3, 7, 15, 31, 63, 127, 247, 367, 487]
    world.plan = lambda _: decide(apply=(child(world, "Job", spec={"parallelism": 2}),))
    before = world.kube.calls["apply"]
    await reconcile(world)
    assert world.kube.calls["apply"] == before + 1, "something else is written at once"


async def test_a_deletion_that_takes_long_is_named_and_holds_up_its_name_alone(
    world: World,
) -> None:
    job = child(world, "Job")
    job["metadata"] |= {"deletionTimestamp": timestamp(START), "finalizers": ["foregroundDeletion"]}
    world.put(job)
    world.plan = lambda _: decide(
        apply=(child(world, "Job"), child(world, "Deployment", "d", spec={}))
    )
    result = await reconcile(world)
    assert result.requeue_after == 60
    assert await world.events() == []
    assert world.find("Deployment", "d")
    world.now = START + timedelta(seconds=61)
    await reconcile(world)
    assert await world.events() == ["ApplyFailed"]
    (event,) = world.all("Event")
    assert "the preparation waits for Job j: it is still being deleted" in event["message"]


async def test_a_namespace_that_is_deleted_is_left_alone(world: World) -> None:
    world.plan = lambda _: decide(
        apply=(child(world, "Job"),), events=(EventIntent("Normal", "Preparing", "fetch"),)
    )
    world.kube.fail["apply"] = [Terminating("namespace ns is being terminated")] * 3
    for _ in range(3):
        assert not (await reconcile(world)).requeue
    assert world.kube.writes == 3
    assert await world.events() == []


async def test_a_busy_api_server_is_no_news(world: World) -> None:
    world.plan = lambda _: decide(apply=(child(world, "Job"),))
    world.kube.fail["apply"] = [Transient("busy")]
    with pytest.raises(Transient):
        await reconcile(world)
    assert await world.events() == []


async def test_events_are_written_after_the_status(world: World) -> None:
    world.plan = lambda _: decide(events=(EventIntent("Normal", "Serving", "serves"),))
    world.kube.fail["apply_status"] = [Transient("busy")]
    with pytest.raises(Transient):
        await reconcile(world)
    assert await world.events() == []
    await reconcile(world)
    assert await world.events() == ["Serving"]


async def test_children_of_an_earlier_model_are_no_facts_and_are_waited_for(world: World) -> None:
    job = child(world)
    job["metadata"]["ownerReferences"][0]["uid"] = "an earlier model's"
    world.put(pod_of(world.put(job), "Succeeded"))
    world.plan = lambda _: decide(apply=(child(world, "Job"),))
    outcome = await reconcile(world)
    assert (world.seen[0].jobs, world.seen[0].pods) == ((), ())
    assert outcome == ReconcileResult(requeue=True, requeue_after=60)
    assert world.kube.calls["apply"] == 0
    world.remove("Job", "j")
    world.watch()
    assert (await reconcile(world)).requeue


async def test_a_finished_jobs_pods_are_asked_for_when_the_watch_lags(world: World) -> None:
    job = world.kube.put(child(world, "Job"))
    world.put(pod_of(job, "Running"))
    await reconcile(world)
    assert world.kube.calls["list"] == 0, "the Job runs"
    world.kube.put(pod_of(job, "Succeeded"))  # its event is still on the way
    done = {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}
    world.put({**job, "status": done})
    await reconcile(world)
    assert [pod.phase for pod in world.seen[1].pods] == ["Succeeded"]
    assert world.kube.calls["list"] == 1
    await reconcile(world)
    assert world.kube.calls["list"] == 1
