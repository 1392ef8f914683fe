"""Removed fields: what earlier releases requested serves on, and an Event names what replaces it."""

import copy
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from enginewright.api.inference_model import InferenceModelSpec
from enginewright.manifests.deployment import canary_deployment
from enginewright.manifests.labels import REVISION
from enginewright.manifests.outcome import RevisionOutcome
from enginewright.manifests.snapshot import Revision
from enginewright.manifests.store_access import StoreBucket
from enginewright.plan.history.spec_hash import spec_hash
from enginewright_contract.task import TASK_VARIABLE, ServeTask

from tests.support.fake_kube import at_once
from tests.support.plan_objects import CPU_IMAGE, SECOND, accelerator_class
from tests.support.plan_world import World
from tests.support.releases import restore

# a release with `spec.serving.processes: 4` has written it, for 2 replicas
PROCESSES: Final = Path(__file__).parents[1] / "fixtures" / "removed" / "processes.json"
NEWER: Final = f"{CPU_IMAGE}-newer"


@pytest.fixture
def world() -> World:
    """Return a cluster after an upgrade whose API server has pruned the field."""
    kept = json.loads(PROCESSES.read_text())
    assert kept["spec"]["serving"].pop("processes") == 4
    return restore(kept)


def processes_of(world: World) -> set[int]:
    """Return how many server processes the containers of the serving pods start."""
    spec = world.the("Deployment")["spec"]["template"]["spec"]
    variables = [
        json.loads(one["value"]).get("processes", 1)
        for item in (*spec["initContainers"], *spec["containers"])
        for one in item["env"]
        if one["name"] == TASK_VARIABLE
    ]
    assert len(variables) == 3
    return set(variables)


def find_built(objects: dict[Any, Any], kind: str) -> dict[str, Any]:
    (obj,) = [object_ for key, object_ in objects.items() if key[0] == kind]
    return dict(obj)


def store_revision(
    world: World, number: int, outcome: RevisionOutcome | None, processes: int, **snapshot: Any
) -> str:
    """Store another revision, which the earlier release built with these processes, and return its name."""
    kept = copy.deepcopy(world.all("ControllerRevision")[0])
    update = {"processes": processes, **snapshot}
    name = Revision.read(kept).snapshot.model_copy(update=update).revision()
    metadata = {
        **kept["metadata"],
        "name": f"resnet-{name}",
        "uid": f"uid-{name}",
        "labels": {**kept["metadata"]["labels"], REVISION: name},
        "annotations": outcome.annotations() if outcome else {},
    }
    data = {**kept["data"], **update}
    made = {**kept, "metadata": metadata, "revision": number, "data": data}
    at_once(world.kube.apply(world.kube.put(made)))
    return name


def hash_with(world: World, processes: int) -> str:
    """Return the hash of the spec as it was with these processes."""
    return spec_hash(InferenceModelSpec.model_validate(world.spec), processes)


def find_removed(world: World) -> list[str]:
    return [event.message for event in world.events if event.reason == "ProcessesRemoved"]


# event: Rollouts | an upgrade from a release whose pods had several server processes (`spec.serving.processes`) |
#   the revision as it was built, with its runtime image, until its user requests another | an Event ProcessesRemoved
#   with the replicas that replace them; `status.images`: Waiting
def test_a_revision_with_processes_serves_on_as_it_was_built(world: World) -> None:
    objects, before = copy.deepcopy(world.kube.objects), copy.deepcopy(world.status)
    world.settle()
    assert world.kube.objects.keys() == objects.keys(), "no Job, no revision"
    assert (
        world.the("ControllerRevision")["data"] == find_built(objects, "ControllerRevision")["data"]
    )
    assert world.the("Deployment")["spec"] == find_built(objects, "Deployment")["spec"]
    assert world.status["serving"] == before["serving"]
    assert world.status["revision"] == before["revision"]
    assert world.conditions()["Ready"] == ("True", "Serving")
    assert processes_of(world) == {4}


