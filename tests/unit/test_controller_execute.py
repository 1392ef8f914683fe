"""Carrying out plans: what is written, what is not, and whose objects are left alone."""

from collections.abc import Mapping
from typing import Any

import pytest
from enginewright.controller.execute import NameTaken, StillTerminating
from enginewright.kube.errors import Conflict
from enginewright.kube.resources import CLAIMS, DEPLOYMENTS, INFERENCE_MODELS
from enginewright.manifests.field_managers import HANDOVER_MANAGER
from enginewright.manifests.labels import MANAGED_BY, OPERATOR
from enginewright.observed.deployments import count_managers
from enginewright.plan.types import ObjectRef, ReplicasHandover

from tests.support.controller_world import World
from tests.support.plan_objects import MODEL, NAMESPACE, Json, make_object

OWNER = make_object("InferenceModel", MODEL, NAMESPACE)
LABELS = {MANAGED_BY: OPERATOR}
NAME = f"{MODEL}-cpu"
REF = ObjectRef("apps/v1", "Deployment", NAMESPACE, NAME)


def deployment(kind: str = "Deployment", *, uid: str = "model-1", **spec: Any) -> Json:
    owner = {**OWNER, "metadata": {"name": MODEL, "uid": uid}}
    return make_object(kind, NAME, NAMESPACE, owner, LABELS, spec={"replicas": 2, **spec})


def observe(world: World) -> Json:
    result = world.cache.get(DEPLOYMENTS, NAMESPACE, NAME)
    assert result is not None
    return result


def handover(world: World, replicas: int) -> ReplicasHandover:
    return ReplicasHandover(NAMESPACE, NAME, observe(world)["metadata"]["uid"], replicas)


def somebody_edits(world: World, obj: Mapping[str, Any], **spec: Any) -> None:
    world.put({**obj, "spec": {**obj["spec"], **spec}})


@pytest.fixture
def world() -> World:
    return World()


async def test_an_unchanged_object_costs_nothing_also_after_a_restart(world: World) -> None:
    assert await world.executor.apply(deployment())
    assert not await world.executor.apply(deployment())
    world.restart()
    assert not await world.executor.apply(deployment())
    assert world.kube.writes == 1


@pytest.mark.parametrize(
    ("before", "after"), [({}, {"replicas": 3}), ({"paused": True}, {})], ids=["changed", "gone"]
)
async def test_field_of_another_intent_is_applied(world: World, before: Json, after: Json) -> None:
    await world.executor.apply(deployment(**before))
    world.restart()
    assert await world.executor.apply(deployment(**after))
    assert world.kube.writes == 2


@pytest.mark.parametrize(
    ("part", "edit", "applied"),
    [
        ("spec", {"replicas": 7}, True),
        ("metadata", {"labels": {}}, True),
        ("spec", {"progressDeadlineSeconds": 600}, False),
    ],
    ids=["an edit is undone", "a lost label comes back", "what others add is left"],
)
async def test_difference_is_applied_again(
    world: World, part: str, edit: Json, applied: bool
) -> None:
    await world.executor.apply(deployment())
    stored = observe(world)
    world.put({**stored, part: {**stored[part], **edit}})
    assert await world.executor.apply(deployment()) is applied
    assert not await world.executor.apply(deployment())


