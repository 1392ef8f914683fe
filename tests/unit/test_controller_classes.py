"""What AcceleratorClasses say of themselves."""

from datetime import UTC, datetime
from typing import Any

import pytest
from enginewright.controller.cache import Cache
from enginewright.controller.classes import ClassReconciler
from enginewright.controller.execute import Executor
from enginewright.controller.loop import Outcome
from enginewright.kube.resources import ACCELERATOR_CLASSES, NODES

from tests.support.fake_kube import FakeKube

pytestmark = pytest.mark.unit


class World:
    def __init__(self) -> None:
        self.kube = FakeKube()
        self.cache = Cache()
        self.reconciler = ClassReconciler(
            self.cache,
            Executor(self.kube, self.cache),
            now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
        )

    def add_class(self, name: str, **selector: str) -> None:
        obj = {
            "apiVersion": "enginewright.dev/v1alpha1",
            "kind": "AcceleratorClass",
            "metadata": {"name": name, "generation": 1},
            "spec": {"nodeSelector": selector, "backends": ["cpu"]},
        }
        self.cache.observe(ACCELERATOR_CLASSES, self.kube.put(obj))

    def add_node(self, name: str, **labels: str) -> None:
        obj = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        self.cache.observe(NODES, self.kube.put(obj))

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
        assert f"AcceleratorClass {other} matches nodes of this class too" in message
    assert (await world.ready("c"))[1] == "True"


async def test_it_is_written_on_change_only(world: World) -> None:
    world.add_class("gpu", kind="gpu")
    assert await world.reconciler.reconcile("gpu") == Outcome(again=True)
    assert await world.reconciler.reconcile("gpu") == Outcome(again=False)
    world.add_node("n", kind="gpu")
    assert await world.reconciler.reconcile("gpu") == Outcome(again=True)


async def test_a_class_that_is_gone_is_forgotten(world: World) -> None:
    assert await world.reconciler.reconcile("gone") == Outcome(exists=False)