def test_its_user_is_told_how_many_replicas_replace_it(world: World) -> None:
    world.settle()
    revision = world.status["revision"]
    assert [(event.type, event.reason) for event in world.events] == [
        ("Warning", "ProcessesRemoved")
    ]
    (message,) = find_removed(world)
    assert message.startswith(f"revision {revision} has 4 server processes in each pod")
    assert "4 replicas replace one of its pods (8 instead of 2 on class cpu)" in message
    assert "each with 1/4 of the CPUs" in message


def test_it_keeps_its_image_until_its_user_requests_another_revision(world: World) -> None:
    world.new_runtime_image(NEWER, like=world.images[CPU_IMAGE]).settle()
    images = world.status["images"]
    assert (images["state"], images["reason"]) == ("Waiting", "ProcessesRemoved")
    assert images["message"] in find_removed(world)
    assert processes_of(world) == {4}

    resources = {"requests": {"cpu": "1"}}
    world.edit(replicas=8, podTemplate={"resources": resources}).all_available()
    assert processes_of(world) == {1}
    assert not find_removed(world)[1:], "one Event of the upgrade, one of the image"
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
    assert not find_removed(world)


def test_a_canary_of_such_a_revision_is_the_one_that_runs(world: World) -> None:
    kept = world.the("ControllerRevision")
    revision = Revision.read(kept)
    made = canary_deployment(world.facts().model, revision, "cpu", replicas=1, stable_key="b" * 64)
    fetch = made["spec"]["template"]["spec"]["initContainers"][0]
    (text,) = [item["value"] for item in fetch["env"] if item["name"] == TASK_VARIABLE]
    data: dict[str, Any] = json.loads(text)
    assert (data["processes"], data["stable_key"]) == (4, "b" * 64)
    before = revision.templates["cpu"]["spec"]["initContainers"][0]["env"]
    (stored,) = [item["value"] for item in before if item["name"] == TASK_VARIABLE]
    assert text.replace(f'"stable_key":"{"b" * 64}",', "") == stored


def test_the_task_of_a_canary_is_written_as_ever() -> None:
    world = World(fallback={"policy": "Budget", "maxComputeShare": "0.00001"})
    kept = world.settle().job_succeeds().all_available().the("ControllerRevision")
    made = canary_deployment(
        world.facts().model, Revision.read(kept), "cpu", replicas=1, stable_key="b" * 64
    )
    fetch = made["spec"]["template"]["spec"]["initContainers"][0]
    (text,) = [item["value"] for item in fetch["env"] if item["name"] == TASK_VARIABLE]
    assert text == ServeTask.model_validate_json(text).to_json()


def test_of_several_revisions_the_one_that_was_requested_last_is_wanted(world: World) -> None:
    revision, at = world.status["revision"], datetime(2026, 11, 20, tzinfo=UTC)
    for number, processes in enumerate((2, 1), start=7):  # edited, and edited back
        hashed = hash_with(world, processes)
        outcome = RevisionOutcome(state="Promoted", at=at, spec_hash=hashed)
        store_revision(world, number, outcome, processes)
    world.settle()
    assert world.status["revision"] == revision
    assert processes_of(world) == {4}
    assert len(find_removed(world)) == 1


def reject_latest(world: World, reason: str) -> str:
    """Have the latest spec, with processes, be one that was rejected while the one before serves."""
    world.spec["serving"]["maxQueue"] = 50
    outcome = RevisionOutcome(
        state="Rejected", at=world.now, reason=reason, spec_hash=hash_with(world, 4)
    )
    name = store_revision(world, 2, outcome, 4, max_queue=50)
    world.status["applied"].pop("specHash")
    world.status |= {"revision": name}
    return name


@pytest.mark.parametrize("reason", ["BackendCrashed", "RolledBackByUser"])
def test_a_rejected_spec_remains_rejected_and_keeps_its_image(world: World, reason: str) -> None:
    serves, name = world.status["revision"], reject_latest(world, reason)
    world.settle()
    assert world.conditions()["RolledBack"] == ("True", reason)
    (message,) = find_removed(world)
    assert message.startswith(f"revision {name} has 4")
    world.new_runtime_image(NEWER, like=world.images[CPU_IMAGE]).all_available()
    images = world.status["images"]
    assert (images["state"], images["reason"]) == ("Waiting", "ProcessesRemoved")
    assert not world.running_jobs()
    assert world.status["serving"]["revision"] == serves
    assert world.status["revision"] == name
    assert processes_of(world) == {4}
    world.later(hours=1)
    assert len(find_removed(world)) == 2, "one Event of the upgrade, one of the image"


