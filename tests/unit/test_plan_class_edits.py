"""Edits of AcceleratorClasses: models take them in turn like other images, and at once where nothing serves without them."""

import json
from dataclasses import replace
from typing import Any, Final

import pytest
from enginewright.manifests.labels import PROMOTE, ROLLBACK
from enginewright.manifests.store_access import StoreBucket
from enginewright.observed.moves import move_view
from enginewright_contract.reasons import Reason
from enginewright_contract.verdict import Check

from tests.support.optional import present
from tests.support.plan_objects import (
    OTHER,
    SECOND,
    Json,
    accelerator_class,
    gpu_node,
    l4,
    verdict,
)
from tests.support.plan_world import World
from tests.unit.test_plan_moves import CANARY, MOVED, NEW, Member, reject_canary
from tests.unit.test_plan_route import ROUTE

TOLERATION: Final[Json] = {"key": "dedicated", "operator": "Exists"}
MEMORY: Final = {"nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.memory": "23034"}


def edit_class(world: World, **spec: Any) -> None:
    """Have an administrator write another spec of the one class, of processors or L4."""
    (before,) = world.classes
    world.classes = [
        l4(**spec)
        if before.metadata.name == "l4"
        else accelerator_class(before.metadata.name, **spec)
    ]
    world.settle()


def tolerate(world: World, key: str = "dedicated") -> None:
    ahead: Json = {"aheadOfTime": False} if world.classes[0].metadata.name == "l4" else {}
    edit_class(world, tolerations=[{**TOLERATION, "key": key}], **ahead)


def list_tolerated(world: World) -> list[str]:
    """Return the taints that the pods of what serves tolerate, beside those of all pods."""
    (deployment,) = world.serving_deployments()
    tolerations = deployment["spec"]["template"]["spec"].get("tolerations", ())
    return [item["key"] for item in tolerations]


def read_class(member: Member) -> Json:
    (used,) = member.record["classes"]
    return dict(used)


def with_an_engine(**spec: Any) -> Member:
    """Return a model that serves an engine for L4 devices, built on one."""
    member = Member(gpus={"aheadOfTime": False}, **spec)
    member.misses()
    member.succeeds("engine", nodes_accelerated=415).all_available()
    assert member.conditions()["Ready"] == ("True", "Serving")
    return member


# event: Classes | a class is edited, such as its tolerations | all models with what they have of it, until their
#   turn | `kubectl get im -o wide`: `Waiting`, then `Moving`; `status.images.classes`
def test_edit_of_a_class_waits_for_the_turn_and_is_reported() -> None:
    member = Member(rollout=CANARY, replicas=2)
    before = member.status["revision"]
    tolerate(member)
    assert member.state() == ("Waiting", "")
    assert (member.status["revision"], member.canaries(), list_tolerated(member)) == (
        before,
        [],
        [],
    )
    assert member.conditions()["Ready"] == ("True", "Serving")
    used = read_class(member)
    assert "tolerations" not in json.loads(used["spec"])
    assert json.loads(used["target"])["tolerations"] == [TOLERATION]
    member.later(hours=30).operator_restarts()
    assert (member.state(), member.canaries()) == (("Waiting", ""), [])
    edit_class(member)
    assert member.state() == ("Moved", "")
    assert "target" not in read_class(member)


def test_edit_of_a_class_is_rolled_out_in_turn() -> None:
    member = Member(rollout=CANARY, replicas=2)
    tolerate(member)
    member.moves()
    member.turn = False
    assert member.state() == ("Moving", "")
    assert len(member.canaries()) == 1
    member.canary_available().later(seconds=61).all_available()
    assert member.state() == ("Moved", "")
    assert list_tolerated(member) == ["dedicated"]
    assert "target" not in read_class(member)
    assert not member.running_jobs()


