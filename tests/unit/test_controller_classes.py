"""What AcceleratorClasses say of themselves, and which ones the operator proposes."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from enginewright.controller.classes import ClassReconciler
from enginewright.controller.execute import Executor
from enginewright.controller.loop import ReconcileResult
from enginewright.controller.operator_namespace import OperatorNamespace
from enginewright.controller.proposals import CONFIG_MAP, KEY, ProposalReconciler
from enginewright.kube.errors import Conflict, Transient
from enginewright.kube.resources import ACCELERATOR_CLASSES, CONFIG_MAPS

from tests.support.fake_kube import CONFIG, FakeCluster


class World(FakeCluster):
    def __init__(self) -> None:
        super().__init__()
        self.reconciler = ClassReconciler(
            self.cache,
            Executor(self.kube, self.cache),
            now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
        )

    def add_class(self, name: str, resource: str | None = None, **selector: str) -> None:
        spec = {"nodeSelector": selector, "backends": ["cpu"]}
        obj = {
            "apiVersion": "enginewright.dev/v1alpha1",
            "kind": "AcceleratorClass",
            "metadata": {"name": name, "generation": 1},
            "spec": {**spec, "resourceName": resource} if resource else spec,
        }
        self.put(obj)

    def add_node(self, name: str, **labels: str) -> None:
        self.label_node(name, labels)

    def label_node(self, name: str, labels: dict[str, str]) -> None:
        obj = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        self.put(obj)

    def see_classes(self) -> None:
        """Bring the cache up to date, as the watch does."""
        for (resource, _, _), obj in self.kube.objects.items():
            if resource == ACCELERATOR_CLASSES:
                self.cache.observe(resource, obj)

    def classes(self) -> set[str]:
        return {name for kind, _, name in self.kube.objects if kind == ACCELERATOR_CLASSES}

    def proposer(self, *, on: bool = True, **images: str) -> ProposalReconciler:
        """Return what a new process starts with."""
        config = replace(CONFIG, images=images or {"rtx": "rtx:1"}, propose_classes=on)
        return ProposalReconciler(
            self.kube, self.cache, config, OperatorNamespace(self.kube, "system", None)
        )

    async def ready(self, name: str) -> tuple[int, str, str, str]:
        await self.reconciler.reconcile(name)
        status: dict[str, Any] = self.kube.objects[(ACCELERATOR_CLASSES, "", name)]["status"]
        (condition,) = status["conditions"]
        return status["nodes"], condition["status"], condition["reason"], condition["message"]


@pytest.fixture
def world() -> World:
    return World()


async def test_nodes_are_counted(world: World) -> None:
    world.add_class("gpu", kind="gpu")
    for number in range(3):
        world.add_node(f"n{number}", kind="gpu" if number else "cpu")
    assert await world.ready("gpu") == (
        2,
        "True",
        "NodesFound",
        "2 nodes match spec.nodeSelector",
    )


async def test_a_class_without_nodes_says_so(world: World) -> None:
    world.add_class("gpu", kind="gpu")
    nodes, status, reason, message = await world.ready("gpu")
    assert (nodes, status, reason) == (0, "False", "NoMatchingNode")
    assert "correct the selector" in message


async def test_two_classes_of_one_node_name_each_other(world: World) -> None:
    world.add_class("a", kind="gpu")
    world.add_class("b", zone="z")
    world.add_class("c", kind="cpu")
    world.add_node("n", kind="gpu", zone="z")
    world.add_node("m", kind="cpu")
    for name, other in (("a", "b"), ("b", "a")):
        _, status, reason, message = await world.ready(name)
        assert (status, reason) == ("False", "OverlappingClass")
        reported = f"AcceleratorClass {other} requests no resource on nodes of this class too"
        assert reported in message
    assert (await world.ready("c"))[1] == "True"


async def test_classes_of_different_resources_share_nodes(world: World) -> None:
    world.add_class("cpu", os="linux")
    world.add_class("l4", "nvidia.com/gpu", gpu="l4")
    world.add_class("mig", "nvidia.com/mig-1g.10gb", gpu="l4")
    world.add_node("n", os="linux", gpu="l4")
    for name in ("cpu", "l4", "mig"):
        assert (await world.ready(name))[1:3] == ("True", "NodesFound")


async def test_two_classes_of_one_resource_on_one_node_are_a_conflict(world: World) -> None:
    world.add_class("a", "nvidia.com/gpu", gpu="l4")
    world.add_class("b", "nvidia.com/gpu", zone="z")
    world.add_class("c", "nvidia.com/gpu", zone="z")
    world.add_node("n", gpu="l4", zone="z")
    _, _, reason, message = await world.ready("a")
    assert reason == "OverlappingClass"
    assert message == (
        "AcceleratorClasses b, c request nvidia.com/gpu on nodes of this class too: narrow"
        " spec.nodeSelector so that every node belongs to one class, or delete one of them"
    )
    world.label_node("n", {"gpu": "l4"})
    assert (await world.ready("a"))[1] == "True"
    assert (await world.ready("b"))[2] == "NoMatchingNode"


async def test_it_is_written_on_change_only(world: World) -> None:
    world.add_class("gpu", kind="gpu")
    assert await world.reconciler.reconcile("gpu") == ReconcileResult(requeue=True)
    assert await world.reconciler.reconcile("gpu") == ReconcileResult(requeue=False)
    world.add_node("n", kind="gpu")
    assert await world.reconciler.reconcile("gpu") == ReconcileResult(requeue=True)


async def test_a_class_that_is_gone_is_forgotten(world: World) -> None:
    assert await world.reconciler.reconcile("gone") == ReconcileResult(exists=False)


L4 = {
    "nvidia.com/gpu.product": "NVIDIA-L4",
    "nvidia.com/gpu.compute.major": "8",
    "nvidia.com/gpu.compute.minor": "9",
}


async def test_a_class_is_proposed_once_and_remembered(world: World) -> None:
    world.label_node("n", L4)
    proposer = world.proposer()
    assert await proposer.reconcile(KEY) == ReconcileResult()
    assert world.classes() == {"l4"}
    assert world.kube.objects[(CONFIG_MAPS, "system", CONFIG_MAP)]["data"] == {
        "gpu_NVIDIA-L4": "l4"
    }
    calls = world.kube.calls.copy()
    await proposer.reconcile(KEY)  # before the watch has shown the class
    world.see_classes()
    await proposer.reconcile(KEY)
    assert world.kube.calls == calls


async def test_what_an_administrator_deletes_stays_away_after_a_restart(world: World) -> None:
    world.label_node("n", L4)
    await world.proposer().reconcile(KEY)
    del world.kube.objects[(ACCELERATOR_CLASSES, "", "l4")]
    restarted = world.proposer()
    writes = world.kube.writes
    await restarted.reconcile(KEY)
    world.label_node("m", {**L4, "nvidia.com/gpu.product": "NVIDIA-A10"})
    await restarted.reconcile(KEY)
    assert world.classes() == {"a10"}
    assert world.kube.writes == writes + 2  # the class and the memory of it


async def test_what_an_administrator_changes_stays_so(world: World) -> None:
    world.label_node("n", L4)
    await world.proposer().reconcile(KEY)
    changed = world.kube.objects[(ACCELERATOR_CLASSES, "", "l4")]
    changed["spec"]["backends"] = ["cuda"]
    world.put(changed)
    writes = world.kube.writes
    await world.proposer().reconcile(KEY)
    assert world.kube.writes == writes


async def test_a_class_that_somebody_makes_meanwhile_is_theirs(world: World) -> None:
    world.label_node("n", L4)
    theirs = {
        "apiVersion": "enginewright.dev/v1alpha1",
        "kind": "AcceleratorClass",
        "metadata": {"name": "l4"},
        "spec": {"nodeSelector": {"zone": "z"}, "backends": ["cpu"]},
    }
    world.kube.put(theirs)  # the watch has not told of it
    proposer = world.proposer()
    with pytest.raises(Conflict):
        await proposer.reconcile(KEY)
    assert world.kube.objects[(ACCELERATOR_CLASSES, "", "l4")]["spec"] == theirs["spec"]
    world.see_classes()
    await proposer.reconcile(KEY)
    (name,) = world.classes() - {"l4"}
    assert name.startswith("l4-")


async def test_a_failed_write_is_made_up_for(world: World) -> None:
    world.label_node("n", L4)
    proposer = world.proposer()
    world.kube.fail["apply"] = [Conflict("the name is taken")]
    with pytest.raises(Conflict):
        await proposer.reconcile(KEY)
    assert world.classes() == set()
    await proposer.reconcile(KEY)
    assert world.classes() == {"l4"}
    # The class was made, the memory of it not: the next process notes it.
    del world.kube.objects[(CONFIG_MAPS, "system", CONFIG_MAP)]
    world.see_classes()
    restarted = world.proposer()
    world.kube.fail["apply"] = [Transient("no answer")]
    with pytest.raises(Transient):
        await restarted.reconcile(KEY)
    await restarted.reconcile(KEY)
    assert world.kube.objects[(CONFIG_MAPS, "system", CONFIG_MAP)]["data"] == {
        "gpu_NVIDIA-L4": "l4"
    }


async def test_nothing_is_proposed_where_it_is_switched_off_or_nothing_runs(world: World) -> None:
    world.label_node("n", L4)
    await world.proposer(on=False).reconcile(KEY)
    await world.proposer(cpu="cpu:1").reconcile(KEY)
    assert world.kube.writes == 0
