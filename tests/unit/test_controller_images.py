"""Asking images what they hold: once, kept over restarts, failures told and tried again."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from enginewright.controller.catch_up import PodCatchUp
from enginewright.controller.execute import Executor
from enginewright.controller.images import CONFIG_MAP, ImageReconciler
from enginewright.controller.loop import ReconcileResult
from enginewright.controller.operator_namespace import OperatorNamespace
from enginewright.kube.errors import Forbidden
from enginewright.kube.resources import CONFIG_MAPS, JOBS
from enginewright.manifests.probe_job import image_hash
from enginewright.plan.attempts import FIRST_RETRY
from typing_extensions import override

from tests.support.fake_kube import CONFIG, FakeCluster, pod_of
from tests.support.plan_objects import image_facts

CPU, OPENVINO = "example.com/cpu:1", "example.com/openvino:1"
KEY = image_hash(CPU)
START = datetime(2026, 1, 1, tzinfo=UTC)
FACTS = image_facts("cpu")


class World(FakeCluster):
    def __init__(self) -> None:
        self.now = START
        self.reported = 0
        super().__init__()

    @override
    def restart(self) -> None:
        super().restart()
        self.images = ImageReconciler(
            self.kube,
            self.cache,
            PodCatchUp(self.kube, self.cache),
            Executor(self.kube, self.cache),
            replace(CONFIG, images={"cpu": CPU, "openvino": OPENVINO}),
            OperatorNamespace(self.kube, "system", None),
            changed=self.changed,
            now=lambda: self.now,
        )

    def changed(self) -> None:
        self.reported += 1

    async def reconcile(self, key: str = KEY) -> ReconcileResult:
        return await self.images.reconcile(key)

    def probe(self) -> dict[str, Any] | None:
        jobs = [each for each in self.cache.all(JOBS) if not each.get("status")]
        return jobs[0] if jobs else None

    def pod(
        self, state: Mapping[str, Any], phase: str = "Pending", namespace: str = "system"
    ) -> None:
        job = self.probe()
        assert job is not None
        statuses = [{"name": "probe", "state": state}]
        pod = pod_of(job, {"phase": phase, "containerStatuses": statuses}, namespace=namespace)
        self.put(pod)

    def ended(self, code: int, message: str) -> None:
        state = {"terminated": {"exitCode": code, "message": message}}
        self.pod(state, "Succeeded" if code == 0 else "Failed")

    def job_failed(self, message: str = "Job has reached the specified backoff limit") -> None:
        job = self.probe()
        assert job is not None
        condition = {
            "type": "Failed",
            "status": "True",
            "message": message,
            "lastTransitionTime": self.now.isoformat().replace("+00:00", "Z"),
        }
        self.put({**job, "status": {"conditions": [condition]}})


@pytest.fixture
def world() -> World:
    return World()


async def test_an_image_is_probed_once_and_all_models_are_queued(world: World) -> None:
    await world.images.load()
    assert world.images.loaded
    assert (await world.reconcile()).requeue
    assert not (await world.reconcile()).requeue
    world.ended(0, FACTS.to_json())
    assert await world.reconcile() == ReconcileResult(exists=False)
    assert (world.images.facts, world.reported) == ({CPU: FACTS}, 1)
    assert (CONFIG_MAPS, "system", CONFIG_MAP) in world.kube.objects


async def test_a_tenants_pod_cannot_answer_for_an_image(world: World) -> None:
    await world.reconcile()
    state = {"terminated": {"exitCode": 0, "message": FACTS.to_json()}}
    world.pod(state, "Succeeded", namespace="tenant")
    assert await world.reconcile() == ReconcileResult()
    assert not world.images.facts


async def test_a_restart_asks_nothing(world: World) -> None:
    await world.reconcile()
    world.ended(0, FACTS.to_json())
    await world.reconcile()
    writes = world.kube.writes
    world.restart()
    await world.images.load()
    assert world.images.facts == {CPU: FACTS}
    assert await world.reconcile() == ReconcileResult(exists=False)
    assert world.kube.writes == writes


async def test_a_second_image_is_kept_beside_the_first(world: World) -> None:
    await world.reconcile()
    world.ended(0, FACTS.to_json())
    await world.reconcile()
    other = image_hash(OPENVINO)
    await world.reconcile(other)
    job = world.cache.get(JOBS, "system", f"probe-{other}-1")
    assert job is not None
    state = {"terminated": {"exitCode": 0, "message": FACTS.to_json()}}
    status = {"phase": "Succeeded", "containerStatuses": [{"name": "probe", "state": state}]}
    world.put(pod_of(job, status))
    await world.reconcile(other)
    stored = world.kube.objects[(CONFIG_MAPS, "system", CONFIG_MAP)]
    assert set(stored["data"]) == {KEY, other}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"image": "another", "facts": {}}'])
async def test_a_stored_answer_that_is_no_use_is_asked_again(world: World, text: str) -> None:
    world.kube.put(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": CONFIG_MAP, "namespace": "system"},
            "data": {KEY: text},
        }
    )
    await world.images.load()
    assert world.images.facts == {}
    assert (await world.reconcile()).requeue


async def test_an_image_that_cannot_be_pulled_is_reported_once(world: World) -> None:
    await world.reconcile()
    for reason in ("ErrImagePull", "ImagePullBackOff", "ErrImagePull"):
        world.pod({"waiting": {"reason": reason, "message": "request 7 failed"}})
        await world.reconcile()
    assert "cannot pull the image" in world.images.failures[CPU]
    assert world.reported == 1


async def test_an_image_that_starts_slowly_is_no_failure(world: World) -> None:
    await world.reconcile()
    world.pod({"waiting": {"reason": "ContainerCreating"}})
    assert await world.reconcile() == ReconcileResult()
    assert world.images.failures == {}


async def test_a_failed_probe_is_reported_and_retried_with_growing_waits(world: World) -> None:
    await world.reconcile()
    world.ended(1, "onnxruntime is missing")
    world.job_failed()
    assert (await world.reconcile()).requeue_after == FIRST_RETRY.total_seconds()
    assert "onnxruntime is missing" in world.images.failures[CPU]
    world.now += FIRST_RETRY
    assert (await world.reconcile()).requeue
    assert [each["metadata"]["name"] for each in world.cache.all(JOBS)] == [f"probe-{KEY}-2"]
    assert "onnxruntime is missing" in world.images.failures[CPU]
    world.job_failed("deadline")
    assert (await world.reconcile()).requeue_after == 2 * FIRST_RETRY.total_seconds()


async def test_a_restart_goes_on_with_the_newest_probe(world: World) -> None:
    await world.reconcile()
    world.ended(1, "no space left on device")
    world.job_failed()
    await world.reconcile()
    world.now += FIRST_RETRY
    await world.reconcile()
    world.restart()
    assert await world.reconcile() == ReconcileResult()
    assert [each["metadata"]["name"] for each in world.cache.all(JOBS)] == [f"probe-{KEY}-2"]
    world.ended(0, FACTS.to_json())
    await world.reconcile()
    assert world.images.facts == {CPU: FACTS}


@pytest.mark.parametrize("code", [65, 132, 139])
async def test_a_probe_is_never_given_up(world: World, code: int) -> None:
    await world.reconcile()
    world.ended(code, "")
    world.job_failed()
    assert (await world.reconcile()).requeue_after == FIRST_RETRY.total_seconds()


async def test_a_success_ends_the_failure(world: World) -> None:
    await world.reconcile()
    world.pod({"waiting": {"reason": "ErrImagePull"}})
    await world.reconcile()
    world.ended(0, FACTS.to_json())
    await world.reconcile()
    assert (world.images.failures, world.reported) == ({}, 2)


async def test_facts_that_cannot_be_kept_are_not_used(world: World) -> None:
    await world.reconcile()
    world.ended(0, FACTS.to_json())
    world.kube.fail["apply"] = [Forbidden("configmaps is forbidden")]
    with pytest.raises(Forbidden):
        await world.reconcile()
    assert world.images.facts == {}
    await world.reconcile()
    assert world.images.facts == {CPU: FACTS}


async def test_a_probe_of_an_image_that_is_configured_no_more_is_left(world: World) -> None:
    assert await world.reconcile("0123456789abcdef") == ReconcileResult(exists=False)
    assert world.kube.writes == 0