def test_spec_that_is_edited_meanwhile_is_rolled_out_with_the_class_as_it_was() -> None:
    member = Member()
    tolerate(member)
    member.edit(source=OTHER).job_succeeds(SECOND).all_available()
    assert (member.state(), list_tolerated(member)) == (("Waiting", ""), [])
    assert member.conditions()["Ready"] == ("True", "Serving")


@pytest.mark.parametrize("lost", [False, True])
def test_rejected_edit_is_kept_out_until_the_class_is_edited_again(lost: bool) -> None:
    member = Member(rollout=CANARY, replicas=2)
    tolerate(member)
    before = member.status["revision"]
    reject_canary(member.moves())
    assert member.state()[0] == "Kept"
    if lost:
        member.status = {}
        member.settle().job_succeeds()
        assert member.state()[0] == "Kept"
    assert member.status["active"]["revision"] == before
    assert (list_tolerated(member), member.canaries()) == ([], [])
    assert member.conditions()["Ready"] == ("True", "Serving")
    tolerate(member, "other")
    assert member.state() == ("Moving", "")
    member.canary_available().later(seconds=61).all_available()
    assert (member.state(), list_tolerated(member)) == (("Moved", ""), ["other"])


def test_promotion_rolls_a_rejected_edit_out() -> None:
    member = Member(rollout=CANARY, replicas=2)
    tolerate(member)
    reject_canary(member.moves())
    member.annotate(PROMOTE, member.record["revision"]).all_available()
    assert (member.state(), list_tolerated(member)) == (("Moved", ""), ["dedicated"])


def test_edit_that_fails_after_its_promotion_is_kept_out() -> None:
    member = Member(rollout=CANARY, replicas=2)
    tolerate(member)
    member.moves().canary_available().later(seconds=61).all_available()
    name = member.serving_deployments()[0]["metadata"]["name"]
    member.partly_available(name, 0)
    for index in range(2):
        member.verdicts[f"{name}-{index:05}"] = verdict(failed={Check.GOLDEN: Reason.PARITY_FAILED})
    member.settle().canary_available().all_available()
    for _ in range(2):
        assert (member.state(), list_tolerated(member)) == (("Kept", "ParityFailed"), [])
        member.later(hours=30).operator_restarts()


def test_rollback_by_a_user_keeps_the_edit_out() -> None:
    member = Member()
    tolerate(member)
    member.moves().all_available()
    member.annotate(ROLLBACK, member.status["revision"]).all_available()
    assert (member.state(), list_tolerated(member)) == (("Kept", "RolledBackByUser"), [])


def test_image_and_class_move_as_one() -> None:
    member = Member(rollout=CANARY, replicas=2).upgrade()
    tolerate(member)
    member.moves().job_succeeds(MOVED)
    assert len(member.canaries()) == 1
    member.canary_available().later(seconds=61).all_available()
    assert member.state() == ("Moved", "")
    assert (list_tolerated(member), member.serving_images()) == (["dedicated"], {NEW})


def test_engine_of_an_edited_class_is_built_in_turn() -> None:
    member = with_an_engine()
    names = [engine["metadata"]["name"] for engine in member.all("InferenceEngine")]
    edit_class(member, nodeSelector=MEMORY, aheadOfTime=False)
    assert member.state() == ("Waiting", "")
    assert [engine["metadata"]["name"] for engine in member.all("InferenceEngine")] == names
    member.moves()
    assert member.state() == ("Moving", "")
    assert len(member.all("InferenceEngine")) == 2


def test_edit_that_changes_no_pod_moves_without_one() -> None:
    member = Member(backends=["cpu"], replicas=2)
    before = member.serving_deployments()
    edit_class(member, backends=["cpu", "openvino"])
    assert member.state() == ("Waiting", "")
    assert member.moves().state() == ("Moved", "")
    assert member.serving_deployments() == before


# what waits for a node


def test_model_that_never_served_takes_an_edit_at_once() -> None:
    world = World()
    world.turn = False
    world.settle().job_succeeds().update_unschedulable()
    tolerate(world)
    assert list_tolerated(world) == ["dedicated"]


