"""Asking images what they hold: once, kept over restarts, failures reported and tried again."""

from datetime import timedelta
from typing import Any

import pytest
from enginewright.controller.images import CONFIG_MAP
from enginewright.controller.loop import ReconcileResult
from enginewright.kube.errors import Forbidden
from enginewright.manifests.job_limits import FIRST_RETRY
from enginewright.manifests.probe_job import PROBE, image_hash

from tests.support.controller_world import World
from tests.support.fake_kube import timestamp
from tests.support.plan_objects import CPU_IMAGE, OPENVINO_IMAGE, image_facts, make_object
from tests.support.plan_world import CONFIG
from tests.support.simulation import report_end

KEY = image_hash(CPU_IMAGE)
FACTS = image_facts("cpu")


def pod_becomes(world: World, state: dict[str, Any], phase: str = "Pending") -> None:
    world.job_pod_becomes(phase=phase, containerStatuses=[{"name": PROBE, **state}])


def waits(world: World, reason: str, message: str = "") -> None:
    pod_becomes(world, {"state": {"waiting": {"reason": reason, "message": message}}})


def end_probe(world: World, code: int, message: str) -> None:
    state = report_end(PROBE, code=code, message=message)
    pod_becomes(world, state, "Failed" if code else "Succeeded")


def job_failed(world: World, message: str = "Job has reached the specified backoff limit") -> None:
    world.job_ends("Failed", message=message, lastTransitionTime=timestamp(world.now))


def jobs(world: World) -> list[str]:
    return [entry["metadata"]["name"] for entry in world.all("Job")]


@pytest.fixture
def world() -> World:
    return World(namespace=CONFIG.namespace)


async def test_an_image_is_probed_once_and_all_models_are_queued(world: World) -> None:
    await world.images.load()
    assert world.images.loaded
    assert (await world.images.reconcile(KEY)).requeue
    assert not (await world.images.reconcile(KEY)).requeue
    end_probe(world, 0, FACTS.to_json())
    assert await world.images.reconcile(KEY) == ReconcileResult(exists=False)
    assert (world.images.facts, world.images_changed) == ({CPU_IMAGE: FACTS}, 1)
    assert world.find("ConfigMap", CONFIG_MAP)


async def test_a_tenants_pod_cannot_answer_for_an_image(world: World) -> None:
    await world.images.reconcile(KEY)
    end_probe(world, 0, FACTS.to_json())
    pod = world.the("Pod")
    world.remove("Pod", pod["metadata"]["name"])
    pod["metadata"] |= {"namespace": "tenant", "uid": "another"}
    world.put(pod)
    world.watch()
    assert await world.images.reconcile(KEY) == ReconcileResult(requeue_after=20)
    assert not world.images.facts


async def test_a_job_that_gets_no_pod_is_reported(world: World) -> None:
    await world.images.reconcile(KEY)
    waits = (await world.images.reconcile(KEY)).requeue_after
    assert CPU_IMAGE not in world.images.failures
    assert waits is not None
    assert waits <= 20
    world.now += timedelta(minutes=2)
    await world.images.reconcile(KEY)
    assert "has no pod" in world.images.failures[CPU_IMAGE]
    world.job_pods_are_refused("exceeded quota: pods")
    await world.images.reconcile(KEY)
    assert "exceeded quota: pods" in world.images.failures[CPU_IMAGE]
    end_probe(world, 0, FACTS.to_json())
    await world.images.reconcile(KEY)
    assert world.images.facts == {CPU_IMAGE: FACTS}


async def test_a_restart_asks_nothing(world: World) -> None:
    await world.images.reconcile(KEY)
    end_probe(world, 0, FACTS.to_json())
    await world.images.reconcile(KEY)
    writes = world.kube.writes
    world.restart()
    await world.images.load()
    assert world.images.facts == {CPU_IMAGE: FACTS}
    assert await world.images.reconcile(KEY) == ReconcileResult(exists=False)
    assert world.kube.writes == writes


async def test_a_second_image_is_kept_beside_the_first(world: World) -> None:
    await world.images.reconcile(KEY)
    end_probe(world, 0, FACTS.to_json())
    await world.images.reconcile(KEY)
    other = image_hash(OPENVINO_IMAGE)
    await world.images.reconcile(other)
    world.job_ends("Complete", f"probe-{KEY}-1")
    end_probe(world, 0, FACTS.to_json())
    await world.images.reconcile(other)
    assert set(world.get("ConfigMap", CONFIG_MAP)["data"]) == {KEY, other}


async def answer_probe(world: World, image: str) -> None:
    """Have an image be probed to the end."""
    key = image_hash(image)
    await world.images.reconcile(key)
    job = f"probe-{key}-1"
    state = report_end(PROBE, code=0, message=FACTS.to_json())
    statuses = [{"name": PROBE, **state}]
    world.job_pod_becomes(of=job, phase="Succeeded", containerStatuses=statuses)
    world.job_ends("Complete", job)
    await world.images.reconcile(key)


def uses(world: World, image: str) -> None:
    """Have a revision with an image that is no longer configured."""
    revision = make_object(
        "ControllerRevision", "r", CONFIG.namespace, data={"classes": [{"image": image}]}
    )
    world.kube.put(revision)