# event: Operator | a user edits an object of the operator
async def test_an_edit_that_is_undone_is_reported_with_its_author(world: World) -> None:
    reported: list[str] = []
    await world.executor.apply(deployment(), reported.append)
    stored = observe(world)
    owned = {"manager": "keda", "subresource": "scale", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    status = {"manager": "controller", "subresource": "status", "fieldsV1": owned["fieldsV1"]}
    ours = {"manager": "enginewright", "fieldsV1": owned["fieldsV1"]}
    metadata = {**stored["metadata"], "managedFields": [ours, status, owned]}
    somebody_edits(world, {**stored, "metadata": metadata}, replicas=7)
    await world.executor.apply(deployment(), reported.append)
    await world.executor.apply(deployment(), reported.append)
    (message,) = reported
    assert message.startswith(f"reverted keda's change of spec.replicas in Deployment {NAME}")


def rewriting(obj: Json) -> None:
    """Do what a webhook does at every write."""
    obj["spec"]["strange"] = "as rewritten"


async def test_webhook_rewrite_is_applied_once_and_no_edit(world: World) -> None:
    reported: list[str] = []
    world.kube.rewrite = rewriting
    await world.executor.apply(deployment(strange="as sent"), reported.append)
    world.restart()
    assert await world.executor.apply(deployment(strange="as sent"), reported.append)
    assert not await world.executor.apply(deployment(strange="as sent"), reported.append)
    assert reported == []


async def test_own_change_is_no_edit_of_others(world: World) -> None:
    reported: list[str] = []
    await world.executor.apply(deployment(), reported.append)
    await world.executor.apply(deployment(replicas=3), reported.append)
    assert reported == []
    assert world.kube.calls["get"] == 0


# event: Classes | an object of another owner has the name | that object | `ApplyFailed` with the
#   owner
async def test_a_name_that_another_model_has_is_said_and_not_waited_for(world: World) -> None:
    await world.executor.apply(deployment())
    stored = observe(world)
    (owner,) = stored["metadata"]["ownerReferences"]
    metadata = {**OWNER["metadata"], "uid": owner["uid"]}
    world.put({**OWNER, "metadata": metadata})
    with pytest.raises(
        NameTaken, match=f"Deployment {NAME} is owned by InferenceModel {owner['name']}"
    ):
        await world.executor.apply(deployment(uid="another"))


# the count of a Deployment that an autoscaler is to scale


async def test_a_count_that_is_handed_over_stays_when_it_is_applied_no_more(world: World) -> None:
    await world.executor.apply(deployment(replicas=5))
    assert await world.executor.hand_over(handover(world, 5))
    without = deployment()
    del without["spec"]["replicas"]
    assert await world.executor.apply(without)
    assert observe(world)["spec"]["replicas"] == 5
    assert count_managers(observe(world)["metadata"]) == {HANDOVER_MANAGER}
    assert not await world.executor.apply(without)


async def test_later_defaults_are_no_edit(world: World) -> None:
    without = deployment()
    del without["spec"]["replicas"]
    await world.executor.apply(without)
    somebody_edits(world, observe(world), replicas=7)
    assert not await world.executor.apply(without)


async def test_a_count_that_somebody_changed_meanwhile_is_not_set_back(world: World) -> None:
    await world.executor.apply(deployment(replicas=5))
    before = handover(world, 5)
    somebody_edits(world, observe(world), replicas=7)
    assert not await world.executor.hand_over(before)
    assert world.the("Deployment")["spec"]["replicas"] == 7


async def test_no_count_is_handed_over_of_a_deployment_that_is_gone(world: World) -> None:
    await world.executor.apply(deployment(replicas=5))
    before = handover(world, 5)
    world.kube.remove("Deployment", NAMESPACE, NAME)
    assert not await world.executor.hand_over(before)
    assert world.all("Deployment") == []


async def test_a_job_is_made_once(world: World) -> None:
    await world.executor.apply(deployment("Job"))
    assert not await world.executor.apply(deployment("Job", replicas=9))
    assert world.kube.writes == 1


async def test_somebody_elses_object_is_not_taken(world: World) -> None:
    world.kube.put({**deployment(uid="x"), "metadata": {"name": NAME, "namespace": NAMESPACE}})
    with pytest.raises(NameTaken, match=f"Deployment {NAME} exists and is not managed"):
        await world.executor.apply(deployment())


async def test_our_own_object_that_the_cache_lacks_is_taken_back(world: World) -> None:
    mine = deployment(replicas=1)
    del mine["metadata"]["labels"]  # so no watch showed it
    other = {"apiVersion": "v1", "kind": "Other", "name": "o", "uid": "o"}
    mine["metadata"]["ownerReferences"].append(other)
    world.kube.put(mine)
    assert await world.executor.apply(deployment())


async def test_a_shared_object_without_owner_is_known_by_its_label(world: World) -> None:
    spec = {"accessModes": ["ReadWriteMany"]}
    claim = make_object("PersistentVolumeClaim", "store", NAMESPACE, labels=LABELS, spec=spec)
    world.kube.put(claim)
    assert await world.executor.apply(claim)
    assert world.cache.get(CLAIMS, NAMESPACE, "store") is not None


async def test_the_object_of_an_earlier_model_of_this_name_is_waited_for(world: World) -> None:
    world.put(deployment(uid="gone-model"))
    with pytest.raises(StillTerminating):
        await world.executor.apply(deployment())
    assert world.kube.writes == 0


async def test_deleting_takes_the_observed_one_only(world: World) -> None:
    assert not await world.executor.delete(REF)
    await world.executor.apply(deployment())
    world.remove("Deployment", NAME)
    world.kube.put(deployment())  # made again, unseen
    with pytest.raises(Conflict):
        await world.executor.delete(REF)
    world.restart()
    assert await world.executor.delete(REF)
    assert not await world.executor.delete(REF)
    assert world.cache.get(DEPLOYMENTS, NAMESPACE, NAME) is None


async def test_finalizer_is_waited_for(world: World) -> None:
    stored = world.kube.put(deployment())
    stored["metadata"]["finalizers"] = ["example.com/f"]
    world.put(stored)
    assert await world.executor.delete(REF)
    assert not await world.executor.delete(REF)
    with pytest.raises(StillTerminating):
        await world.executor.apply(deployment())


async def test_a_status_is_written_where_it_differs(world: World) -> None:
    observed = world.put(OWNER)
    status = {"replicas": 1, "conditions": ({"type": "Ready", "status": "True"},), "serving": None}
    assert await world.executor.write_status(observed, status)
    observed = world.cache.get(INFERENCE_MODELS, NAMESPACE, MODEL) or {}
    assert observed["status"]["replicas"] == 1
    assert not await world.executor.write_status(observed, status)
    world.restart()
    assert not await world.executor.write_status(observed, status)
    assert world.kube.calls["apply_status"] == 1


async def test_a_status_that_the_schema_cuts_is_written_once(world: World) -> None:
    observed = world.put(OWNER)
    world.kube.rewrite = lambda obj: obj["status"].pop("unknownToThisCrd", None)  # an older CRD
    status = {"replicas": 1, "unknownToThisCrd": True}
    assert await world.executor.write_status(observed, status)
    observed = world.cache.get(INFERENCE_MODELS, NAMESPACE, MODEL) or {}
    assert not await world.executor.write_status(observed, status)
    assert world.kube.calls["apply_status"] == 1


async def test_a_status_is_not_written_onto_a_later_model_of_this_name(world: World) -> None:
    """The watch has not delivered yet that it was replaced."""
    observed = world.put(OWNER)
    world.kube.remove("InferenceModel", NAMESPACE, MODEL)
    later = world.kube.put(OWNER)
    assert not await world.executor.write_status(observed, {"replicas": 1})
    assert (await world.kube.get(INFERENCE_MODELS, NAMESPACE, MODEL)).get("status") is None
    world.cache.observe(INFERENCE_MODELS, later)
    assert not await world.executor.write_status(observed, {"replicas": 1})
    assert world.kube.calls["apply_status"] == 1


async def test_a_status_is_written_if_somebody_has_edited_the_model_meanwhile(world: World) -> None:
    """The watch has not delivered the edit yet."""
    observed = world.put(OWNER)
    world.kube.put({**observed, "spec": {"replicas": 2}})
    assert await world.executor.write_status(observed, {"replicas": 1})
    written = await world.kube.get(INFERENCE_MODELS, NAMESPACE, MODEL)
    assert (written["spec"], written["status"]) == ({"replicas": 2}, {"replicas": 1})
    assert world.kube.calls["apply_status"] == 2