def test_model_of_which_no_pod_finds_a_node_takes_an_edit_at_once() -> None:
    member = Member()
    (deployment,) = member.serving_deployments()
    member.partly_available(deployment["metadata"]["name"], 0)
    tolerate(member)
    assert member.state() == ("Waiting", ""), "its pods start again by themselves"
    member.waiting_pod(deployment["metadata"]["name"], index=0)
    member.settle()
    assert member.state() == ("Moving", "")


def test_pods_that_find_no_node_beside_others_that_serve_wait_for_the_turn() -> None:
    member = Member(replicas=2).update_unschedulable()
    tolerate(member)
    assert (member.state(), list_tolerated(member)) == (("Waiting", ""), [])


def test_canary_that_finds_no_node_takes_an_edit_at_once() -> None:
    member = Member(rollout=CANARY, replicas=2)
    member.edit(source=OTHER, rollout=CANARY).job_succeeds(SECOND).canary_unschedulable()
    tolerate(member)
    assert member.state() == ("Moving", "")
    (canary,) = member.canaries()
    tolerations = canary["spec"]["template"]["spec"]["tolerations"]
    assert "dedicated" in [item["key"] for item in tolerations]


def test_build_that_finds_no_node_takes_an_edit_at_once_beside_an_interim() -> None:
    member = Member(gpus={"aheadOfTime": False}, build={"interim": "CPU"})
    member.misses().unschedulable("0/3 nodes are available: 3 had untolerated taints", "engine")
    assert member.conditions()["Ready"] == ("True", "ServingInterim")
    tolerate(member)
    build = member.the("InferenceEngine")["spec"]["build"]
    assert [item["key"] for item in build["tolerations"]] == ["dedicated"]


# what the fleet sees


def test_classes_are_part_of_what_a_turn_is_given_for() -> None:
    member = Member()
    tolerate(member)
    assert member.model
    move = present(move_view(member.model))
    assert set(move.current) == {"cpu", "AcceleratorClass cpu", "store"}
    assert set(move.target) == {"AcceleratorClass cpu"}


def test_status_of_an_earlier_release_moves_nothing() -> None:
    member = Member(replicas=2)
    before = member.serving_deployments()
    del member.record["classes"]
    member.settle()
    assert (member.state(), member.serving_deployments()) == (("Moved", ""), before)


# nodes and classes that come and go


def test_node_with_another_device_is_reported_beside_ready() -> None:
    member = with_an_engine(replicas=1)
    member.nodes = [gpu_node("a", **{"nvidia.com/gpu.memory": "23034"})]
    assert member.settle().conditions()["Validated"][0] == "True"
    member.nodes.append(gpu_node("b", **{"nvidia.com/gpu.memory": "46068"}))
    before, revision = member.serving_deployments(), member.status["revision"]
    member.settle()
    assert member.conditions()["Ready"] == ("True", "Serving")
    assert member.conditions()["Validated"] == ("False", "MixedDevices")
    assert (member.serving_deployments(), member.status["revision"]) == (before, revision)
    assert member.event_reasons()[-1] == "MixedDevices"
    member.nodes.pop()
    assert member.settle().conditions()["Validated"] == ("True", "Prepared")


def test_node_with_another_device_does_not_move_what_serves_to_the_next_backend() -> None:
    spec = {"backends": ["tensorrt-rtx", "cuda"], "fallback": {"policy": "Allow"}}
    member = with_an_engine(replicas=1, **spec)
    before = member.serving_deployments()
    sizes = ("23034", "46068")
    member.nodes = [gpu_node(size, **{"nvidia.com/gpu.memory": size}) for size in sizes]
    member.settle()
    assert member.conditions()["Ready"] == ("True", "Serving")
    assert member.serving_deployments() == before
    member.edit(source=OTHER)
    assert member.running_jobs(), "another spec is prepared for the next backend"


