"""One pass over an InferenceEngine: what goes into the plan, what is written, what is counted."""

from datetime import UTC, datetime
from typing import Any

import pytest
from enginewright.contract.reasons import Reason
from enginewright.contract.report import Finding, Progress, StageReport
from enginewright.contract.task import ENGINE_STAGES, LOOKUP_STAGE
from enginewright.controller.catch_up import PodCatchUp
from enginewright.controller.engines import EngineReconciler
from enginewright.controller.execute import Executor
from enginewright.controller.loop import ReconcileResult
from enginewright.controller.metrics import EngineMetrics
from enginewright.controller.routing import EngineKey
from enginewright.kube.errors import Forbidden, Transient
from enginewright.kube.resources import INFERENCE_ENGINES, JOBS, PODS
from enginewright.plan.engines import Ended
from prometheus_client import CollectorRegistry
from typing_extensions import override

from tests.support.fake_kube import FakeCluster, pod_of
from tests.support.plan_objects import ENGINE, NAMESPACE, engine_spec, published_engine
from tests.support.plan_world import CONFIG

KEY = EngineKey(NAMESPACE, ENGINE)


class World(FakeCluster):
    """A reconciler over the fake, for one engine that is built on a device."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = EngineMetrics(self.registry)
        self.progress: dict[tuple[str, str], Progress] = {}
        super().__init__()
        self.observed = self.put(
            {
                "apiVersion": "enginewright.dev/v1alpha1",
                "kind": "InferenceEngine",
                "metadata": {"name": ENGINE, "namespace": NAMESPACE, "generation": 1},
                "spec": engine_spec(),
            }
        )

    @override
    def restart(self) -> None:
        super().restart()
        self.reconciler = EngineReconciler(
            PodCatchUp(self.kube, self.cache),
            self.cache,
            Executor(self.kube, self.cache),
            self.recorder,
            self.metrics,
            CONFIG,
            progress=lambda namespace, job: self.progress.get((namespace, job)),
            now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
        )

    async def reconcile(self) -> ReconcileResult:
        return await self.reconciler.reconcile(KEY)

    async def settle(self) -> None:
        for _ in range(10):
            if not (await self.reconcile()).requeue:
                return
        raise AssertionError("no rest after 10 passes")

    def jobs(self) -> list[str]:
        return sorted(name for kind, _, name in self.kube.objects if kind == JOBS)

    def end(self, name: str, report: StageReport, *, code: int = 0) -> None:
        """End a Job and its pod, which says `report`."""
        job = self.kube.objects[(JOBS, NAMESPACE, name)]
        kind, phase = ("Failed", "Failed") if code else ("Complete", "Succeeded")
        ended = {"exitCode": code, "message": report.termination_message()}
        status = {"name": report.stage, "state": {"terminated": ended}}
        self.put(pod_of(job, {"phase": phase, "containerStatuses": [status]}))
        conditions = [{"type": kind, "status": "True"}]
        self.put({**job, "status": {"conditions": conditions}})

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.kube.objects[(INFERENCE_ENGINES, NAMESPACE, ENGINE)]["status"]
        return found

    def ready(self) -> tuple[str, str]:
        (found,) = [each for each in self.status()["conditions"] if each["type"] == "Ready"]
        return found["status"], found["reason"]

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0


@pytest.fixture
def world() -> World:
    return World()


FOUND_NOTHING = StageReport(stage=LOOKUP_STAGE, ok=True)


def made(world: World) -> StageReport:
    engine = published_engine(world.observed["spec"]["key"])
    return StageReport(stage=ENGINE_STAGES[-1], ok=True, engine=engine)


async def test_from_the_look_to_the_engine_and_then_no_request_at_all(world: World) -> None:
    await world.settle()
    assert world.ready() == ("False", "LookingUp")
    (look,) = world.jobs()
    world.end(look, FOUND_NOTHING)
    await world.settle()
    assert world.ready() == ("False", "Queued")
    (build,) = [name for name in world.jobs() if name != look]
    world.end(build, made(world))
    await world.settle()
    assert world.ready() == ("True", "Built")
    assert await world.events() == ["LookingUp", "Queued", "Built"]
    assert world.count("enginewright_engine_builds_total", result="succeeded", reason="") == 1
    assert world.count("enginewright_engine_cache_total", result="miss") == 1
    assert world.count("enginewright_engine_build_duration_seconds_count") == 1
    before = world.kube.calls.total()
    await world.settle()
    world.restart()
    await world.settle()
    assert world.kube.calls.total() == before
    assert world.count("enginewright_engine_builds_total", result="succeeded", reason="") == 1


async def test_what_the_store_holds_is_a_hit_and_no_build(world: World) -> None:
    await world.settle()
    engine = published_engine(world.observed["spec"]["key"], cached=True)
    world.end(world.jobs()[0], StageReport(stage=LOOKUP_STAGE, ok=True, engine=engine))
    await world.settle()
    assert world.ready() == ("True", "Built")
    assert world.count("enginewright_engine_cache_total", result="hit") == 1
    assert world.count("enginewright_engine_cache_total", result="miss") == 0
    assert world.count("enginewright_engine_build_duration_seconds_count") == 0


async def test_a_lasting_failure_outlives_job_and_operator_with_zero_writes(world: World) -> None:
    await world.settle()
    look = world.jobs()[0]
    report = StageReport(
        stage=LOOKUP_STAGE, ok=False, failure=Finding(reason=Reason.BUILD_FAILED, cause="no")
    )
    world.end(look, report, code=65)
    await world.settle()
    assert world.ready() == ("False", "BuildFailed")
    failed = {"result": "failed", "reason": "BuildFailed"}
    assert world.count("enginewright_engine_builds_total", **failed) == 1
    for kind, _, name in list(world.kube.objects):
        if kind in (JOBS, PODS):
            del world.kube.objects[(kind, NAMESPACE, name)]
    writes = world.kube.writes
    world.restart()
    await world.settle()
    assert world.kube.writes == writes
    assert world.jobs() == []
    assert world.count("enginewright_engine_builds_total", **failed) == 1


async def test_a_failure_is_counted_once_however_often_its_status_is_written(world: World) -> None:
    await world.settle()
    report = StageReport(
        stage=LOOKUP_STAGE, ok=False, failure=Finding(reason=Reason.BUILD_FAILED, cause="no")
    )
    world.end(world.jobs()[0], report, code=65)
    world.kube.fail["apply_status"] = [Transient("busy")]
    with pytest.raises(Transient):
        await world.reconcile()
    await world.settle()
    failed = {"result": "failed", "reason": "BuildFailed"}
    assert world.count("enginewright_engine_builds_total", **failed) == 1


async def test_progress_is_asked_for_by_job(world: World) -> None:
    await world.settle()
    look = world.jobs()[0]
    world.end(look, FOUND_NOTHING)
    await world.settle()
    (build,) = [name for name in world.jobs() if name != look]
    job = world.kube.objects[(JOBS, NAMESPACE, build)]
    running = {"name": "build", "state": {"running": {}}}
    world.put(pod_of(job, {"initContainerStatuses": [running]}))
    await world.settle()
    assert "percent" not in world.status()
    world.progress[(NAMESPACE, build)] = Progress(stage="build", percent=57)
    await world.settle()
    assert world.status()["percent"] == 50


async def test_jobs_of_an_earlier_engine_are_waited_for(world: World) -> None:
    await world.settle()
    (look,) = world.jobs()
    world.end(look, made(world))  # of the earlier one
    leaving = world.observed
    world.cache.deleted(INFERENCE_ENGINES, leaving)
    del world.kube.objects[(INFERENCE_ENGINES, NAMESPACE, ENGINE)]
    requeue = {**leaving, "metadata": {**leaving["metadata"], "uid": "another", "generation": 1}}
    world.put(requeue)
    assert (await world.reconcile()).requeue
    assert world.ready() == ("False", "LookingUp"), "what the earlier one was told is not taken"
    stored = world.kube.objects.pop((JOBS, NAMESPACE, look))
    world.cache.observe(JOBS, stored, deleted=True)
    await world.settle()
    owner = world.kube.objects[(JOBS, NAMESPACE, look)]["metadata"]["ownerReferences"][0]
    assert owner["uid"] == "another"


async def test_what_cannot_be_applied_is_reported(world: World) -> None:
    world.kube.fail["apply"] = [Forbidden("exceeded quota: q")]
    with pytest.raises(Forbidden):
        await world.reconcile()
    assert world.ready() == ("False", "ApplyFailed")
    assert await world.events() == ["ApplyFailed"]


async def test_an_engine_that_is_gone_or_going_is_left_alone(world: World) -> None:
    metadata = {**world.observed["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    world.put({**world.observed, "metadata": metadata})
    assert await world.reconcile() == ReconcileResult(exists=False)
    world.cache.deleted(INFERENCE_ENGINES, world.observed)
    assert await world.reconcile() == ReconcileResult(exists=False)
    assert world.kube.writes == 0


async def test_an_engine_that_cannot_be_read_is_reported_and_not_retried(world: World) -> None:
    world.put({**world.observed, "spec": {"key": 7}})
    assert await world.reconcile() == ReconcileResult()
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
