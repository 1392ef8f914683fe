"""Carrying out plans: what is written, what is not, and whose objects are left alone."""

from collections.abc import Mapping
from typing import Any

import pytest
from enginewright.controller.execute import (
    Executor,
    NameTaken,
    StillTerminating,
)
from enginewright.kube.errors import Conflict
from enginewright.kube.resources import CLAIMS, DEPLOYMENTS, INFERENCE_MODELS
from enginewright.plan.types import ObjectRef
from typing_extensions import override

from tests.support.fake_kube import FakeCluster

OWNER = {"apiVersion": "enginewright.dev/v1alpha1", "kind": "InferenceModel", "name": "m"}


def deployment(*, uid: str = "model-1", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "m-cpu",
            "namespace": "ns",
            "labels": {"app.kubernetes.io/managed-by": "enginewright"},
            "ownerReferences": [{**OWNER, "uid": uid, "controller": True}],
        },
        "spec": {"replicas": 2, **spec},
    }


def job(**changes: Any) -> dict[str, Any]:
    return {**deployment(), "apiVersion": "batch/v1", "kind": "Job", **changes}


class World(FakeCluster):
    @override
    def restart(self) -> None:
        super().restart()
        self.executor = Executor(self.kube, self.cache)

    def somebody_edits(self, obj: Mapping[str, Any], **spec: Any) -> None:
        self.put({**obj, "spec": {**obj["spec"], **spec}})


@pytest.fixture
def world() -> World:
    return World()


async def test_an_unchanged_object_costs_nothing_also_after_a_restart(world: World) -> None:
    assert await world.executor.apply(deployment())
    assert not await world.executor.apply(deployment())
    world.restart()
    assert not await world.executor.apply(deployment())
    assert world.kube.writes == 1


async def test_a_changed_intent_is_applied(world: World) -> None:
    await world.executor.apply(deployment())
    assert await world.executor.apply(deployment(replicas=3))
    assert world.kube.writes == 2


async def test_a_field_that_is_wanted_no_more_is_applied_away(world: World) -> None:
    await world.executor.apply(deployment(paused=True))
    world.restart()
    assert await world.executor.apply(deployment())
    assert world.kube.writes == 2


async def test_somebodys_edit_is_undone(world: World) -> None:
    await world.executor.apply(deployment())
    stored = world.cache.get(DEPLOYMENTS, "ns", "m-cpu")
    assert stored is not None
    world.somebody_edits(stored, replicas=7)
    assert await world.executor.apply(deployment())
    assert not await world.executor.apply(deployment())


# event: Operator | somebody edits an object of the operator
async def test_an_edit_that_is_undone_is_reported_with_its_author(world: World) -> None:
    reported: list[str] = []
    await world.executor.apply(deployment(), reported.append)
    stored = world.cache.get(DEPLOYMENTS, "ns", "m-cpu")
    assert stored is not None
    owned = {"manager": "keda", "subresource": "scale", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    status = {"manager": "controller", "subresource": "status", "fieldsV1": owned["fieldsV1"]}
    ours = {"manager": "enginewright", "fieldsV1": owned["fieldsV1"]}
    metadata = {**stored["metadata"], "managedFields": [ours, status, owned]}
    world.somebody_edits({**stored, "metadata": metadata}, replicas=7)
    await world.executor.apply(deployment(), reported.append)
    await world.executor.apply(deployment(), reported.append)
    (message,) = reported
    assert message.startswith("reverted keda's change of spec.replicas in Deployment m-cpu")


async def test_what_a_webhook_rewrites_is_nobodys_edit(world: World) -> None:
    reported: list[str] = []
    stored = world.kube.put(deployment(strange="as rewritten"))

    async def rewriting(obj: Mapping[str, Any], *, force: bool = True) -> dict[str, Any]:
        stored["metadata"]["annotations"] = obj["metadata"]["annotations"]
        return world.kube.put(stored)

    world.kube.apply = rewriting  # type: ignore[method-assign] # a webhook, in short
    await world.executor.apply(deployment(strange="as sent"), reported.append)
    world.restart()
    assert await world.executor.apply(deployment(strange="as sent"), reported.append)
    assert reported == []


async def test_what_we_change_ourselves_is_no_edit_of_others(world: World) -> None:
    reported: list[str] = []
    await world.executor.apply(deployment(), reported.append)
    await world.executor.apply(deployment(replicas=3), reported.append)
    assert reported == []
    assert world.kube.calls["get"] == 0


# event: Classes | an object of another owner has the name | that object | `ApplyFailed` with the
#   owner
async def test_a_name_that_another_model_has_is_said_and_not_waited_for(world: World) -> None:
    await world.executor.apply(deployment())
    stored = world.cache.get(DEPLOYMENTS, "ns", "m-cpu")
    assert stored is not None
    (owner,) = stored["metadata"]["ownerReferences"]
    model = {"name": owner["name"], "namespace": "ns", "uid": owner["uid"]}
    world.put({"apiVersion": owner["apiVersion"], "kind": owner["kind"], "metadata": model})
    with pytest.raises(
        NameTaken, match=f"Deployment m-cpu is owned by InferenceModel {owner['name']}"
    ):
        await world.executor.apply(deployment(uid="another"))


async def test_a_lost_label_comes_back(world: World) -> None:
    await world.executor.apply(deployment())
    stored = world.cache.get(DEPLOYMENTS, "ns", "m-cpu")
    assert stored is not None
    metadata = {**stored["metadata"], "labels": {}}
    world.put({**stored, "metadata": metadata})
    assert await world.executor.apply(deployment())


async def test_what_others_add_is_left(world: World) -> None:
    await world.executor.apply(deployment())
    stored = world.cache.get(DEPLOYMENTS, "ns", "m-cpu")
    assert stored is not None
    world.somebody_edits(stored, progressDeadlineSeconds=600)
    assert not await world.executor.apply(deployment())


async def test_a_value_that_the_server_rewrites_is_applied_once(world: World) -> None:
    await world.executor.apply(deployment(strange="as sent"))
    stored = world.kube.objects[(DEPLOYMENTS, "ns", "m-cpu")]
    stored["spec"]["strange"] = "as rewritten"  # a webhook does so at every write
    world.restart()

    async def rewriting(obj: Mapping[str, Any], *, force: bool = True) -> dict[str, Any]:
        world.kube.calls["apply"] += 1
        return world.kube.put(stored)

    world.kube.apply = rewriting  # type: ignore[method-assign] # a webhook, in short
    assert await world.executor.apply(deployment(strange="as sent"))
    assert not await world.executor.apply(deployment(strange="as sent"))


async def test_a_job_is_made_once(world: World) -> None:
    await world.executor.apply(job())
    assert not await world.executor.apply(job(spec={"replicas": 9}))
    assert world.kube.writes == 1


async def test_somebody_elses_object_is_not_taken(world: World) -> None:
    world.kube.put({**deployment(uid="x"), "metadata": {"name": "m-cpu", "namespace": "ns"}})
    with pytest.raises(NameTaken, match="Deployment m-cpu exists and is not managed"):
        await world.executor.apply(deployment())


async def test_our_own_object_that_the_cache_lacks_is_taken_back(world: World) -> None:
    mine = deployment(replicas=1)
    del mine["metadata"]["labels"]  # so no watch showed it
    mine["metadata"]["ownerReferences"].append({**OWNER, "kind": "Other", "uid": "o"})
    world.kube.put(mine)
    assert await world.executor.apply(deployment())


async def test_a_shared_object_without_owner_is_known_by_its_label(world: World) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": "store",
            "namespace": "ns",
            "labels": {"app.kubernetes.io/managed-by": "enginewright"},
        },
        "spec": {"accessModes": ["ReadWriteMany"]},
    }
    world.kube.put(claim)
    assert await world.executor.apply(claim)
    assert world.cache.get(CLAIMS, "ns", "store") is not None