def test_class_that_is_deleted_leaves_ready_what_serves() -> None:
    member = Member(accelerators=[{"class": "cpu"}])
    member.classes = []
    member.settle()
    assert member.conditions()["Ready"] == ("True", "Serving")
    assert member.conditions()["Validated"] == ("False", "UnknownAcceleratorClass")
    (deployment,) = member.serving_deployments()
    member.partly_available(deployment["metadata"]["name"], 0)
    assert member.conditions()["Ready"] == ("False", "Progressing")
    member.edit(source=OTHER)
    assert member.conditions()["Ready"] == ("False", "UnknownAcceleratorClass")


def test_gateways_that_are_missing_are_not_beside_ready() -> None:
    member = Member()
    member.has_routes = False
    member.edit(serving={"route": ROUTE})
    assert member.conditions()["Ready"] == ("False", "GatewayAPIMissing")


def test_class_that_is_created_again_waits_for_the_turn_with_its_other_spec() -> None:
    member = Member(accelerators=[{"class": "cpu"}], replicas=2)
    before = member.serving_deployments()
    member.classes = []
    member.settle()
    member.classes = [accelerator_class("cpu", "openvino", "cpu", tolerations=[TOLERATION])]
    member.settle()
    assert (member.state(), member.serving_deployments()) == (("Waiting", ""), before)
    assert json.loads(read_class(member)["spec"])["backends"] == ["cpu"]


def use_bucket(world: World) -> World:
    """Have the chart name a bucket in place of claims."""
    store = replace(world.config.store, bucket=StoreBucket(uri="s3://models/ew/"))
    world.config = replace(world.config, store=store)
    return world.settle()


def read_stores(world: World) -> set[str]:
    """Return the stores that the pods of what serves read."""
    revisions = {view.revision: view for view in world.facts().revisions}
    return {str(revisions[view.revision].place) for view in world.facts().deployments}


# event: Operator | the chart names another store, or other labels of products | all models with what they have, until
#   their turn | `kubectl get im -o wide`: `Waiting`, then `Moving`; `status.images.settings`
def test_another_store_is_rolled_out_in_turn() -> None:
    member = Member(rollout=CANARY, replicas=2)
    before = member.status["revision"]
    use_bucket(member)
    assert member.state() == ("Waiting", "")
    assert (member.status["revision"], member.canaries()) == (before, [])
    assert member.conditions()["Ready"] == ("True", "Serving")
    member.status = {}
    assert member.settle().job_succeeds().status["revision"] == before, "also without its status"
    assert (member.state(), member.canaries()) == (("Waiting", ""), [])
    member.moves()
    member.turn = False
    assert len(member.canaries()) == 1
    member.canary_available().later(seconds=61).all_available()
    assert (member.state(), read_stores(member)) == (("Moved", ""), {"s3://models/ew/shop"})


def test_change_of_the_spec_takes_another_store_along() -> None:
    member = Member()
    use_bucket(member)
    member.edit(source=OTHER).job_succeeds(SECOND).all_available()
    assert (member.state(), read_stores(member)) == (("Moved", ""), {"s3://models/ew/shop"})


def test_other_labels_of_products_build_engines_in_turn() -> None:
    selector = {"example.com/product": "L4"}
    member = Member(gpus={"aheadOfTime": False, "nodeSelector": selector})
    member.misses()
    member.succeeds("engine", nodes_accelerated=415).all_available()
    assert member.state() == ("Moved", "")
    member.config = replace(member.config, product_labels=("example.com/product",))
    member.settle()
    assert (member.state(), len(member.all("InferenceEngine"))) == (("Waiting", ""), 1)
    member.moves().misses()
    member.succeeds("engine", nodes_accelerated=415).all_available()
    assert (member.state(), len(member.all("InferenceEngine"))) == (("Moved", ""), 2)