def test_a_move_that_had_begun_waits(world: World) -> None:
    images = world.status["images"]
    images |= {"state": "Moving", "target": [{"variant": "cpu", "image": NEWER}]}
    world.new_runtime_image(NEWER, like=world.images[CPU_IMAGE]).all_available()
    assert world.status["images"]["state"] == "Waiting"
    assert world.status["images"]["reason"] == "ProcessesRemoved"
    assert not world.running_jobs()
    assert processes_of(world) == {4}


def test_a_refresh_of_the_source_keeps_its_processes_and_its_image(world: World) -> None:
    world.settle()
    revision = world.status["revision"]
    world.new_runtime_image(NEWER, like=world.images[CPU_IMAGE])
    world.edit(source={**world.spec["source"], "refreshInterval": "1h"}).later(hours=2)
    world.job_succeeds(SECOND).all_available()
    assert world.status["serving"]["revision"] != revision
    assert world.status["serving"]["preparedKey"] == SECOND.key
    assert processes_of(world) == {4}
    (server,) = world.the("Deployment")["spec"]["template"]["spec"]["containers"][:1]
    assert server["image"] == CPU_IMAGE
    world.edit(podTemplate={"labels": {"a": "b"}}).all_available()
    assert processes_of(world) == {1}, "its user requests another one"


def test_another_class_or_store_of_the_same_spec_keeps_its_processes(world: World) -> None:
    revision = world.settle().status["revision"]
    tolerations = [{"key": "gpu", "operator": "Exists"}]
    world.classes = [accelerator_class("cpu", tolerations=tolerations)]
    world.settle().all_available()
    assert world.status["serving"]["revision"] != revision
    assert processes_of(world) == {4}
    revision = world.status["revision"]
    store = replace(world.config.store, bucket=StoreBucket(uri="s3://b/p"))
    world.config = replace(world.config, store=store)
    world.settle().all_available()
    assert world.status["serving"]["revision"] != revision
    assert processes_of(world) == {4}


def test_a_rollout_goes_on_while_the_new_images_are_probed(world: World) -> None:
    earlier = world.now - timedelta(days=1)
    outcome = RevisionOutcome(state="Promoted", at=earlier, spec_hash=hash_with(world, 2))
    before, goes_to = store_revision(world, 7, outcome, 2), world.status["revision"]
    world.status["serving"] |= {"lastRolledOut": before}
    images, world.images = world.images, {}
    world.settle()
    assert world.conditions()["Validated"] == ("Unknown", "ProbingImage")
    assert processes_of(world) == {4}
    world.images = images
    world.settle().all_available()
    assert world.status["serving"]["revision"] == goes_to
    assert processes_of(world) == {4}


def test_a_canary_of_such_a_spec_is_told_of(world: World) -> None:
    since = world.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    world.spec["serving"]["maxQueue"] = 50
    world.spec["rollout"] = {"canary": {"replicas": 1}}
    name = store_revision(world, 2, None, 4, max_queue=50)
    target = {"revision": name, "phase": "Verifying", "since": since}
    target["specHash"] = hash_with(world, 4)
    world.status |= {"revision": name, "target": target}
    world.settle()
    (message,) = find_removed(world)
    assert message.startswith(f"revision {name} has 4")
    assert world.status["target"]["revision"] == name


def test_replacement_of_no_or_autoscaled_pods(world: World) -> None:
    world.edit(replicas=0)
    (message,) = find_removed(world)
    assert "4 replicas replace one of its pods, each with 1/4 of the CPUs" in message
    autoscaling = {"minReplicas": 2, "maxReplicas": 4}
    world.edit(replicas=2, serving={**world.spec["serving"], "autoscaling": autoscaling})
    world.new_runtime_image(NEWER, like=world.images[CPU_IMAGE]).all_available()
    assert "write their number into minReplicas and maxReplicas" in find_removed(world)[-1]
