"""AcceleratorClasses that the operator's process proposes on a real API server.

It has a separate control plane, because nodes and classes belong to the whole cluster.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.conftest import control_plane, create_namespace
from tests.apiserver.world import accelerator_class
from tests.e2e.harness import Namespace, eventually
from tests.support import simulated_cluster as played
from tests.support.api_requests import NotFoundError
from tests.support.operator_process import OperatorProcess
from tests.support.plan_objects import make_object

pytestmark = pytest.mark.apiserver

L4 = {
    "nvidia.com/gpu.product": "NVIDIA-L4",
    "nvidia.com/gpu.compute.major": "8",
    "nvidia.com/gpu.compute.minor": "9",
    "nvidia.com/gpu.replicas": "1",
}
MIG = {
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
    "nvidia.com/gpu.compute.major": "8",
    "nvidia.com/gpu.compute.minor": "0",
    "nvidia.com/gpu.replicas": "0",
    "nvidia.com/mig.strategy": "mixed",
    "nvidia.com/mig-1g.10gb.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb",
}
IMAGES = {"cpu": "example.com/cpu:1", "gpu": "example.com/gpu:1", "rtx": "example.com/rtx:1"}
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


@dataclass(frozen=True)
class World:
    """An empty cluster, with its administrator's rights."""

    admin: Namespace
    folder: Path

    def operator(self, **settings: Any) -> OperatorProcess:
        return OperatorProcess(
            self.admin.kubeconfig,
            self.admin.name,
            self.folder,
            settings={"images": IMAGES, **settings},
        )

    def add_node(self, name: str, labels: dict[str, str], *, tainted: bool = False) -> None:
        played.add_node(self.admin, name, **labels)
        if tainted:
            self.admin.patch("node", name, {"spec": {"taints": [TAINT]}})

    def classes(self) -> dict[str, dict[str, Any]]:
        return {entry["metadata"]["name"]: entry for entry in self.admin.items("aclass")}

    def wait_classes(self, *names: str) -> dict[str, dict[str, Any]]:
        eventually(lambda: set(self.classes()) == set(names), 20, f"{names}", interval=0.1)
        return self.classes()

    def wait_ready(self, name: str, reason: str) -> None:
        """Wait until a class has this reason."""

        def has_reason() -> bool:
            conditions = self.admin.get("aclass", name).get("status", {}).get("conditions", [])
            return any(condition["reason"] == reason for condition in conditions)

        eventually(has_reason, 20, f"{name}: {reason}", interval=0.1)

    def proposals(self) -> dict[str, str]:
        try:
            return dict(self.admin.get("configmap", "enginewright-proposals")["data"])
        except NotFoundError:
            return {}


@pytest.fixture(scope="module")
def kubeconfig_of_nodes() -> Iterator[Path]:
    with control_plane(f"classes{os.getpid()}", crds=True) as kubeconfig:
        yield kubeconfig


@pytest.fixture
def world(kubeconfig_of_nodes: Path, tmp_path: Path) -> Iterator[World]:
    world = World(create_namespace(kubeconfig_of_nodes), tmp_path)
    yield world
    world.admin.delete_all("node,aclass")


def test_a_labelled_node_gets_a_class_that_the_api_server_takes(world: World) -> None:
    world.add_node("n1", L4, tainted=True)
    world.admin.apply(accelerator_class())
    with world.operator() as operator:
        operator.wait_ready()
        proposed = world.wait_classes("cpu", "l4")["l4"]
        assert proposed["metadata"]["labels"] == {"enginewright.dev/proposed": "true"}
        assert proposed["spec"] == {
            "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4"},
            "resourceName": "nvidia.com/gpu",
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "computeCapability": "8.9",
            "backends": ["tensorrt", "tensorrt-rtx", "cuda"],
            "aheadOfTime": False,
        }
        # both classes select the node, which is no conflict
        world.wait_ready("l4", "NodesFound")
        world.wait_ready("cpu", "NodesFound")
        # a node with MIG slices that is added while the operator runs
        world.add_node("n2", MIG)
        sliced = world.wait_classes("cpu", "l4", "a100-80gb-mig-1g-10gb")["a100-80gb-mig-1g-10gb"]
        assert sliced["spec"]["resourceName"] == "nvidia.com/mig-1g.10gb"
        operator.wait_quiet()


def test_an_administrators_changes_stay(world: World) -> None:
    world.add_node("n1", L4)
    world.add_node("n2", MIG)
    with world.operator() as operator:
        operator.wait_ready()
        world.wait_classes("l4", "a100-80gb-mig-1g-10gb")
        eventually(lambda: len(world.proposals()) == 2, 20, "memory", interval=0.1)
        world.admin.patch("aclass", "l4", {"spec": {"backends": ["cuda"], "tolerations": []}})
        world.admin.delete("aclass", "a100-80gb-mig-1g-10gb")
        operator.wait_quiet()
        operator.kill()
    with world.operator() as operator:
        operator.wait_ready()
        # a node of a class that was deleted, and one of another product, whose class shows that both were reconciled
        world.add_node("n3", MIG)
        world.add_node("n4", {**L4, "nvidia.com/gpu.product": "Tesla-T4"})
        classes = world.wait_classes("l4", "t4")
        assert classes["l4"]["spec"]["backends"] == ["cuda"]
        operator.wait_quiet()
        assert set(world.classes()) == {"l4", "t4"}
        # a class without nodes reports it, until they return
        world.admin.kubectl("delete", "node", "n1")
        world.wait_ready("l4", "NoMatchingNode")
        world.add_node("n1", L4)
        world.wait_ready("l4", "NodesFound")
        operator.wait_quiet()
        assert set(world.classes()) == {"l4", "t4"}
        # a second class for the same device is a conflict, reported by both
        rival = make_object(
            "AcceleratorClass",
            "all-gpus",
            spec={
                "nodeSelector": {"nvidia.com/gpu.compute.major": "8"},
                "resourceName": "nvidia.com/gpu",
                "backends": ["cuda"],
            },
        )
        world.admin.apply(rival)
        world.wait_ready("l4", "OverlappingClass")
        world.wait_ready("all-gpus", "OverlappingClass")
    with world.operator() as operator:
        operator.wait_ready()
        operator.wait_quiet()
        assert operator.writes() == 0  # a restart writes nothing


def test_a_configured_label_names_products_until_nvidias_labels_do(world: World) -> None:
    own = "cloud.google.com/gke-accelerator"
    world.add_node("n1", {own: "nvidia-l4"})
    with world.operator(productLabels=[own]) as operator:
        operator.wait_ready()
        proposed = world.wait_classes("l4")["l4"]["spec"]
        assert proposed["nodeSelector"] == {own: "nvidia-l4"}
        assert "computeCapability" not in proposed
        world.wait_ready("l4", "NodesFound")
        world.admin.patch("node", "n1", {"metadata": {"labels": L4}})
        world.add_node("n2", {own: "nvidia-l4"})  # NVIDIA's labels are about to come
        eventually(lambda: world.admin.get("aclass", "l4")["status"]["nodes"] == 2, 20, "n2")
        operator.wait_quiet()
        assert [*world.classes()] == ["l4"]
        world.add_node("n3", MIG)
        world.wait_classes("l4", "a100-80gb-mig-1g-10gb")
