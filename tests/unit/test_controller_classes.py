"""What AcceleratorClasses say of themselves, and which ones the operator proposes."""

from dataclasses import replace
from typing import Any

import pytest
from enginewright.controller.loop import ReconcileResult
from enginewright.controller.proposals import CONFIG_MAP, KEY, ProposalReconciler
from enginewright.kube.errors import Conflict, Transient

from tests.support.controller_world import World
from tests.support.plan_objects import make_object
from tests.support.plan_world import CONFIG


def add_class(world: World, name: str, resource: str | None = None, **selector: str) -> None:
    spec = {"nodeSelector": selector, "backends": ["cpu"]}
    with_resource = {**spec, "resourceName": resource} if resource else spec
    world.put(make_object("AcceleratorClass", name, spec=with_resource))


def add_node(world: World, name: str, **labels: str) -> None:
    world.put(make_object("Node", name, labels=labels))


def classes(world: World) -> set[str]:
    return {entry["metadata"]["name"] for entry in world.all("AcceleratorClass")}


def proposing(world: World, *, on: bool = True, **images: str) -> ProposalReconciler:
    """Return what a new process starts with."""
    world.config = replace(CONFIG, images=images or {"rtx": "rtx:1"}, propose_classes=on)
    world.restart()
    return world.proposals


async def ready(world: World, name: str) -> tuple[int, str, str, str]:
    await world.classes.reconcile(name)
    status: dict[str, Any] = world.get("AcceleratorClass", name)["status"]
    (condition,) = status["conditions"]
    return status["nodes"], condition["status"], condition["reason"], condition["message"]


@pytest.fixture
def world() -> World:
    return World(namespace=CONFIG.namespace)


async def test_nodes_are_counted(world: World) -> None:
    add_class(world, "gpu", kind="gpu")
    for number in range(3):
        add_node(world, f"n{number}", kind="gpu" if number else "cpu")
    assert await ready(world, "gpu") == (
        2,
        "True",
        "NodesFound",
        "2 nodes match spec.nodeSelector",
    )


async def test_two_classes_of_one_node_name_each_other(world: World) -> None:
    add_class(world, "a", kind="gpu")
    add_class(world, "b", zone="z")
    add_class(world, "c", kind="cpu")
    add_node(world, "n", kind="gpu", zone="z")
    add_node(world, "m", kind="cpu")
    for name, other in (("a", "b"), ("b", "a")):
        _, status, reason, message = await ready(world, name)
        assert (status, reason) == ("False", "OverlappingClass")
        reported = f"AcceleratorClass {other} requests no resource on nodes of this class too"
        assert reported in message
    assert (await ready(world, "c"))[1] == "True"


async def test_classes_of_different_resources_share_nodes(world: World) -> None:
    add_class(world, "cpu", os="linux")
    add_class(world, "l4", "nvidia.com/gpu", gpu="l4")
    add_class(world, "mig", "nvidia.com/mig-1g.10gb", gpu="l4")
    add_node(world, "n", os="linux", gpu="l4")
    for name in ("cpu", "l4", "mig"):
        assert (await ready(world, name))[1:3] == ("True", "NodesFound")


async def test_two_classes_of_one_resource_on_one_node_are_a_conflict(world: World) -> None:
    add_class(world, "a", "nvidia.com/gpu", gpu="l4")
    add_class(world, "b", "nvidia.com/gpu", zone="z")
    add_class(world, "c", "nvidia.com/gpu", zone="z")
    add_node(world, "n", gpu="l4", zone="z")
    _, _, reason, message = await ready(world, "a")
    assert reason == "OverlappingClass"
    assert message == (
        "AcceleratorClasses b, c request nvidia.com/gpu on nodes of this class too: narrow"
        " spec.nodeSelector so that every node belongs to one class, or delete one of them"
    )
    add_node(world, "n", gpu="l4")
    assert (await ready(world, "a"))[1] == "True"
    assert (await ready(world, "b"))[2] == "NoMatchingNode"


