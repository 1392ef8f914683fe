"""When the Events of Jobs are read, and what is taken from them."""

import copy
from datetime import timedelta

import pytest
from enginewright.controller.routing import ModelKey
from enginewright.kube.errors import Forbidden, KubeError, Transient
from enginewright.manifests.labels import COMPONENT
from enginewright.plan.types import Plan

from tests.support.controller_world import World
from tests.support.plan_objects import MODEL, NAMESPACE, make_object
from tests.unit.test_controller_reconcile import child, decide, pod_of

KEY = ModelKey(NAMESPACE, MODEL)
LATER = timedelta(seconds=20)


@pytest.fixture
def world() -> World:
    """Return a world with a model and a Job of it whose pod is refused; plans do nothing."""
    world = World()
    spec = {"source": {"uri": "https://example.com/m.onnx"}}
    world.put(make_object("InferenceModel", MODEL, NAMESPACE, spec=spec))
    job = child(world, spec={}, status={})
    job["metadata"]["labels"] |= {COMPONENT: "prepare"}
    world.put(job)
    world.plan = _do_nothing
    world.job_pods_are_refused("exceeded quota: gpus", "j")
    return world


def _do_nothing(_facts: object) -> Plan:
    return decide()


async def refusals(world: World) -> dict[str, str]:
    world.watch()
    await world.models.reconcile(KEY)
    return {job.name: job.refused for job in world.seen[-1].jobs if job.refused}


async def test_the_events_of_a_job_are_read_once_it_should_have_a_pod(world: World) -> None:
    assert await refusals(world) == {}
    world.now += LATER
    assert await refusals(world) == {
        "j": 'Error creating: pods "j-x2x9k" is forbidden: exceeded quota: gpus'
    }


async def test_the_last_event_counts(world: World) -> None:
    world.now += LATER
    world.job_pods_are_refused("violates PodSecurity", "j")
    assert "violates PodSecurity" in (await refusals(world))["j"]


async def test_events_of_other_jobs_do_not_count(world: World) -> None:
    world.now += LATER
    for event in world.all("Event"):
        event["involvedObject"]["uid"] = "another"
    assert await refusals(world) == {}


@pytest.mark.parametrize("state", ["a pod", "ended", "suspended", "resumed just now"])
async def test_a_job_that_has_a_pod_or_is_to_have_none_costs_no_request(
    world: World, state: str
) -> None:
    world.now += LATER
    job = copy.deepcopy(world.get("Job", "j"))
    if state == "a pod":
        world.put(pod_of(job, "Pending"))
    elif state == "suspended":
        job["spec"]["suspend"] = True
    elif state == "ended":
        job["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    else:
        job["status"] = {"startTime": world.now.isoformat()}
    world.put(job)
    world.kube.fail["list"] = [Transient("a request")]
    assert await refusals(world) == {}


@pytest.mark.parametrize(
    "error", [Forbidden("events is forbidden", code=403), Transient("timeout")]
)
async def test_events_that_cannot_be_read_stop_no_work(
    world: World, caplog: pytest.LogCaptureFixture, error: KubeError
) -> None:
    world.now += LATER
    world.kube.fail["list"] = [error]
    assert await refusals(world) == {}
    assert error.message in caplog.text