OLD = "registry.example/cpu:0"


async def test_an_image_of_a_revision_stays_known_as_long_as_it_is_used(world: World) -> None:
    world.images.require([OLD, CPU_IMAGE])
    assert world.images_required == [image_hash(OLD)]
    await answer_probe(world, OLD)
    uses(world, OLD)
    world.restart()
    await world.images.load()
    assert OLD in world.images.facts
    world.images.require([OLD])
    assert world.images_required == [image_hash(OLD)], "it is known"
    await answer_probe(world, CPU_IMAGE)
    assert set(world.get("ConfigMap", CONFIG_MAP)["data"]) == {KEY, image_hash(OLD)}
    world.remove("ControllerRevision", "r")
    world.restart()
    await world.images.load()
    await answer_probe(world, OPENVINO_IMAGE)
    assert image_hash(OLD) not in world.get("ConfigMap", CONFIG_MAP)["data"]


@pytest.mark.parametrize("data", [None, [], {}, {"classes": None}, {"classes": ["cpu"]}])
async def test_a_damaged_revision_uses_no_image(world: World, data: object) -> None:
    world.kube.put(make_object("ControllerRevision", "r", "shop", data=data))
    world.watch()
    await answer_probe(world, CPU_IMAGE)
    assert set(world.get("ConfigMap", CONFIG_MAP)["data"]) == {KEY}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"image": "another", "facts": {}}'])
async def test_a_stored_answer_that_is_no_use_is_asked_again(world: World, text: str) -> None:
    world.kube.put(make_object("ConfigMap", CONFIG_MAP, CONFIG.namespace, data={KEY: text}))
    await world.images.load()
    assert world.images.facts == {}
    assert (await world.images.reconcile(KEY)).requeue


async def test_an_image_that_cannot_be_pulled_is_reported_once(world: World) -> None:
    await world.images.reconcile(KEY)
    for reason in ("ErrImagePull", "ImagePullBackOff", "ErrImagePull"):
        waits(world, reason, "request 7 failed")
        await world.images.reconcile(KEY)
    assert "cannot pull the image" in world.images.failures[CPU_IMAGE]
    assert world.images_changed == 1


async def test_an_image_that_starts_slowly_is_no_failure(world: World) -> None:
    await world.images.reconcile(KEY)
    waits(world, "ContainerCreating")
    assert await world.images.reconcile(KEY) == ReconcileResult()
    assert world.images.failures == {}


async def test_a_failed_probe_is_reported_and_retried_with_growing_waits(world: World) -> None:
    await world.images.reconcile(KEY)
    end_probe(world, 1, "onnxruntime is missing")
    job_failed(world)
    assert (await world.images.reconcile(KEY)).requeue_after == FIRST_RETRY.total_seconds()
    assert "onnxruntime is missing" in world.images.failures[CPU_IMAGE]
    world.now += FIRST_RETRY
    assert (await world.images.reconcile(KEY)).requeue
    assert jobs(world) == [f"probe-{KEY}-2"]
    assert "onnxruntime is missing" in world.images.failures[CPU_IMAGE]
    job_failed(world, "deadline")
    assert (await world.images.reconcile(KEY)).requeue_after == 2 * FIRST_RETRY.total_seconds()


async def test_a_restart_goes_on_with_the_newest_probe(world: World) -> None:
    await world.images.reconcile(KEY)
    end_probe(world, 1, "no space left on device")
    job_failed(world)
    await world.images.reconcile(KEY)
    world.now += FIRST_RETRY
    await world.images.reconcile(KEY)
    world.restart()
    assert await world.images.reconcile(KEY) == ReconcileResult(requeue_after=20)
    assert jobs(world) == [f"probe-{KEY}-2"]
    end_probe(world, 0, FACTS.to_json())
    await world.images.reconcile(KEY)
    assert world.images.facts == {CPU_IMAGE: FACTS}


@pytest.mark.parametrize("code", [65, 132, 139])
async def test_a_probe_is_never_given_up(world: World, code: int) -> None:
    await world.images.reconcile(KEY)
    end_probe(world, code, "")
    job_failed(world)
    assert (await world.images.reconcile(KEY)).requeue_after == FIRST_RETRY.total_seconds()


async def test_a_success_ends_the_failure(world: World) -> None:
    await world.images.reconcile(KEY)
    waits(world, "ErrImagePull")
    await world.images.reconcile(KEY)
    end_probe(world, 0, FACTS.to_json())
    await world.images.reconcile(KEY)
    assert (world.images.failures, world.images_changed) == ({}, 2)


async def test_facts_that_cannot_be_kept_are_not_used(world: World) -> None:
    await world.images.reconcile(KEY)
    end_probe(world, 0, FACTS.to_json())
    world.kube.fail["apply"] = [Forbidden("configmaps is forbidden")]
    with pytest.raises(Forbidden):
        await world.images.reconcile(KEY)
    assert world.images.facts == {}
    await world.images.reconcile(KEY)
    assert world.images.facts == {CPU_IMAGE: FACTS}


async def test_a_probe_of_an_image_that_is_configured_no_more_is_left(world: World) -> None:
    assert await world.images.reconcile("0123456789abcdef") == ReconcileResult(exists=False)
    assert world.kube.writes == 0