async def test_it_is_written_on_change_only(world: World) -> None:
    add_class(world, "gpu", kind="gpu")
    assert await world.classes.reconcile("gpu") == ReconcileResult(requeue=True)
    assert await world.classes.reconcile("gpu") == ReconcileResult(requeue=False)
    nodes, status, reason, message = await ready(world, "gpu")
    assert (nodes, status, reason) == (0, "False", "NoMatchingNode")
    assert "correct the selector" in message
    add_node(world, "n", kind="gpu")
    assert await world.classes.reconcile("gpu") == ReconcileResult(requeue=True)
    assert await world.classes.reconcile("gone") == ReconcileResult(exists=False)


L4 = {
    "nvidia.com/gpu.product": "NVIDIA-L4",
    "nvidia.com/gpu.compute.major": "8",
    "nvidia.com/gpu.compute.minor": "9",
}


async def test_a_class_is_proposed_once_and_remembered(world: World) -> None:
    add_node(world, "n", **L4)
    proposer = proposing(world)
    assert await proposer.reconcile(KEY) == ReconcileResult()
    assert classes(world) == {"l4"}
    assert world.get("ConfigMap", CONFIG_MAP)["data"] == {"gpu_NVIDIA-L4": "l4"}
    calls = world.kube.calls.copy()
    await proposer.reconcile(KEY)  # before the watch has shown the class
    world.watch()
    await proposer.reconcile(KEY)
    assert world.kube.calls == calls


async def test_deleted_class_stays_away_after_a_restart(world: World) -> None:
    add_node(world, "n", **L4)
    await proposing(world).reconcile(KEY)
    world.remove("AcceleratorClass", "l4")
    restarted = proposing(world)
    writes = world.kube.writes
    await restarted.reconcile(KEY)
    add_node(world, "m", **{**L4, "nvidia.com/gpu.product": "NVIDIA-A10"})
    await restarted.reconcile(KEY)
    assert classes(world) == {"a10"}
    assert world.kube.writes == writes + 2  # the class and the memory of it


async def test_edited_class_stays_so(world: World) -> None:
    add_node(world, "n", **L4)
    await proposing(world).reconcile(KEY)
    changed = world.get("AcceleratorClass", "l4")
    changed["spec"]["backends"] = ["cuda"]
    world.put(changed)
    writes = world.kube.writes
    await proposing(world).reconcile(KEY)
    assert world.kube.writes == writes


async def test_a_class_that_somebody_makes_meanwhile_is_theirs(world: World) -> None:
    add_node(world, "n", **L4)
    proposer = proposing(world)
    theirs = make_object(
        "AcceleratorClass", "l4", spec={"nodeSelector": {"zone": "z"}, "backends": ["cpu"]}
    )
    world.kube.put(theirs)  # the watch has not shown it
    with pytest.raises(Conflict):
        await proposer.reconcile(KEY)
    assert world.get("AcceleratorClass", "l4")["spec"] == theirs["spec"]
    world.watch()
    await proposer.reconcile(KEY)
    (name,) = classes(world) - {"l4"}
    assert name.startswith("l4-")


async def test_a_failed_write_is_made_up_for(world: World) -> None:
    add_node(world, "n", **L4)
    proposer = proposing(world)
    world.kube.fail["apply"] = [Conflict("the name is taken")]
    with pytest.raises(Conflict):
        await proposer.reconcile(KEY)
    assert classes(world) == set()
    await proposer.reconcile(KEY)
    assert classes(world) == {"l4"}
    # The class was made, the memory of it not: the next process notes it.
    world.remove("ConfigMap", CONFIG_MAP)
    world.watch()
    restarted = proposing(world)
    world.kube.fail["apply"] = [Transient("no answer")]
    with pytest.raises(Transient):
        await restarted.reconcile(KEY)
    await restarted.reconcile(KEY)
    assert world.get("ConfigMap", CONFIG_MAP)["data"] == {"gpu_NVIDIA-L4": "l4"}


async def test_nothing_is_proposed_where_it_is_switched_off_or_nothing_runs(world: World) -> None:
    add_node(world, "n", **L4)
    await proposing(world, on=False).reconcile(KEY)
    await proposing(world, cpu="cpu:1").reconcile(KEY)
    assert world.kube.writes == 0