async def test_the_object_of_an_earlier_model_of_this_name_is_waited_for(world: World) -> None:
    world.put(deployment(uid="gone-model"))
    with pytest.raises(StillTerminating):
        await world.executor.apply(deployment())
    assert world.kube.writes == 0


async def test_deleting_takes_the_observed_one_only(world: World) -> None:
    ref = ObjectRef("apps/v1", "Deployment", "ns", "m-cpu")
    assert not await world.executor.delete(ref)
    await world.executor.apply(deployment())
    del world.kube.objects[(DEPLOYMENTS, "ns", "m-cpu")]
    world.kube.put(deployment())  # made again, unseen
    with pytest.raises(Conflict):
        await world.executor.delete(ref)
    world.restart()
    assert await world.executor.delete(ref)
    assert not await world.executor.delete(ref)
    assert world.cache.get(DEPLOYMENTS, "ns", "m-cpu") is None


async def test_what_stays_for_its_finalizer_is_waited_for(world: World) -> None:
    stored = world.kube.put(deployment())
    stored["metadata"]["finalizers"] = ["example.com/f"]
    world.put(stored)
    assert await world.executor.delete(ObjectRef("apps/v1", "Deployment", "ns", "m-cpu"))
    assert not await world.executor.delete(ObjectRef("apps/v1", "Deployment", "ns", "m-cpu"))
    with pytest.raises(StillTerminating):
        await world.executor.apply(deployment())


def model(world: World) -> dict[str, Any]:
    return world.put({**OWNER, "metadata": {"name": "m", "namespace": "ns"}, "spec": {}})


async def test_a_status_is_written_where_it_differs(world: World) -> None:
    observed = model(world)
    status = {"replicas": 1, "conditions": ({"type": "Ready", "status": "True"},), "serving": None}
    assert await world.executor.write_status(observed, status)
    observed = world.cache.get(INFERENCE_MODELS, "ns", "m") or {}
    assert observed["status"]["replicas"] == 1
    assert not await world.executor.write_status(observed, status)
    world.restart()
    assert not await world.executor.write_status(observed, status)
    assert world.kube.calls["apply_status"] == 1


async def test_a_status_that_the_schema_cuts_is_written_once(world: World) -> None:
    observed = model(world)

    async def pruning(obj: Mapping[str, Any]) -> dict[str, Any]:
        world.kube.calls["apply_status"] += 1
        return world.kube.put({**observed, "status": {"replicas": 1}})

    world.kube.apply_status = pruning  # type: ignore[method-assign] # an older CRD, in short
    status = {"replicas": 1, "unknownToThisCrd": True}
    assert await world.executor.write_status(observed, status)
    observed = world.cache.get(INFERENCE_MODELS, "ns", "m") or {}
    assert not await world.executor.write_status(observed, status)
    assert world.kube.calls["apply_status"] == 1


async def test_a_status_is_not_written_onto_a_later_model_of_this_name(world: World) -> None:
    observed = model(world)
    del world.kube.objects[(INFERENCE_MODELS, "ns", "m")]
    model(world)
    with pytest.raises(Conflict):
        await world.executor.write_status(observed, {"replicas": 1})
