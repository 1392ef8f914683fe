"""What earlier releases requested and specs have no more: it serves on, and its user is told what replaces it."""

import copy
import json
from pathlib import Path
from typing import Any, Final

import pytest
from enginewright.contract.task import TASK_VARIABLE, ServeTask
from enginewright.manifests.deployment import canary_deployment
from enginewright.manifests.snapshot import Revision

from tests.support.plan_objects import CPU_IMAGE
from tests.support.plan_world import World
from tests.support.releases import restored

# a release with `spec.serving.processes: 4` has written it, for 2 replicas
PROCESSES: Final = Path(__file__).parents[1] / "fixtures" / "removed" / "processes.json"
NEWER: Final = f"{CPU_IMAGE}-newer"


@pytest.fixture
def world() -> World:
    """Return a cluster after an upgrade whose API server has pruned the field."""
    kept = json.loads(PROCESSES.read_text())
    assert kept["spec"]["serving"].pop("processes") == 4
    return restored(kept)


def processes_of(world: World) -> set[int]:
    """Return how many server processes the containers of the serving pods start."""
    spec = world.the("Deployment")["spec"]["template"]["spec"]
    variables = [
        json.loads(one["value"]).get("processes", 1)
        for each in (*spec["initContainers"], *spec["containers"])
        for one in each["env"]
        if one["name"] == TASK_VARIABLE
    ]
    assert len(variables) == 3
    return set(variables)


def built(objects: dict[Any, Any], kind: str) -> dict[str, Any]:
    (found,) = [each for key, each in objects.items() if key[0] == kind]
    return dict(found)


def removed(world: World) -> list[str]:
    return [each.message for each in world.events if each.reason == "ProcessesRemoved"]


# event: Rollouts | an upgrade from a release whose pods had several server processes (`spec.serving.processes`) |
#   the revision as it was built, with its runtime image, until its user requests another | an Event ProcessesRemoved
#   with the replicas that replace them; `status.images`: Waiting
def test_a_revision_with_processes_serves_on_as_it_was_built(world: World) -> None:
    objects, before = copy.deepcopy(world.kube.objects), copy.deepcopy(world.status)
    world.settle()
    assert world.kube.objects.keys() == objects.keys(), "no Job, no revision"
    assert world.the("ControllerRevision")["data"] == built(objects, "ControllerRevision")["data"]
    assert world.the("Deployment")["spec"] == built(objects, "Deployment")["spec"]
    assert world.status["serving"] == before["serving"]
    assert world.status["revision"] == before["revision"]
    assert world.conditions()["Ready"] == ("True", "Serving")
    assert processes_of(world) == {4}


def test_its_user_is_told_how_many_replicas_replace_it(world: World) -> None:
    world.settle()
    revision = world.status["revision"]
    assert [(each.type, each.reason) for each in world.events] == [("Warning", "ProcessesRemoved")]
    (message,) = removed(world)
    assert message.startswith(f"revision {revision} serves with 4 server processes in each pod")
    assert "4 replicas replace one of its pods (8 instead of 2 on class cpu)" in message
    assert "each with 1/4 of the CPUs" in message


def test_it_keeps_its_image_until_its_user_requests_another_revision(world: World) -> None:
    world.new_runtime_image(NEWER, like=world.images[CPU_IMAGE]).settle()
    images = world.status["images"]
    assert (images["state"], images["reason"]) == ("Waiting", "ProcessesRemoved")
    assert images["message"] in removed(world)
    assert processes_of(world) == {4}

    resources = {"requests": {"cpu": "1"}}
    world.edit(replicas=8, podTemplate={"resources": resources}).all_available()
    assert processes_of(world) == {1}
    assert not removed(world)[1:], "one Event of the upgrade, one of the image"
    assert world.status["images"]["state"] == "Moving"
    world.job_succeeds().all_available()
    assert world.status["images"]["image"] == NEWER
    assert processes_of(world) == {1}
    assert world.the("Deployment")["spec"]["replicas"] == 8


def test_more_replicas_alone_are_no_other_revision(world: World) -> None:
    world.settle()
    revision = world.status["revision"]
    world.edit(replicas=3).all_available()
    assert world.status["revision"] == revision
    assert processes_of(world) == {4}


def test_a_spec_that_comes_back_is_the_revision_that_was_built(world: World) -> None:
    world.settle()
    revision = world.status["revision"]
    world.edit(podTemplate={"labels": {"a": "b"}}).all_available()
    assert processes_of(world) == {1}
    world.edit(podTemplate=None).all_available()
    assert world.status["revision"] == revision
    assert processes_of(world) == {4}


def test_a_new_revision_has_nothing_of_it() -> None:
    world = World().settle().job_succeeds().all_available()
    assert "processes" not in world.the("ControllerRevision")["data"]
    assert not removed(world)


def test_a_canary_of_such_a_revision_is_the_one_that_runs(world: World) -> None:
    kept = world.the("ControllerRevision")
    revision = Revision.read(kept)
    made = canary_deployment(world.facts().model, revision, "cpu", replicas=1, stable_key="b" * 64)
    fetch = made["spec"]["template"]["spec"]["initContainers"][0]
    (text,) = [each["value"] for each in fetch["env"] if each["name"] == TASK_VARIABLE]
    found: dict[str, Any] = json.loads(text)
    assert (found["processes"], found["stable_key"]) == (4, "b" * 64)
    before = revision.templates["cpu"]["spec"]["initContainers"][0]["env"]
    (stored,) = [each["value"] for each in before if each["name"] == TASK_VARIABLE]
    assert text.replace(f'"stable_key":"{"b" * 64}",', "") == stored


def test_the_task_of_a_canary_is_written_as_ever() -> None:
    world = World(fallback={"policy": "Budget", "maxComputeShare": "0.00001"})
    kept = world.settle().job_succeeds().all_available().the("ControllerRevision")
    made = canary_deployment(
        world.facts().model, Revision.read(kept), "cpu", replicas=1, stable_key="b" * 64
    )
    fetch = made["spec"]["template"]["spec"]["initContainers"][0]
    (text,) = [each["value"] for each in fetch["env"] if each["name"] == TASK_VARIABLE]
    assert text == ServeTask.model_validate_json(text).to_json()
