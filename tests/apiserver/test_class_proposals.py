"""AcceleratorClasses proposed by the operator's process on a real API server, and what becomes of them.

A control plane of its own: nodes and classes belong to the whole cluster.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.conftest import _control_plane, _new_namespace
from tests.e2e.harness import REPOSITORY, Namespace, eventually
from tests.support import simulated_cluster as played
from tests.support.api_requests import NotFoundError
from tests.support.operator_process import OperatorProcess
from tests.support.plan_objects import made

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
        process = OperatorProcess(self.admin.kubeconfig, self.admin.name, self.folder)
        config = json.loads(process.environment["ENGINEWRIGHT_CONFIG"])
        process.environment["ENGINEWRIGHT_CONFIG"] = json.dumps(
            {**config, "images": IMAGES, **settings}
        )
        return process

    def add_node(self, name: str, labels: dict[str, str], *, tainted: bool = False) -> None:
        played.add_node(self.admin, name, **labels)
        if tainted:
            self.admin.patch("node", name, {"spec": {"taints": [TAINT]}})

    def classes(self) -> dict[str, dict[str, Any]]:
        return {each["metadata"]["name"]: each for each in self.admin.items("aclass")}

    def wait_classes(self, *names: str) -> dict[str, dict[str, Any]]:
        eventually(lambda: set(self.classes()) == set(names), 20, f"{names}", interval=0.1)
        return self.classes()

    def wait_ready(self, name: str, reason: str) -> None:
        """Wait until a class has this reason."""

        def reported() -> bool:
            conditions = self.admin.get("aclass", name).get("status", {}).get("conditions", [])
            return any(each["reason"] == reason for each in conditions)

        eventually(reported, 20, f"{name}: {reason}", interval=0.1)

    def remembered(self) -> dict[str, str]:
        try:
            return dict(self.admin.get("configmap", "enginewright-proposals")["data"])
        except NotFoundError:
            return {}


@pytest.fixture(scope="module")
def kubeconfig_of_nodes() -> Iterator[Path]:
    with _control_plane(f"classes{os.getpid()}") as kubeconfig:
        admin = Namespace("default", kubeconfig)
        admin.kubectl("apply", "--server-side", "--filename", str(REPOSITORY / "crds"))
        admin.wait_established()
        yield kubeconfig


@pytest.fixture
def world(kubeconfig_of_nodes: Path, tmp_path: Path) -> Iterator[World]:
    world = World(_new_namespace(kubeconfig_of_nodes), tmp_path)
    yield world
    world.admin.delete_all("node,aclass")


def test_a_labelled_node_gets_a_class_that_the_api_server_takes(world: World) -> None:
    world.add_node("n1", L4, tainted=True)
    cpu = {"nodeSelector": {"kubernetes.io/os": "linux"}, "backends": ["cpu"]}
    played_class = made("AcceleratorClass", "cpu", spec=cpu)
    world.admin.apply(played_class)
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
        # Both have the node, and neither minds.
        world.wait_ready("l4", "NodesFound")
        world.wait_ready("cpu", "NodesFound")
        # A node that comes while the operator runs, cut in slices.
        world.add_node("n2", MIG)
        sliced = world.wait_classes("cpu", "l4", "a100-80gb-mig-1g-10gb")["a100-80gb-mig-1g-10gb"]
        assert sliced["spec"]["resourceName"] == "nvidia.com/mig-1g.10gb"
        operator.wait_quiet()


def test_what_the_administrator_makes_of_it_stays(world: World) -> None:
    world.add_node("n1", L4)
    world.add_node("n2", MIG)
    with world.operator() as operator:
        operator.wait_ready()
        world.wait_classes("l4", "a100-80gb-mig-1g-10gb")
        eventually(lambda: len(world.remembered()) == 2, 20, "memory", interval=0.1)
        world.admin.patch("aclass", "l4", {"spec": {"backends": ["cuda"], "tolerations": []}})
        world.admin.delete("aclass", "a100-80gb-mig-1g-10gb")
        operator.wait_quiet()
        operator.kill()
    with world.operator() as operator:
        operator.wait_ready()
        # A node of the same kind, and one of another, which shows that everything was looked at.
        world.add_node("n3", MIG)
        world.add_node("n4", {**L4, "nvidia.com/gpu.product": "Tesla-T4"})
        classes = world.wait_classes("l4", "t4")
        assert classes["l4"]["spec"]["backends"] == ["cuda"]
        operator.wait_quiet()
        assert set(world.classes()) == {"l4", "t4"}
        # Gone nodes leave their class, which says so; when they return, it serves again.
        world.admin.kubectl("delete", "node", "n1")
        world.wait_ready("l4", "NoMatchingNode")
        world.add_node("n1", L4)
        world.wait_ready("l4", "NodesFound")
        operator.wait_quiet()
        assert set(world.classes()) == {"l4", "t4"}
        # A second class for the same device is a conflict, reported by both.
        rival = made(
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


def test_the_administrator_may_switch_it_off(world: World) -> None:
    world.add_node("n1", L4)
    with world.operator(proposeClasses=False) as operator:
        operator.wait_ready()
        operator.wait_quiet()
        assert world.classes() == {}
    with world.operator(images={"cpu": IMAGES["cpu"]}) as operator:
        operator.wait_ready()
        operator.wait_quiet()
        assert world.classes() == {}
    with world.operator() as operator:
        operator.wait_ready()
        world.wait_classes("l4")


def test_a_label_of_ones_own_names_products_until_nvidias_do(world: World) -> None:
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
